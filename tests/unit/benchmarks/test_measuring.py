"""What benchmarks make of figures: ratios by rounds, goals, and rates of callers."""

from __future__ import annotations

import asyncio
from time import process_time

import pytest

from benchmarks.measuring import (
    Goal,
    Measure,
    Plan,
    Result,
    Rounds,
    hammer,
    in_turns,
    lines_of,
    number_text,
    percentile,
    smoke_plan,
    with_cpu,
)


async def test_a_thing_and_its_probe_take_turns_and_every_other_round_the_probe_begins() -> None:
    order: list[str] = []

    async def thing() -> float:
        order.append("A")
        return 10.0

    async def probe() -> float:
        order.append("B")
        return 20.0

    rounds = await in_turns(Plan(rounds=3), thing, probe)
    assert "".join(order) == "ABBAAB"
    assert rounds.things == (10.0,) * 3 and rounds.probes == (20.0,) * 3


async def test_progress_runs_over_the_stretch_that_was_given_and_ends_at_its_end() -> None:
    heard: list[float] = []

    async def figure() -> float:
        return 1.0

    await in_turns(Plan(rounds=2, report=heard.append), figure, figure, part=(0.5, 1))
    assert heard == [0.625, 0.75, 0.875, 1.0]


def test_the_ratio_is_the_median_of_the_rounds_and_not_a_ratio_of_medians() -> None:
    rounds = Rounds(things=(10.0, 40.0, 90.0), probes=(10.0, 100.0, 100.0))
    measure = rounds.measure("turns", "turns/s", "raw")
    assert measure.ratio == 0.9
    assert (measure.value, measure.probe) == (40.0, 100.0)
    assert measure.spread == (0.4, 1.0)


def test_one_round_has_no_spread() -> None:
    assert Rounds((1.0,), (2.0,)).measure("turns", "turns/s", "raw").spread is None


@pytest.mark.parametrize(
    ("goal", "value", "ratio", "met"),
    [
        (Goal(0.4), 100.0, 0.4, True),
        (Goal(0.4), 100.0, 0.39, False),
        (Goal(4, at_most=True), 100.0, 4.0, True),
        (Goal(4, at_most=True), 1.0, 4.1, False),
        (Goal(5, at_most=True, of_value=True), 4.9, 50.0, True),
        (Goal(5, at_most=True, of_value=True), 5.1, 0.5, False),
        (Goal(5, at_most=True), 4.9, None, True),
    ],
)
def test_a_goal_bounds_the_ratio_or_where_it_says_so_the_value(
    goal: Goal, value: float, ratio: float | None, met: bool
) -> None:
    assert Measure("m", value, "ms", ratio=ratio, goal=goal).met is met


def test_a_measure_without_goal_is_neither_met_nor_missed() -> None:
    assert Measure("m", 1.0, "ms").met is None


async def test_callers_are_counted_all_and_each_waits_for_its_answer() -> None:
    running: set[int] = set()
    calls = 0

    async def call(caller: int, made: int) -> None:
        nonlocal calls
        assert caller not in running
        running.add(caller)
        calls += 1
        running.discard(caller)

    rate = await hammer(call, 3, 0.02)
    assert calls >= 3
    assert rate <= calls / 0.02


async def test_what_a_call_raises_ends_the_measurement() -> None:
    async def call(caller: int, made: int) -> None:
        raise AssertionError("wrong answer")

    with pytest.raises(AssertionError, match="wrong answer"):
        await hammer(call, 2, 5.0)


async def test_what_waits_costs_no_cpu_and_what_works_does() -> None:
    costs: list[float] = []

    async def waits() -> float:
        await asyncio.sleep(0.05)
        return 1_000.0

    async def works() -> float:
        begun = process_time()
        while process_time() - begun < 0.05:
            sum(range(100))
        return 1_000.0

    assert await with_cpu(waits, costs)() == 1_000.0
    assert await with_cpu(works, costs)() == 1_000.0
    assert costs[0] < costs[1]


def test_a_percentile_is_one_of_the_figures() -> None:
    figures = [float(figure) for figure in range(100, 0, -1)]
    assert percentile(figures, 0.5) == 51.0
    assert percentile(figures, 0.99) == 100.0
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(
    ("figure", "text"), [(1234567.0, "1,234,567"), (99.96, "100"), (0.01234, "0.0123"), (-150.0, "-150")]
)
def test_numbers_are_written_with_three_digits_or_whole(figure: float, text: str) -> None:
    assert number_text(figure) == text


def test_a_result_says_whether_its_goals_were_met_unless_it_was_a_smoke_run() -> None:
    measure = Measure("turns", 50.0, "turns/s", 100.0, "raw", 0.5, (0.4, 0.6), Goal(0.6, later=0.8))
    result = Result("turns", "durable turns", (measure,), {"answered": 7})
    assert lines_of(result) == [
        "durable turns",
        "  turns: 50 turns/s · raw 100 · ratio 0.50 (0.40 to 0.60) · goal ≥ 0.6 (later 0.8) not met",
        "  answered 7",
    ]
    assert "met" not in "".join(lines_of(result, smoke=True))


def test_a_smoke_plan_is_short_and_small() -> None:
    plan = smoke_plan()
    assert (plan.rounds, plan.size(100_000, 500)) == (1, 500)
    assert Plan().size(100_000, 500) == 100_000
