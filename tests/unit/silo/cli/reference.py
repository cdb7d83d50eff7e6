"""``docs/reference/cli.md`` as it ought to be; ``python -m tests.unit.silo.cli.reference`` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from farro.silo.cli.main import farro

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "cli.md"

HEAD = """\
# The command line

Every option shows its default in `--help`; what follows is that help, word for word (a test holds the two
together).

**Exit codes**: 0 done · 1 failed (the reason is one line on stderr) · 2 bad usage (a bad option, a text
that is not JSON, a cron text that cannot be read) · 128 + the signal's number when a signal ended it. No
traceback is printed; with `FARRO_TRACEBACK=1` an unexpected error shows its own.

**Environment**: `FARRO_STORE`, `FARRO_LISTEN`, `FARRO_SILO`, `FARRO_SERVICE_ID` stand for the options of
those names; an option on the command line wins.

**Signals** of `farro silo`: the first SIGTERM or Ctrl-C stops new calls, lets running turns finish (at most
`--stop-timeout`) and exits with 0; where other silos share the store, its partitions are handed over to them
first. A second one, a second later or more, ends the process at once: what was not committed is not done,
what was committed stands.
If something blocks the silo beyond its limit, or a part of the silo itself fails, it ends with 1.

**Several processes**: `farro silo --processes N` starts, watches and restarts N silos
([how](../how-to/run-several-processes.md)). SIGTERM and Ctrl-C drain all at once; SIGHUP restarts them one
after another. It ends with 0 when all ended in order, with 2 or 1 and the reason when one cannot be
started, else with 1.

**Output** of `farro silo`: on stdout one line when it is ready, one when it begins to stop, one when it has
stopped; the log on stderr, as text or as one JSON object a line. Names that come from data are shown with
control characters escaped. With `--processes` each line begins with its process's number in brackets; a JSON
log has it as the member `process`.

**Values** of `farro call`: arguments are JSON; a method whose parameters JSON has no form for (dates,
bytes, sets) is called from Python. In results dates are ISO text, durations seconds, bytes base64, sets and
tuples lists, decimals and UUIDs text.
"""


def reference() -> str:
    """The whole document."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for path in _paths((), farro):
        title = " ".join(("farro", *path))
        yield f"## {title}\n\n```text\n{_help(path)}\n```\n"


def _paths(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _paths((*path, name), inner)


def _help(path: tuple[str, ...]) -> str:
    command: click.Command = farro
    context = click.Context(farro, info_name="farro", terminal_width=100)
    for name in path:
        assert isinstance(command, click.Group)
        inner = command.get_command(context, name)
        assert inner is not None
        command = inner
        context = click.Context(inner, info_name=name, parent=context, terminal_width=100)
    return command.get_help(context)


if __name__ == "__main__":
    DOCUMENT.write_text(reference(), encoding="utf-8")
