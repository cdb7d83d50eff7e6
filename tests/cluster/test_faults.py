"""The plan of faults: the same from the same seed, every kind in it, never everybody in trouble at once."""

from __future__ import annotations

from random import Random

import pytest

from tests.cluster.faults import AT_ONCE_MAX, OF_ALL, Kind, draw

EVERY = frozenset(Kind)


def test_a_seed_draws_the_same_plan_and_another_seed_another() -> None:
    assert draw(Random(7), 120, 3, EVERY) == draw(Random(7), 120, 3, EVERY)
    assert draw(Random(7), 120, 3, EVERY) != draw(Random(8), 120, 3, EVERY)


@pytest.mark.parametrize("seed", range(20))
def test_five_minutes_have_every_kind_and_end_in_time(seed: int) -> None:
    plan = draw(Random(seed), 300, 3, EVERY)
    assert {fault.kind for fault in plan} == EVERY
    assert all(fault.at_s + fault.lasts_s <= 300 for fault in plan)
    assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)


@pytest.mark.parametrize(("places", "at_once"), [(1, 1), (2, 1), (3, AT_ONCE_MAX), (5, AT_ONCE_MAX)])
def test_one_silo_is_left_alone_unless_the_fault_is_of_all(places: int, at_once: int) -> None:
    for seed in range(20):
        plan = draw(Random(seed), 300, places, EVERY)
        for fault in plan:
            others = [
                other
                for other in plan
                if other is not fault and other.at_s <= fault.at_s < other.at_s + other.lasts_s
            ]
            if fault.kind in OF_ALL:
                assert (fault.place, others) == (None, [])
            else:
                assert len({other.place for other in others}) < at_once
                assert fault.place not in {other.place for other in others}


def test_only_the_kinds_asked_for_are_drawn() -> None:
    kinds = frozenset({Kind.KILL, Kind.RESET_FRONT})
    assert {fault.kind for fault in draw(Random(1), 60, 2, kinds)} == kinds
    with pytest.raises(ValueError, match="at least one"):
        draw(Random(1), 60, 2, frozenset())
