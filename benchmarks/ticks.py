"""P4: durable ticks from a backlog of overdue reminders, against the raw group commit of the same rows.

Every reminder belongs to a grain of its own, asleep when the silo starts; its tick wakes the grain and
changes its state.  The counts in the file are compared with the ticks that ran.  APScheduler 3 and 4 are
measured beside it where they are named (``benchmarks.peer_apscheduler``): their jobs are durable, and tied to
no state.

    python -m benchmarks.ticks [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks import measuring
from benchmarks.grains import GRAINS, Ticking
from benchmarks.measuring import Goal, Measure, Plan, Result, in_turns
from benchmarks.peer_apscheduler import PYTHONS, apscheduler_rate
from benchmarks.stores import backlog, copy_of, counted, raw_ticks, settled_count, store_with
from farro.silo import Silo

PEERS = {3: (3_000, Goal(2)), 4: (200, Goal(50))}  # jobs of a backlog, and what to reach
SLICE_PARTS = 4  # a slice is that many times plan.seconds: the first of them only warms up
SMOKE_SECONDS_MAX = 30.0  # a smoke run works its small backlog off, however slow the machine is


async def run(plan: Plan) -> Result:
    size = plan.size(100_000, 500)
    seconds = SMOKE_SECONDS_MAX if plan.smoke else plan.seconds * SLICE_PARTS
    settled = counts = 0
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        folder = Path(name)
        full = folder / "full.db"
        await store_with(full, backlog(size))
        state = b"\x93\xaaon its way\x01\xc4\x40" + bytes(64)

        async def ticks() -> float:
            nonlocal settled, counts
            path = copy_of(full, "ticks.db")
            rate, delivered = await drained(path, size, seconds)
            settled, counts = settled_count(path), counted(path)
            if not delivered == settled == counts or not delivered:
                raise AssertionError(
                    f"{delivered} ticks ran, {settled} reminders moved on and {counts} grains counted one"
                )
            return rate

        async def raw() -> float:
            path = copy_of(full, "raw.db")
            return await asyncio.to_thread(raw_ticks, path, seconds, size, state)

        peers = [release for release, variable in PYTHONS.items() if os.environ.get(variable)]
        rounds = await in_turns(plan, ticks, raw, part=(0, 0.8 if peers else 1))
        measures = [rounds.measure("backlog", "ticks/s", "raw group commit", Goal(0.4, later=0.5))]
        for release in peers:
            measure = await _beside_apscheduler(release, folder, plan, median(rounds.things))
            if measure is not None:
                measures.append(measure)
        plan.report(1)
    return Result(
        "ticks",
        f"durable ticks from {size:,} overdue reminders, SQLite FULL",
        tuple(measures),
        {"reminders moved on": settled, "grains that counted": counts},
    )


async def drained(path: Path, size: int, seconds: float) -> tuple[float, int]:
    """Ticks per second until the backlog is empty or the time is up; and how many ran in all."""
    enough = Ticking.begin(size)
    ran = Ticking.noted(1)
    async with Silo(grains=GRAINS, store=f"sqlite:///{path}", listen=None):
        begun = perf_counter()
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), seconds)
        rate = len(ran) / (perf_counter() - begun)
    return rate, len(ran)


async def _beside_apscheduler(release: int, folder: Path, plan: Plan, ours: float) -> Measure | None:
    jobs, goal = PEERS[release]
    theirs = await apscheduler_rate(release, folder / f"apscheduler{release}.db", plan.size(jobs, 50))
    if theirs is None:
        return None
    return Measure(
        name="backlog",
        value=ours,
        unit="ticks/s",
        probe=theirs,
        probe_name=f"APScheduler {release}",
        ratio=ours / theirs,
        goal=goal,
    )


if __name__ == "__main__":
    measuring.main(run, __doc__)
