"""What to read from the table, and what of it to hold.  Pure: pages come in, a plan goes out.

One index range per priority covers what is due and what falls due within the look-ahead window.  What is due
is taken by priority, then due time; the room that is left is filled with what comes next, by time alone.  An
eighth of a page that is full of what is due goes to the oldest rows of lower priority that have waited too
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farro.client.reminders import ReminderPriority
from farro.providers.rows import PollQuery, ReminderRow
from farro.silo.reminders.due_queue import AGED_ONE_IN


@dataclass(frozen=True, slots=True)
class Page:
    """Rows to hold, best first, and how far the table is known, for the priorities that were read.

    ``aged``: rows that have a place although they rank too low for one.  ``complete_until``: by priority,
    every row that wakes up to then is in the page (schedule time).  It lies in the past when more is due than
    there was room for.
    """

    rows: list[ReminderRow]
    aged: list[ReminderRow]
    complete_until: list[int]


def queries(
    until: int, limit: int, owned: frozenset[int], partitions: int, priorities: int = len(ReminderPriority)
) -> list[PollQuery]:
    """One index range for each of the first ``priorities``, at most ``limit`` rows that wake by ``until``."""
    only = None if len(owned) == partitions else owned
    return [
        PollQuery(priority=int(priority), wake_until=until, limit=limit, partitions=only)
        for priority in list(ReminderPriority)[:priorities]
    ]


def plan(
    answers: Sequence[Sequence[ReminderRow]],
    *,
    now: int,
    until: int,
    limit: int,
    by_priority: bool,
    wait_max_us: int,
) -> Page:
    """Choose at most ``limit`` rows of the answers (one list per priority, by wake time)."""
    due: list[ReminderRow] = []
    coming: list[ReminderRow] = []
    complete = [until] * len(answers)
    for lane, rows in enumerate(answers):
        for row in rows:
            (due if _wake(row) <= now else coming).append(row)
        if len(rows) >= limit:
            complete[lane] = min(until, _wake(rows[-1]) - 1)
    due.sort(key=lambda row: (row.priority if by_priority else 0, _wake(row), row.registration))
    coming.sort(key=lambda row: (_wake(row), row.registration))
    chosen, left_out = (due + coming)[:limit], (due + coming)[limit:]
    aged = _aged(chosen[0], due[limit:], now - wait_max_us, limit) if by_priority and left_out else []
    if aged:
        has_a_place = set(map(id, aged))
        left_out = [*chosen[limit - len(aged) :], *(row for row in left_out if id(row) not in has_a_place)]
        chosen = chosen[: limit - len(aged)]
    for row in left_out:
        complete[row.priority] = min(complete[row.priority], _wake(row) - 1)
    return Page(chosen, aged, complete)


def _aged(best: ReminderRow, left_out: list[ReminderRow], before: int, limit: int) -> list[ReminderRow]:
    """The oldest due rows of lower priority than the best one, of those that fell due ``before``."""
    lower = [row for row in left_out if row.priority > best.priority and _wake(row) < before]
    return sorted(lower, key=_wake)[: limit // AGED_ONE_IN]


def _wake(row: ReminderRow) -> int:
    """Polled rows have a wake time; a row without one would be a store breaking its contract."""
    assert row.wake_at is not None
    return row.wake_at
