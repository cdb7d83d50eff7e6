"""A silo's own lease, and what it sees of the others'."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from farro.providers.members import SiloRow, SiloStatus
from farro.silo.cluster.lease import EXPIRED_AT, Lease, Stage
from farro.silo.cluster.observing import Observer

OTHER = SiloRow(2, "127.0.0.1:2", 0, 0, None, SiloStatus.ACTIVE, renewals=5)


@pytest.mark.parametrize(
    ("age", "stage"),
    [
        (0, Stage.HEALTHY),
        (1.99, Stage.HEALTHY),
        (2, Stage.SUSPECT),
        (3.49, Stage.SUSPECT),
        (3.5, Stage.FROZEN),
        (100, Stage.FROZEN),
    ],
)
def test_a_lease_of_four_seconds_ages_in_stages(age: float, stage: Stage) -> None:
    assert Lease(4.0, now=1000).stage(1000 + age) is stage


def test_it_counts_from_the_moment_before_the_renewal_was_sent() -> None:
    lease = Lease(4.0, now=0)
    lease.renewed(sent_at=10)
    assert lease.freezes_at == 13.5
    lease.renewed(sent_at=9)  # an answer that was overtaken
    assert lease.freezes_at == 13.5


def test_it_says_when_its_stage_changes_next() -> None:
    lease = Lease(4.0, now=0)
    assert [lease.next_change(now) for now in (0, 2, 3.5)] == [2, 3.5, math.inf]


def test_a_frozen_silo_thaws_with_the_next_renewal() -> None:
    lease = Lease(4.0, now=0)
    assert lease.stage(60) is Stage.FROZEN
    lease.renewed(sent_at=59.9)
    assert lease.stage(60) is Stage.HEALTHY


def test_a_silo_alone_by_the_rules_never_freezes() -> None:
    assert Lease(math.inf, now=0).stage(1e9) is Stage.HEALTHY


def test_a_silo_stops_before_anybody_may_take_over() -> None:
    lease, observer = Lease(4.0, now=0), Observer(1, 4.0)
    observer.saw([OTHER], 0.0)  # the earliest moment at which this renewal can have been seen
    seen_expired = next(t / 1000 for t in range(0, 10_000) if observer.saw([OTHER], t / 1000))
    assert seen_expired == pytest.approx(4.0 * EXPIRED_AT, abs=0.002)
    assert lease.freezes_at < seen_expired


def test_a_counter_that_moves_is_a_living_silo() -> None:
    observer = Observer(1, 4.0)
    for second in range(100):
        assert observer.saw([replace(OTHER, renewals=second)], second) == []


def test_wall_clocks_are_never_looked_at() -> None:
    observer = Observer(1, 4.0)
    observer.saw([OTHER], 0)
    assert observer.saw([replace(OTHER, renewed_at=-(10**15))], 3.9) == []
    assert observer.saw([replace(OTHER, renewed_at=10**18)], 4.1) == [replace(OTHER, renewed_at=10**18)]


def test_an_observer_that_was_cut_off_starts_over() -> None:
    observer = Observer(1, 4.0)
    observer.saw([OTHER], 0)
    observer.start_over(100)
    assert observer.saw([OTHER], 103) == []
    assert observer.quiet_s(2, 103) == 3
    assert observer.saw([OTHER], 104.1) == [OTHER]


def test_itself_those_that_have_ended_and_those_without_address_do_not_expire() -> None:
    observer = Observer(1, 4.0)
    silos = [
        replace(OTHER, number=1),
        replace(OTHER, number=3, status=SiloStatus.DEAD),
        replace(OTHER, number=4, address=""),
    ]
    observer.saw(silos, 0)
    assert observer.saw(silos, 1000) == []
