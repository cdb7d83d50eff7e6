"""Which calls are sent again, and how many."""

from __future__ import annotations

from random import Random

import pytest

from farro.client.errors import (
    CallTimeout,
    CommitOutcomeUnknown,
    Conflict,
    FarroError,
    Fenced,
    GrainCallFailed,
    NotMine,
    Overloaded,
    SiloStopping,
    SiloUnavailable,
)
from farro.client.retries import (
    PAUSE_MAX_S,
    RETRIES_FREE,
    RETRY_SHARE,
    WINDOW_S,
    RetryBudget,
    Verdict,
    pause_s,
    verdict,
)


@pytest.mark.parametrize(
    ("error", "usable", "expected"),
    [
        (SiloUnavailable("", turn_ran=False), False, Verdict.ELSEWHERE),
        (SiloUnavailable("", turn_ran=False), True, Verdict.LATER),  # another silo said so
        (SiloUnavailable(""), False, Verdict.FINAL),
        (SiloStopping(""), False, Verdict.ELSEWHERE),
        (SiloStopping(""), True, Verdict.PATIENT),
        (NotMine(""), True, Verdict.LATER),
        (Fenced(""), True, Verdict.LATER),
        (Conflict(""), True, Verdict.FINAL),
        (Overloaded(""), True, Verdict.FINAL),
        (CallTimeout("", turn_ran=False), True, Verdict.FINAL),
        (CommitOutcomeUnknown(""), True, Verdict.FINAL),
        (GrainCallFailed(""), True, Verdict.FINAL),
    ],
)
def test_only_what_certainly_did_not_run_is_sent_again(
    error: FarroError, usable: bool, expected: Verdict
) -> None:
    assert verdict(error, usable) is expected


def test_flags_count_before_classes() -> None:
    told = Fenced("a newer silo may know better")
    told.turn_ran = None
    assert verdict(told, True) is Verdict.FINAL


def test_pauses_are_full_jitter_below_a_ceiling() -> None:
    chance = Random(1)
    for attempt in (1, 2, 5, 50):
        pauses = [pause_s(attempt, chance) for _ in range(200)]
        assert 0 <= min(pauses) < max(pauses) <= PAUSE_MAX_S
        assert min(pauses) < max(pauses) / 10
    assert max(pause_s(1, chance) for _ in range(200)) <= 0.04


def taken(budget: RetryBudget, now: float, calls: int) -> int:
    count = 0
    while budget.take(now, calls):
        count += 1
        assert count < 1_000_000
    return count


def test_a_few_retries_are_free_and_then_a_tenth_of_the_calls() -> None:
    assert taken(RetryBudget(0.0), 1.0, 0) == RETRIES_FREE
    assert taken(RetryBudget(0.0), 1.0, 1_000) == RETRIES_FREE + RETRY_SHARE * 1_000


def test_the_window_slides() -> None:
    budget = RetryBudget(0.0)
    assert taken(budget, 1.0, 1_000) == RETRIES_FREE + 100
    assert taken(budget, WINDOW_S, 1_000) == 0
    assert RETRIES_FREE <= taken(budget, 1.0 + WINDOW_S, 1_000) <= RETRIES_FREE + 100
    assert taken(budget, 3.0 + 2 * WINDOW_S, 1_000) == RETRIES_FREE, "the calls are long ago"


def test_a_million_calls_of_an_hour_are_no_credit_for_one_storm() -> None:
    budget = RetryBudget(0.0)
    per_window = 1_000_000 * WINDOW_S / 3_600
    assert taken(budget, 3_600.0, 1_000_000) <= RETRIES_FREE + RETRY_SHARE * per_window + 1
