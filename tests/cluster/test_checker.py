"""The checker notices each violation that it knows, and sees none where nothing went wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farro.client.reminders import MissedReminderAction
from tests.cluster.checker import Findings, check
from tests.cluster.history import (
    ChimeSeen,
    CommitSeen,
    History,
    LedgerSeen,
    Made,
    Read,
    RowSeen,
    Stored,
    TickSeen,
)

S = 1_000_000
NOW = 1_000 * S
LATE = 7  # what a tick of these examples begins after its due instant, in microseconds


def made(call: int, place: int | None, at_s: float, *, took_s: float = 0.1, **more: object) -> Made:
    return replace(Made(call, "l", 5, at_s, at_s + took_s, 10.0, place), **more)  # type: ignore[arg-type]


def ledger(*calls: int, version: int | None = None) -> LedgerSeen:
    return LedgerSeen("l", len(calls) if version is None else version, tuple((call, 5, 1) for call in calls))


def tick(occurrence: int, due_s: int, *, missed: int = 0, early: bool = False) -> TickSeen:
    return TickSeen(occurrence, due_s * S, due_s * S + (-1 if early else LATE), missed)


def chime(*ticks: TickSeen, next_s: int | None = 999, missed: int = 0, action: int = 1) -> ChimeSeen:
    row = None if next_s is None else RowSeen(990 * S, next_s * S, missed, "scheduled")
    return ChimeSeen("c", action, S, 3, len(ticks), tuple(ticks), row)


def commit(version: int, epoch: int, *, by: str = "a", taken_by: str = "a") -> CommitSeen:
    return CommitSeen(3, "ledgers/l", version, epoch, taken_by, by)


def found(
    history: History,
    *ledgers: LedgerSeen,
    chimes: tuple[ChimeSeen, ...] = (),
    commits: tuple[CommitSeen, ...] | None = None,
) -> dict[str, int]:
    """How many violations of each kind; kinds without are left out."""
    findings = check(history, Stored(ledgers, chimes, NOW, commits), margin_s=5.0)
    return {name: len(each) for name in Findings.__slots__ if (each := getattr(findings, name))}


def test_a_run_in_which_nothing_went_wrong_has_no_findings() -> None:
    history = History(
        [
            made(1, 0, 1.0),
            made(2, 1, 2.0),
            made(3, None, 3.0, turn_ran=None, error="timeout"),
            made(4, None, 3.5, turn_ran=False, error="overloaded"),
            made(5, 3, 4.0),
        ],
        [Read("l", 2.5, 2.6, 2), Read("l", 4.5, 4.6, 4)],
    )
    commits = (commit(1, 1), commit(2, 1), commit(3, 2, by="b", taken_by="b"))
    finished = chime(tick(1, 990), tick(2, 991), tick(3, 992), next_s=None)
    running = chime(tick(1, 990), tick(2, 993, missed=2), next_s=994)
    assert found(history, ledger(1, 2, 3, 5), chimes=(finished, running), commits=commits) == {}


@pytest.mark.parametrize(
    ("calls", "stored", "kinds"),
    [
        pytest.param([made(1, 0, 1.0)], (), {"lost": 1}, id="answered, and not there"),
        pytest.param([made(1, 0, 1.0), made(2, 1, 2.0)], (2, 1), {"lost": 2}, id="at other places"),
        pytest.param([made(1, None, 1.0, turn_ran=True)], (), {"lost": 1}, id="ran, and not there"),
        pytest.param([made(1, 0, 1.0)], (1, 1), {"twice": 1, "lost": 1}, id="there twice"),
        pytest.param([made(1, 0, 1.0)], (1, 9), {"twice": 1}, id="nobody sent it"),
        pytest.param(
            [made(1, None, 1.0, turn_ran=False)], (1,), {"ran_after_all": 1}, id="was said not to have run"
        ),
        pytest.param(
            [made(1, None, 1.0, turn_ran=False, relayed=True)],
            (1,),
            {},
            id="of a relayed call that says little",
        ),
        pytest.param([made(1, 1, 1.0), made(2, 0, 2.0)], (2, 1), {"out_of_order": 1}, id="before its elder"),
        pytest.param([made(1, 0, 1.0, took_s=15.2)], (1,), {"hung": 1}, id="long after its deadline"),
    ],
)
def test_a_call_whose_outcome_is_not_what_was_told(
    calls: list[Made], stored: tuple[int, ...], kinds: dict[str, int]
) -> None:
    assert found(History(calls), ledger(*stored)) == kinds


def test_a_read_that_does_not_see_an_answered_call_is_stale() -> None:
    history = History([made(1, 0, 1.0)], [Read("l", 1.05, 1.2, 0), Read("l", 1.2, 1.3, 0)])
    assert found(history, ledger(1)) == {"stale_reads": 1}, "the first began before the answer came"


@pytest.mark.parametrize(
    "commits",
    [
        pytest.param((commit(1, 2), commit(2, 1)), id="an older epoch"),
        pytest.param((commit(1, 1), commit(3, 1)), id="a version that was skipped"),
        pytest.param((commit(1, 1), commit(1, 1)), id="a version that came again"),
        pytest.param((commit(1, 1, by="b"),), id="not by who took it"),
        pytest.param((commit(1, 1, taken_by=None),), id="taken by nobody"),  # type: ignore[arg-type]
    ],
)
def test_a_stale_commit(commits: tuple[CommitSeen, ...]) -> None:
    assert found(History(), commits=commits) == {"stale_commits": 1}


def test_a_version_that_no_entry_explains() -> None:
    assert found(History([made(1, 0, 1.0)]), ledger(1, version=2)) == {"stale_commits": 1}


ALL = int(MissedReminderAction.FIRE_ALL)
ONE = int(MissedReminderAction.FIRE_IMMEDIATELY)


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        pytest.param(chime(tick(1, 990, early=True), next_s=991, action=ALL), {"ticks_early": 1}, id="early"),
        pytest.param(
            chime(tick(1, 990), tick(1, 991), next_s=992), {"ticks_twice": 1}, id="occurrence again"
        ),
        pytest.param(
            chime(tick(1, 990), tick(2, 990), next_s=991), {"ticks_twice": 1, "ticks_lost": 1}, id="due again"
        ),
        pytest.param(chime(tick(1, 990), tick(2, 992), next_s=993), {"ticks_lost": 1}, id="one between"),
        pytest.param(
            chime(tick(1, 990), tick(2, 992, missed=2), next_s=993),
            {"ticks_lost": 1},
            id="more counted than absent",
        ),
        pytest.param(
            chime(tick(1, 990, missed=1), tick(2, 992), next_s=993, action=ONE), {}, id="one tick for two"
        ),
        pytest.param(
            chime(tick(1, 990), tick(2, 992), next_s=993, action=ONE), {"ticks_lost": 1}, id="for one"
        ),
        pytest.param(chime(tick(1, 992), next_s=993), {"ticks_lost": 1}, id="before the first"),
        pytest.param(chime(tick(1, 990), next_s=995), {"ticks_lost": 1}, id="after the last"),
        pytest.param(chime(next_s=995), {"ticks_lost": 1}, id="all"),
        pytest.param(chime(next_s=995, missed=5), {}, id="all, and counted"),
        pytest.param(chime(tick(1, 990), next_s=None), {"ticks_lost": 1}, id="the reminder itself"),
        pytest.param(chime(tick(1, 900), tick(2, 901), next_s=902), {"ticks_lost": 2}, id="forgotten"),
    ],
)
def test_ticks(seen: ChimeSeen, kinds: dict[str, int]) -> None:
    assert found(History(), chimes=(seen,)) == kinds


def test_a_reminder_that_failed_is_lost() -> None:
    failed = replace(chime(next_s=990), row=RowSeen(990 * S, None, 0, "failed"))
    assert found(History(), chimes=(failed,)) == {"ticks_lost": 1}


def test_the_text_counts_every_kind_and_shows_the_first_of_each() -> None:
    text = str(check(History([made(1, 0, 1.0)]), Stored((), (), NOW), margin_s=5.0))
    assert "  lost: 1\n    l: call 1 was answered with place 0\n  twice: 0" in text
