"""A few rounds of the crash harness, and the proof that it would notice."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.acceptance.crash_harness import CALLERS, Harness

ROUNDS = 3


async def test_kills_under_load_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    report = await Harness(tmp_path, Random(1)).run(ROUNDS)
    assert report.faults.none, str(report)
    assert report.rounds == ROUNDS
    assert report.turns >= 60 and report.ticks > 0 and report.cut_off > 0, str(report)


async def test_the_harness_notices_lost_and_doubled_turns_and_ticks(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Random(2))
    await harness.run(2)
    told = list(harness.told.values())
    assert len(told) == CALLERS
    told[0].value, told[0].out = told[0].value + 2, False  # as if two acknowledged turns were not in the file
    told[1].value, told[1].out = told[1].value - 3, True  # as if calls had counted three times, one was out
    await harness.check(first_bell_due_left_out=True)
    assert harness.report.faults.turns_lost == 2
    assert harness.report.faults.turns_twice == 2
    assert harness.report.faults.ticks_lost == 1
