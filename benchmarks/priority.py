"""P8: Critical ticks, and calls, while a backlog of Background reminders is worked off, against an idle silo.

A hundred Critical reminders with a period of one second, ten milliseconds apart, in a file with and without
100,000 overdue Background ones.  Two callers call a grain without state all the while.

    python -m benchmarks.priority [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from benchmarks import measuring
from benchmarks.grains import GRAINS, Echo, Ticking
from benchmarks.measuring import Goal, Measure, Plan, Result, Rounds, hammer, percentile
from benchmarks.stores import SECOND_US, backlog, copy_of, store_with, ticking_row
from farro.client.clock import SystemClock
from farro.providers.rows import ReminderRow
from farro.silo import Silo

CRITICAL, BACKGROUND = 0, 2
CRITICALS = 100
CALLERS = 2
SLICE_PARTS = 3


@dataclass(frozen=True, slots=True)
class Slice:
    lateness_ms: float
    calls: float
    background: int


async def run(plan: Plan) -> Result:
    size = plan.size(100_000, 300)
    seconds = max(plan.seconds * SLICE_PARTS, 1.2)
    loaded: list[Slice] = []
    idle: list[Slice] = []
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        folder = Path(name)
        for number in range(plan.rounds):
            idle.append(await one_slice(folder / "idle.db", 0, seconds))
            loaded.append(await one_slice(folder / "loaded.db", size, seconds))
            plan.report((number + 1) / plan.rounds)
    served = sum(each.background for each in loaded)
    if not served:
        raise AssertionError("no Background tick was delivered")
    lateness = Rounds(tuple(each.lateness_ms for each in loaded), tuple(each.lateness_ms for each in idle))
    calls = Rounds(tuple(each.calls for each in loaded), tuple(each.calls for each in idle))
    return Result(
        "priority",
        f"Critical ticks under a backlog of {size:,} Background ones, SQLite FULL",
        (
            lateness.measure("Critical, lateness p99", "ms", "without backlog", Goal(2, at_most=True)),
            calls.measure(f"calls, {CALLERS} in flight", "calls/s", "without backlog", Goal(0.5)),
            Measure("Background ticks", served / (seconds * plan.rounds), "ticks/s"),
        ),
    )


def criticals() -> Iterator[ReminderRow]:
    """The first of them falls due a second after they are asked for: once the silo is up, not before."""
    begun = SystemClock().now() + SECOND_US
    step = SECOND_US // CRITICALS
    for number in range(CRITICALS):
        yield ticking_row(number, begun + number * step, SECOND_US, CRITICAL)


async def _until_critical() -> None:
    """Callers that never wait for anything can keep the commit thread from the interpreter's lock for a whole
    short slice: then the first Critical tick is waited for, and its lateness tells."""
    for _ in range(200):
        if Ticking.noted(CRITICAL):
            return
        await asyncio.sleep(0.05)


async def one_slice(path: Path, size: int, seconds: float) -> Slice:
    filled = path.with_suffix(".filled")
    filled.unlink(missing_ok=True)
    overdue = backlog(size, BACKGROUND, first=CRITICALS)
    await store_with(filled, chain(overdue, criticals()))
    Ticking.begin()
    async with Silo(grains=GRAINS, store=f"sqlite:///{copy_of(filled, path.name)}", listen=None) as silo:
        grains = [silo.grain(Echo, f"e-{number}") for number in range(CALLERS)]
        calls = await hammer(lambda caller, made: grains[caller].echo(made), CALLERS, seconds)
        await _until_critical()
        late = list(Ticking.noted(CRITICAL))
        background = len(Ticking.noted(BACKGROUND))
    if not late:
        raise AssertionError("no Critical tick was delivered")
    return Slice(percentile(late, 0.99) / 1e3, calls, background)


if __name__ == "__main__":
    measuring.main(run, __doc__)
