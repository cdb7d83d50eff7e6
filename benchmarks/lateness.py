"""P5: how late ticks begin at 1,000 a second, steady, against bare timers of the event loop at the same rate.

A thousand reminders with a period of one second, a millisecond apart; every tick is a durable turn.
Lateness is from the due instant to the begin of the turn.  None may be early.

    python -m benchmarks.lateness [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks import measuring
from benchmarks.grains import GRAINS, Ticking
from benchmarks.measuring import Goal, Plan, Result, Rounds, percentile
from benchmarks.stores import SECOND_US, store_with, ticking_row
from farro.client.clock import SystemClock
from farro.silo import Silo

AHEAD_US = SECOND_US  # the first tick is due that long after the store is written
SLICE_PARTS = 3
US_A_MS = 1e3


async def run(plan: Plan) -> Result:
    rate = plan.size(1_000, 100)
    seconds = max(plan.seconds * SLICE_PARTS, 1.0)
    ticks: list[list[float]] = []
    timers: list[list[float]] = []
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        for number in range(plan.rounds):
            timers.append(await timer_lateness(rate, seconds))
            ticks.append(await tick_lateness(Path(name) / f"{number}.db", rate, seconds))
            plan.report((number + 1) / plan.rounds)
    early = sum(late < 0 for some in ticks for late in some)
    if early:
        raise AssertionError(f"{early} ticks began before they were due")
    return Result(
        "lateness",
        f"lateness at {rate:,} ticks/s, SQLite FULL",
        (
            _rounds(ticks, timers, 0.5).measure("p50", "ms", "bare timers", Goal(5, True, of_value=True)),
            _rounds(ticks, timers, 0.99).measure("p99", "ms", "bare timers", Goal(25, True, of_value=True)),
        ),
        {"ticks": sum(map(len, ticks)), "early": early},
    )


def _rounds(ticks: list[list[float]], timers: list[list[float]], share: float) -> Rounds:
    return Rounds(
        tuple(percentile(some, share) / US_A_MS for some in ticks),
        tuple(percentile(some, share) / US_A_MS for some in timers),
    )


async def tick_lateness(path: Path, rate: int, seconds: float) -> list[float]:
    """Microseconds, one figure per tick, without those of the first second."""
    first = SystemClock().now() + AHEAD_US
    step = SECOND_US // rate
    await store_with(path, (ticking_row(each, first + each * step, SECOND_US) for each in range(rate)))
    everybody = Ticking.begin(rate)
    noted = Ticking.noted(1)
    async with Silo(grains=GRAINS, store=f"sqlite:///{path}", listen=None):
        await everybody.wait()
        awake = len(noted)  # every grain was asleep at its first tick
        await asyncio.sleep(seconds)
        steady = noted[awake:]
    return steady


async def timer_lateness(rate: int, seconds: float) -> list[float]:
    """The same, of ``loop.call_at`` with nothing to do."""
    loop = asyncio.get_running_loop()
    noted: list[float] = []

    def fire(due: float) -> None:
        noted.append((loop.time() - due) * SECOND_US)

    begun = loop.time() + 0.05
    for number in range(int(rate * seconds)):
        due = begun + number / rate
        loop.call_at(due, fire, due)
    await asyncio.sleep(seconds + 0.1)
    return noted


if __name__ == "__main__":
    measuring.main(run, __doc__)
