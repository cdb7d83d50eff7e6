"""Every benchmark runs, and counts what it did right; no timing is judged here."""

from __future__ import annotations

import json
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import pytest

from benchmarks import suite
from benchmarks.measuring import Goal, Measure, Result
from benchmarks.stores import backlog, copy_of, counted, raw_ticks, settled_count, store_with

BENCHMARKS = Path(suite.__file__).parent


@pytest.mark.serial
@pytest.mark.parametrize("name", suite.NAMES)
async def test_a_smoke_run_measures_something(name: str) -> None:
    heard: list[float] = []
    result = await suite.load(name)(suite.smoke_plan(heard.append))
    assert result.name == name
    assert result.measures
    assert all(isfinite(measure.value) for measure in result.measures)
    assert heard == sorted(heard) and heard[-1] == 1


def test_every_script_that_can_be_run_with_a_plan_is_in_the_suite() -> None:
    runnable = {
        path.stem for path in BENCHMARKS.glob("*.py") if "\nasync def run(plan: Plan)" in path.read_text()
    }
    by_themselves = {"cluster"}  # several real processes and a database: python -m benchmarks.cluster
    assert runnable == set(suite.NAMES) | by_themselves


FIVE = Result("turns", "durable turns", (Measure("turns", 5.0, "turns/s", goal=Goal(6, of_value=True)),))


def test_the_json_holds_the_environment_and_every_measure(tmp_path: Path) -> None:
    before = suite.environment()
    suite.write_json(tmp_path / "a.json", [FIVE], suite.Plan(seconds=2, rounds=3), before)
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["farro"] and document["python"] and document["sqlite"]
    assert (document["seconds"], document["rounds"], document["smoke"]) == (2, 3, False)
    (measure,) = document["results"][0]["measures"]
    assert (measure["value"], measure["goal"], measure["met"]) == (5.0, "≥ 6 turns/s", False)


def test_a_smoke_run_meets_no_goal_and_misses_none(tmp_path: Path) -> None:
    suite.write_json(tmp_path / "a.json", [FIVE], suite.smoke_plan(), {})
    assert json.loads((tmp_path / "a.json").read_text())["results"][0]["measures"][0]["met"] is None


def test_a_chart_is_drawn_where_matplotlib_is_and_refused_where_it_is_not(tmp_path: Path) -> None:
    result = Result("turns", "durable turns", (Measure("turns", 5.0, "turns/s", ratio=0.5, goal=Goal(0.4)),))
    drawn = suite.write_chart(tmp_path / "a.svg", [result])
    assert drawn is (find_spec("matplotlib") is not None)
    assert (tmp_path / "a.svg").exists() is drawn


@pytest.mark.parametrize(
    ("measure", "share"),
    [
        (Measure("m", 1.0, "s", ratio=0.6, goal=Goal(0.4)), 1.5),
        (Measure("m", 1.0, "s", ratio=2.0, goal=Goal(4, at_most=True)), 2.0),
        (Measure("m", -5.0, "ms", goal=Goal(1, at_most=True, of_value=True)), 3.0),
        (Measure("m", 1.0, "s", ratio=0.6), None),
    ],
)
def test_the_share_of_a_goal_is_one_when_it_is_just_met(measure: Measure, share: float | None) -> None:
    assert suite.share_of_goal(measure) == pytest.approx(share)


async def test_the_raw_probe_of_a_backlog_writes_the_rows_that_ticks_would(tmp_path: Path) -> None:
    await store_with(tmp_path / "full.db", backlog(150))
    path = copy_of(tmp_path / "full.db", "raw.db")
    assert (settled_count(path), counted(path)) == (0, 0)
    assert raw_ticks(path, 30.0, 150, b"\x90") > 0
    assert (settled_count(path), counted(path)) == (150, 150)
    assert settled_count(tmp_path / "full.db") == 0
