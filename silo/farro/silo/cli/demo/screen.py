"""What the demo says, and how it looks: colours and a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from farro.silo.cli.failing import one_line

WIDTH = 110  # columns where there is no terminal to ask


class Screen:
    """Prints the story.  Nothing that came from data is read as markup."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        self._console = console if console.is_terminal else Console(highlight=False, width=WIDTH)
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def chapter(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(f"  {one_line(text)}", style=style), soft_wrap=True)

    def event(self, at: datetime, text: str, style: str = "") -> None:
        """Something happened at that schedule time."""
        self._console.print(Text(f"  {at:%a %H:%M}  {one_line(text)}", style=style), soft_wrap=True)

    def table(self, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        heads = list(heads)
        table = Table(
            *heads,
            box=None,
            padding=(0, 2, 0, 0),
            header_style="dim",
            pad_edge=False,
            show_header=any(map(str.strip, heads)),
        )
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        self._console.print(table)

    def code(self, text: str) -> None:
        self._console.print()
        for line in text.splitlines():
            self._console.print(Text(f"    {line}", style="cyan"))

    def bar(self, description: str, total: float) -> Bar:
        return Bar(self._progress, self._progress.add_task(description, total=total, note=""))


class Bar:
    """A progress bar for as long as its ``with`` block lasts."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def show(self, done: float, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._progress.stop()
        self._progress.remove_task(self._task)
