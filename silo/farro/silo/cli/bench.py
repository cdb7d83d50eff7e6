"""``farro bench``: run the benchmarks of a source checkout and print what they found.

The benchmarks are no part of the installed package: they are imported from the checkout one stands in.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

SECONDS_MIN = 0.05
SECONDS_MAX = 600.0
ROUNDS_MAX = 100


def _a_length(context: click.Context, parameter: click.Parameter, seconds: float) -> float:
    """A range lets NaN through, which no clock ever reaches."""
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise click.BadParameter(f"must be between {SECONDS_MIN:g} and {SECONDS_MAX:g}", context, parameter)
    return seconds


@click.command()
@click.argument("names", nargs=-1, metavar="[NAMES]...")
@click.option("--smoke", is_flag=True, show_default="off", help="Only prove that each one runs; no figures.")
@click.option(
    "--seconds",
    type=float,
    callback=_a_length,
    default=1.0,
    show_default=True,
    help="Length of one slice; a benchmark takes several, by turns with its probe.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, ROUNDS_MAX),
    default=5,
    show_default=True,
    help="How many slices each side gets; the median counts.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    show_default="none",
    help="Write the results there, and a chart beside it (.svg) if matplotlib is installed.",
)
@click.pass_context
def bench(
    context: click.Context,
    names: tuple[str, ...],
    smoke: bool,
    seconds: float,
    rounds: int,
    json_file: Path | None,
) -> None:
    """Run the benchmarks of a source checkout, all or those in NAMES, and print a table.

    Run it from the root of the checkout on a quiet machine: figures are ratios to a probe that runs beside
    them.  A goal that is not met is no failure; a benchmark that does not run, or counts wrong, is (exit 1).
    """
    suite = _suite(Path.cwd())
    chosen = _chosen(names, suite.NAMES)
    plan = suite.smoke_plan() if smoke else suite.Plan(seconds=seconds, rounds=rounds)
    before = suite.environment()
    results, failures = _run(suite, chosen, plan)
    _print_table(suite, results, smoke=smoke)
    if json_file is not None:
        suite.write_json(json_file, results, plan, before)
        click.echo(f"written: {json_file}")
        chart = json_file.with_suffix(".svg")
        if not smoke:
            drawn = suite.write_chart(chart, results)
            click.echo(f"written: {chart}" if drawn else "no chart: matplotlib is not installed")
    for name, error in failures.items():
        click.echo(f"Error: the benchmark {name} failed: {type(error).__name__}: {error}", err=True)
    if failures:
        context.exit(1)


def _suite(folder: Path) -> Any:
    """The module ``benchmarks.suite`` of the checkout in ``folder``."""
    if not ((folder / "pyproject.toml").is_file() and (folder / "benchmarks" / "suite.py").is_file()):
        raise click.ClickException(
            f"there are no benchmarks in {folder}: they are not part of the installed package; "
            "change to the root of a source checkout of farro and run it again"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module("benchmarks.suite")


def _chosen(names: tuple[str, ...], known: tuple[str, ...]) -> list[str]:
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no benchmark {name!r}; there are: {', '.join(known)}")
    return [name for name in known if not names or name in names]


def _run(suite: Any, names: list[str], plan: Any) -> tuple[list[Any], dict[str, Exception]]:
    """Results in order, and what the others raised."""
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    results: list[Any] = []
    failures: dict[str, Exception] = {}
    columns = (TextColumn("{task.description:<14}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # a thread that redraws would be measured too
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        for name in names:
            task = progress.add_task(name, total=1.0)

            def report(done: float, task: Any = task) -> None:
                progress.update(task, completed=done, refresh=True)

            report(0)
            try:
                results.append(asyncio.run(suite.load(name)(replace(plan, report=report))))
            except Exception as error:
                failures[name] = error
            report(1)
            gc.collect()
    return results, failures


def _print_table(suite: Any, results: list[Any], *, smoke: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="smoke run: the figures mean nothing" if smoke else None, title_justify="left")
    for heading in ("measure", "value", "probe", "ratio", "goal", "met"):
        table.add_column(heading, justify="right" if heading in ("value", "ratio") else "left")
    for result in results:
        table.add_section()
        table.add_row(Text(result.title, style="bold"))
        for each in result.measures:
            table.add_row(*(Text(cell) for cell in _cells(suite, each, smoke=smoke)))
    width = None if sys.stdout.isatty() else 150  # a pipe has no width to fold to
    Console(width=width).print(table)


def _cells(suite: Any, measure: Any, *, smoke: bool) -> list[str]:
    number = suite.number_text
    probe = "" if measure.probe is None else f"{measure.probe_name} {number(measure.probe)}"
    goal = "" if measure.goal is None else measure.goal.text(measure.unit)
    met = "" if smoke or measure.met is None else ("yes" if measure.met else "no")
    value = f"{number(measure.value)} {measure.unit}"
    return [f"  {measure.name}", value, probe, suite.ratio_text(measure), goal, met]
