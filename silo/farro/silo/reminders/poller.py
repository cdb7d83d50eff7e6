"""What to read from the table, and what of it to hold.  Pure: pages come in, a plan goes out.

One index range per priority covers what is due and what falls due within the look-ahead window.  What is due
is taken by priority, then due time; the room that is left is filled with what comes next, by time alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farro.client.reminders import ReminderPriority
from farro.providers.rows import PollQuery, ReminderRow


@dataclass(frozen=True, slots=True)
class Page:
    """Rows to hold, best first, and how far the table is known.

    ``complete_until``: every row that wakes up to then is in ``rows`` (schedule time).  It lies in the past
    when more is due than there was room for.
    """

    rows: list[ReminderRow]
    complete_until: int


def queries(until: int, limit: int, owned: frozenset[int], partitions: int) -> list[PollQuery]:
    """One index range per priority, each at most ``limit`` rows that wake by ``until``."""
    only = None if len(owned) == partitions else owned
    return [
        PollQuery(priority=int(priority), wake_until=until, limit=limit, partitions=only)
        for priority in ReminderPriority
    ]


def plan(
    answers: Sequence[Sequence[ReminderRow]], *, now: int, until: int, limit: int, by_priority: bool
) -> Page:
    """Choose at most ``limit`` rows of the answers (one list per priority, by wake time)."""
    due: list[ReminderRow] = []
    coming: list[ReminderRow] = []
    complete = until
    for rows in answers:
        for row in rows:
            (due if _wake(row) <= now else coming).append(row)
        if len(rows) >= limit:
            complete = min(complete, _wake(rows[-1]) - 1)
    due.sort(key=lambda row: (row.priority if by_priority else 0, _wake(row), row.registration))
    coming.sort(key=lambda row: (_wake(row), row.registration))
    chosen = (due + coming)[:limit]
    left_out = (due + coming)[limit:]
    if left_out:
        complete = min(complete, min(_wake(row) for row in left_out) - 1)
    return Page(chosen, complete)


def _wake(row: ReminderRow) -> int:
    """Polled rows have a wake time; a row without one would be a store breaking its contract."""
    assert row.wake_at is not None
    return row.wake_at
