"""A silo comes back after an outage: 1,000,000 reminders in its file, 500,000 of them overdue by an hour.

What it reads at start, what one of its polls costs beside a poll of 10,000 rows, and how fast the backlog is
worked off beside a silo whose few reminders have just fallen due.  Each slice goes on where the last one
stopped: the backlog is larger than all of them.

    python -m benchmarks.backlog [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from benchmarks import measuring
from benchmarks.grains import GRAINS, Ticking
from benchmarks.measuring import Goal, Measure, Plan, Result, in_turns
from benchmarks.stores import BACKLOG_AGE_US, DAY_US, SECOND_US, copy_of, store_with, ticking_row
from farro.client.clock import SystemClock
from farro.providers.rows import ReminderRow
from farro.silo import Silo
from farro.silo.metrics import ReminderFigures

OUTAGE_US = 3_600 * SECOND_US
SLICE_PARTS = 3
SMOKE_SECONDS_MAX = 30.0  # a smoke run works its small backlog off, however slow the machine is
PRIORITIES = 3


def after_an_outage(rows: int, overdue: int, now: int) -> Iterator[ReminderRow]:
    """The first ``overdue`` fell due an hour ago, the others do so in a year."""
    for number in range(rows):
        due = now - OUTAGE_US + number if number < overdue else now + 365 * DAY_US + number
        yield ticking_row(number, due, priority=number % PRIORITIES)


def just_now(rows: int) -> Iterator[ReminderRow]:
    """All of them late and none missed, of all priorities as after the outage."""
    begun = SystemClock().now() - BACKLOG_AGE_US
    return (ticking_row(number, begun + number, priority=number % PRIORITIES) for number in range(rows))


@dataclass
class Starts:
    """What the silos read before they delivered anything, and in how many polls."""

    rows: list[int] = field(default_factory=list)
    polls: list[int] = field(default_factory=list)
    poll_ms: list[float] = field(default_factory=list)
    delivered: int = 0


async def run(plan: Plan) -> Result:
    many, few = plan.size(1_000_000, 4_000), plan.size(10_000, 1_000)
    seconds = SMOKE_SECONDS_MAX if plan.smoke else plan.seconds * SLICE_PARTS
    now = SystemClock().now()
    behind, steady = Starts(), Starts()
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        folder = Path(name)
        await store_with(folder / "behind.db", after_an_outage(many, many // 2, now))
        await store_with(folder / "few.db", just_now(few))

        async def drain() -> float:
            return await rate(folder / "behind.db", many // 2, seconds, behind)

        async def on_time() -> float:
            return await rate(copy_of(folder / "few.db", "steady.db"), few, seconds, steady)

        rates = await in_turns(plan, drain, on_time)
    polls = measuring.Rounds(tuple(behind.poll_ms), tuple(steady.poll_ms))
    return Result(
        "backlog",
        f"{many:,} reminders of which {many // 2:,} are overdue, SQLite FULL",
        (
            rates.measure("worked off", "ticks/s", f"{few:,} that have just fallen due", Goal(0.7)),
            polls.measure("the poll at start", "ms", f"{few:,} rows", Goal(1.5, at_most=True)),
            Measure("rows read at start", max(behind.rows), "rows"),
        ),
        {"polls at start": max(behind.polls), "ticks of the backlog": behind.delivered},
    )


async def rate(path: Path, wanted: int, seconds: float, starts: Starts) -> float:
    """Ticks per second until ``wanted`` have begun or the time is up."""
    enough = Ticking.begin()
    async with Silo(grains=GRAINS, store=f"sqlite:///{path}", listen=None) as silo:
        first = figures(silo)
        starts.rows.append(first.poll_rows)
        starts.polls.append(first.polls)
        starts.poll_ms.append(first.poll_seconds * 1e3 / first.polls)
        begun = perf_counter()
        with suppress(TimeoutError):
            await asyncio.wait_for(until_delivered(silo, wanted, enough), seconds)
        delivered = figures(silo).delivered
        taken = perf_counter() - begun
    if not delivered:
        raise AssertionError("no tick was delivered")
    starts.delivered += delivered
    return delivered / taken


async def until_delivered(silo: Silo, wanted: int, never: asyncio.Event) -> None:
    """Returns once so many ticks are committed; looked at a hundred times a second."""
    while figures(silo).delivered < wanted:
        with suppress(TimeoutError):
            await asyncio.wait_for(never.wait(), 0.01)


def figures(silo: Silo) -> ReminderFigures:
    found = silo.statistics().reminders
    assert found is not None
    return found


if __name__ == "__main__":
    measuring.main(run, __doc__)
