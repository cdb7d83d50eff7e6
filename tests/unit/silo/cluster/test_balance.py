"""Targets of partitions: the same everywhere, even, and stable when silos come and go."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from farro.providers.members import ClusterRows, SiloRow, SiloStatus
from farro.silo.cluster.balance import assignment, plan, shares

NUMBERS = st.sets(st.integers(1, 10_000), min_size=1, max_size=12)


def rows(silos: dict[int, SiloStatus], owners: list[int]) -> ClusterRows:
    return ClusterRows(
        1,
        tuple(SiloRow(number, f"127.0.0.1:{number}", 0, 0, None, status) for number, status in silos.items()),
        tuple(owners),
        tuple(1 for _ in owners),
    )


@settings(max_examples=30)
@given(NUMBERS)
def test_every_partition_has_a_silo_and_none_has_more_than_a_tenth_above_its_share(silos: set[int]) -> None:
    counts = shares(assignment(silos, 256))
    assert sum(counts.values()) == 256
    assert max(counts.values()) <= 1.1 * 256 / len(silos) + 1
    assert set(counts) <= silos


@settings(max_examples=30)
@given(NUMBERS)
def test_every_silo_computes_the_same_whatever_order_it_saw_them_in(silos: set[int]) -> None:
    assert assignment(sorted(silos), 64) == assignment(sorted(silos, reverse=True), 64)


@settings(max_examples=30)
@given(NUMBERS, st.integers(10_001, 20_000))
def test_a_silo_that_joins_takes_partitions_and_moves_few_others(silos: set[int], joins: int) -> None:
    before, after = assignment(silos, 256), assignment(silos | {joins}, 256)
    moved = [i for i in range(256) if before[i] != after[i]]
    to_the_new = [i for i in moved if after[i] == joins]
    assert len(moved) - len(to_the_new) <= 0.15 * 256


def test_nobody_active_means_no_target() -> None:
    assert assignment([], 4) == [0, 0, 0, 0]


def test_free_partitions_are_taken_by_their_target_those_that_calls_wait_for_first() -> None:
    found = plan(rows({7: SiloStatus.ACTIVE}, [0, 0, 0, 0]), 7, frozenset(), frozenset({2}))
    assert found.take == [2, 0, 1, 3]
    assert found.hand_over == []


def test_what_another_owns_is_not_taken() -> None:
    found = plan(rows({7: SiloStatus.ACTIVE}, [8, 0, 7, 0]), 7, frozenset(), frozenset())
    assert found.take == [1, 2, 3]


def test_a_draining_silo_hands_everything_over_and_takes_nothing() -> None:
    silos = {7: SiloStatus.DRAINING, 8: SiloStatus.ACTIVE}
    found = plan(rows(silos, [7, 0, 7, 8]), 7, frozenset({0, 2}), frozenset({1}))
    assert found.take == []
    assert found.hand_over == [0, 2]


def test_the_last_silo_that_drains_has_nobody_to_hand_over_to() -> None:
    found = plan(rows({7: SiloStatus.DRAINING}, [7, 7]), 7, frozenset({0, 1}), frozenset())
    assert found.hand_over == []


def test_what_the_store_has_under_the_number_of_a_silo_that_does_not_serve_it_is_let_go_or_taken_again() -> (
    None
):
    silos = {7: SiloStatus.DRAINING, 8: SiloStatus.ACTIVE}
    found = plan(rows(silos, [7, 7, 8, 0]), 7, frozenset({0}), frozenset())
    assert (found.let_go, found.hand_over) == ([1], [0])
    alone = plan(rows({7: SiloStatus.ACTIVE}, [7, 7, 7, 7]), 7, frozenset({0}), frozenset())
    assert (alone.let_go, alone.take) == ([], [1, 2, 3])
