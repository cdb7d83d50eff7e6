"""P6: start time and resident memory of a silo with 1,000,000 reminders in its file, against one with 2,000.

In both files 1,640 fall due within the look-ahead window; the rest lie a year ahead.

    python -m benchmarks.start [--rounds 5] [--smoke]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import measuring
from benchmarks.measuring import Goal, Measure, Plan, Result, in_turns
from benchmarks.serving import serving
from benchmarks.stores import DAY_US, SECOND_US, store_with, ticking_row
from farro.client.clock import SystemClock
from farro.providers.rows import ReminderRow

IN_WINDOW = 1_640
FEW = 2_000
WINDOW_BEGINS_US = 120 * SECOND_US  # nothing is due while we measure
WINDOW_STEP_US = SECOND_US // 20  # 1,640 of them end well within the five minutes
MEGABYTE = 1e6


def table(rows: int, in_window: int) -> Iterator[ReminderRow]:
    now = SystemClock().now()
    for number in range(rows):
        ahead = WINDOW_BEGINS_US + number * WINDOW_STEP_US if number < in_window else 365 * DAY_US + number
        yield ticking_row(number, now + ahead, priority=number % 3)


async def run(plan: Plan) -> Result:
    many = plan.size(1_000_000, 10_000)
    memory: dict[str, list[float]] = {"many": [], "few": []}
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        folder = Path(name)

        async def started(which: str) -> float:
            async with serving(f"sqlite:///{folder / which}.db") as served:
                memory[which].append(served.resident_bytes / MEGABYTE)
            return served.start_s * 1e3

        await store_with(folder / "few.db", table(FEW, IN_WINDOW))
        await store_with(folder / "many.db", table(many, IN_WINDOW))
        times = await in_turns(plan, lambda: started("many"), lambda: started("few"))
    more_ms = median(times.things) - median(times.probes)
    resident = measuring.Rounds(tuple(memory["many"]), tuple(memory["few"]))
    more_mb = median(resident.things) - median(resident.probes)
    same = Goal(1.2, at_most=True)
    few = f"{FEW:,} reminders"
    return Result(
        "start",
        f"start with {many:,} reminders, {IN_WINDOW:,} within the window",
        (
            times.measure("time", "ms", few, same),
            Measure("more time", more_ms, "ms", goal=Goal(1_000, True, of_value=True)),
            resident.measure("resident memory", "MB", few, same),
            Measure("more memory", more_mb, "MB", goal=Goal(50, True, of_value=True)),
        ),
    )


if __name__ == "__main__":
    measuring.main(run, __doc__)
