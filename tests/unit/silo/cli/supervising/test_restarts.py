"""What follows the end of a supervised process."""

from __future__ import annotations

from random import Random

import pytest

from farro.silo.cli.supervising.restarts import (
    Again,
    GiveUp,
    RestartLimits,
    Restarts,
    Stays,
    Verdict,
    how_it_ended,
)

LIMITS = RestartLimits(first_s=1, longest_s=30, calm_s=60, start_failures_max=5)


def restarts(seed: int = 1) -> Restarts:
    return Restarts(LIMITS, Random(seed))


def wait_of(verdict: Verdict) -> float:
    assert isinstance(verdict, Again)
    return verdict.after_s


def crash(place: Restarts, at: float, *, ready_s: float = 1, code: int = 1) -> Verdict:
    """It becomes ready at ``at`` and dies ``ready_s`` later."""
    place.ready(at)
    return place.ended(code, at + ready_s, others_serve=False)


def test_the_wait_doubles_up_to_the_longest_and_lies_in_its_upper_half() -> None:
    for seed in range(50):
        place = restarts(seed)
        waits = [wait_of(crash(place, at=float(number))) for number in range(12)]
        for number, wait in enumerate(waits):
            longest = min(30, 2**number)
            assert longest / 2 <= wait <= longest


def test_processes_that_fall_together_do_not_start_together() -> None:
    assert len({wait_of(crash(restarts(seed), at=0)) for seed in range(20)}) == 20


def test_a_calm_time_lets_it_begin_again_with_the_first_wait() -> None:
    place = restarts()
    for number in range(6):
        crash(place, at=float(number))
    assert wait_of(crash(place, at=10, ready_s=59.9)) > 16
    assert wait_of(crash(place, at=100, ready_s=60)) <= 1


def test_a_thousand_failures_in_a_row_are_no_overflow() -> None:
    place = restarts()
    assert all(wait_of(crash(place, at=float(number))) <= 30 for number in range(1_500))


@pytest.mark.parametrize(("code", "gives_up_with"), [(1, 1), (-9, 1), (0, 1)])
def test_five_failures_in_a_row_at_the_start_end_everything(code: int, gives_up_with: int) -> None:
    place = restarts()
    verdicts = [place.ended(code, 0, others_serve=False) for _ in range(5)]
    assert all(isinstance(verdict, Again) for verdict in verdicts[:4])
    assert verdicts[4] == GiveUp(gives_up_with)


def test_bad_usage_ends_everything_at_once() -> None:
    assert restarts().ended(2, 0, others_serve=False) == GiveUp(2)


def test_bad_usage_of_one_that_was_ready_is_a_crash_like_any_other() -> None:
    assert isinstance(crash(restarts(), at=0, code=2), Again)


def test_while_others_serve_it_is_tried_for_ever() -> None:
    place = restarts()
    verdicts = [place.ended(2, 0, others_serve=True) for _ in range(100)]
    assert all(isinstance(verdict, Again) for verdict in verdicts)
    assert place.ended(1, 0, others_serve=False) == GiveUp(1), "everything ends when nobody serves any more"


def test_becoming_ready_ends_a_row_of_failed_starts() -> None:
    place = restarts()
    for _ in range(4):
        place.ended(1, 0, others_serve=False)
    crash(place, at=1)
    assert isinstance(place.ended(1, 2, others_serve=False), Again)


def test_one_that_drained_by_somebodys_wish_stays() -> None:
    assert crash(restarts(), at=0, code=0) == Stays()


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    place = restarts()
    place.ready(0)
    place.asked_to_end()
    assert wait_of(place.ended(1, 1, others_serve=True)) <= 1


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (2, "exit code 2"), (-9, "SIGKILL"), (-63, "signal 63")]
)
def test_an_end_is_told_by_exit_code_or_signal(code: int, words: str) -> None:
    assert how_it_ended(code) == words
