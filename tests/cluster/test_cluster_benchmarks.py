"""The benchmarks of a cluster run and count right; their timings are not judged here."""

from __future__ import annotations

import pytest

from benchmarks import cluster, failover
from benchmarks.measuring import Measure, smoke_plan

pytestmark = [pytest.mark.serial, pytest.mark.service, pytest.mark.timeout(300)]


async def test_failover_answers_after_every_fault_and_planned_restarts_fail_no_call() -> None:
    result = await failover.run(smoke_plan(), ("kill", "restart", "database"))
    found = {measure.name.split(":")[0]: measure for measure in reversed(result.measures)}
    assert set(found) == {"killed", "restarted", "database away for 8 s", "database"}
    counted = [measure for measure in result.measures if measure.unit == ""]
    assert [_bare(measure) for measure in counted] == [
        ("restarted", 0.0),
        ("database away for 8 s", 0.0),
    ], "no call failed, no silo was evicted"
    assert all(measure.value > 0 for measure in result.measures if measure.unit == "s")


async def test_two_silos_calls_a_take_over_and_the_directory() -> None:
    result = await cluster.run(smoke_plan())
    near, far, taken, memory = result.measures
    assert near.value > 0 and far.value > 0
    assert 300 < int(taken.name.split()[2]) < 700, "about half of the 1,024"
    assert memory.met


def _bare(measure: Measure) -> tuple[str, float]:
    return measure.name.split(":")[0], measure.value
