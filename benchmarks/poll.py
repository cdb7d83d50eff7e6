"""P7: what a poll costs, from 10,000 to 1,000,000 reminders, and when half of them are overdue.

Every poll brings full pages (one per priority), so that the tables differ in size and in nothing else.

    python -m benchmarks.poll [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks import measuring
from benchmarks.measuring import Goal, Plan, Result, in_turns
from benchmarks.stores import DAY_US, SECOND_US, store_with, ticking_row
from farro.client.clock import SystemClock
from farro.providers.rows import PollQuery, ReminderRow
from farro.providers.sqlite.store import SqliteProvider

PAGE = 1_024
PRIORITIES = 3
SOON = 3_600  # rows within the window: a full page for each priority
WINDOW_US = 300 * SECOND_US


def table(rows: int, soon: int, overdue: int, now: int) -> Iterator[ReminderRow]:
    """Overdue rows first, then those that fall due within the window, then those of next year."""
    for number in range(rows):
        if number < overdue:
            due = now - DAY_US + number
        elif number < overdue + soon:
            due = now + WINDOW_US // 2 + number
        else:
            due = now + 365 * DAY_US + number
        yield ticking_row(number, due, priority=number % PRIORITIES)


async def run(plan: Plan) -> Result:
    few, many = plan.size(10_000, 4_000), plan.size(1_000_000, 12_000)
    now = SystemClock().now()
    questions = [PollQuery(priority, now + WINDOW_US, PAGE) for priority in range(PRIORITIES)]
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        folder = Path(name)
        await store_with(folder / "few.db", table(few, SOON, 0, now))
        await store_with(folder / "many.db", table(many, SOON, 0, now))
        await store_with(folder / "overdue.db", table(many, SOON, many // 2, now))

        async def poll_ms(which: str) -> float:
            provider = SqliteProvider(folder / f"{which}.db", read_only=True)
            await provider.open(now)
            try:
                took: list[float] = []
                begun = perf_counter()
                while perf_counter() - begun < plan.seconds or not took:
                    before = perf_counter()
                    pages = await provider.poll(questions)
                    took.append((perf_counter() - before) * 1e3)
                    if [len(page) for page in pages] != [PAGE] * PRIORITIES:
                        raise AssertionError(f"a poll brought {[len(page) for page in pages]} rows")
            finally:
                await provider.close()
            return median(took)

        async def of_few() -> float:
            return await poll_ms("few")

        large = await in_turns(plan, lambda: poll_ms("many"), of_few, part=(0, 0.5))
        behind = await in_turns(plan, lambda: poll_ms("overdue"), of_few, part=(0.5, 1))
    goal = Goal(1.5, at_most=True)
    probe = f"{few:,} rows, none overdue"
    return Result(
        "poll",
        f"a poll of {PRIORITIES} × {PAGE:,} rows, SQLite",
        (
            large.measure(f"{many:,} rows", "ms", probe, goal),
            behind.measure(f"{many:,} rows, half overdue", "ms", probe, goal),
        ),
    )


if __name__ == "__main__":
    measuring.main(run, __doc__)
