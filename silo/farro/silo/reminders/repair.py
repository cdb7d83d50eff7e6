"""Puts right what no poll can see: rows without wake or due time, or of an unknown priority.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from farro.client.errors import InvalidSchedule
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.providers.rows import FAILED, Progress, ReminderRow
from farro.silo.schedules.missed import NOTE_CHARACTERS_MAX, progress_of, recompute


@dataclass(frozen=True, slots=True)
class Repair:
    """What a broken row becomes: ``progress`` None deletes it (its grid has ended)."""

    progress: Progress | None
    note: str


def repaired(row: ReminderRow, now: int) -> Repair:
    """The repair of one row that the store calls unpollable.

    A missing due time is computed anew: the next grid instant after now.  What cannot be read becomes
    ``failed``, once, and is thereby out of the way.
    """
    if row.priority not in tuple(ReminderPriority) or row.action not in tuple(MissedReminderAction):
        return _failed(row, f"priority {row.priority} or action {row.action} is unknown")
    if row.next_due_at is not None:
        return Repair(replace(progress_of(row), wake_at=row.next_due_at), "wake time restored")
    try:
        progress = recompute(row, now=now)
    except InvalidSchedule as error:
        return _failed(row, str(error))
    return Repair(progress, "next due computed anew" if progress is not None else "its grid has ended")


def _failed(row: ReminderRow, reason: str) -> Repair:
    note = f"unreadable: {reason}"[:NOTE_CHARACTERS_MAX]
    return Repair(replace(progress_of(row), wake_at=None, status=FAILED, note=note), note)
