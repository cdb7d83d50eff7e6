"""What the operating verbs make of a reminder: a row and the present in, its progress out.  Pure.

A verb that leaves the same grid instant owed leaves the occurrence too, so that a tick of it that runs
meanwhile still consumes it: nothing fires twice because somebody looked after it.
"""

from __future__ import annotations

from dataclasses import replace

from farro.client.errors import InvalidPayload, InvalidSchedule
from farro.providers.rows import PAUSED, SCHEDULED, Progress, ReminderRow
from farro.silo.schedules.missed import NOTE_CHARACTERS_MAX, progress_of, recompute
from farro.silo.schedules.schedule import Schedule, next_due, wake_at


def paused(row: ReminderRow, note: str | None) -> Progress:
    """Nothing fires.  What is owed stays written down; no new note keeps that of an earlier pause."""
    if note is None and row.status == PAUSED:
        note = row.note
    return replace(progress_of(row), wake_at=None, status=PAUSED, note=note)


def resumed(row: ReminderRow, now: int, note: str | None) -> Progress | None:
    """Scheduled from ``now`` on: the next grid instant, a one-shot its own.  None: the grid has ended."""
    if row.status == SCHEDULED:
        return progress_of(row) if note is None else replace(progress_of(row), note=note)
    progress = _on_grid(row, now)
    return None if progress is None else replace(progress, note=note)


def repaired(row: ReminderRow, now: int) -> Progress | None:
    """As a resume, whatever the row says is owed; a paused one stays paused.  None: the grid has ended."""
    progress = _on_grid(row, now)
    if progress is None or row.status != PAUSED:
        return progress
    return replace(progress, status=PAUSED, wake_at=None, note=row.note)


def _on_grid(row: ReminderRow, now: int) -> Progress | None:
    """:func:`recompute`, but an occurrence that stays owed keeps its number, and so does a one-shot's."""
    owed = row.next_due_at
    if owed is None or not Schedule.of_row(row).is_one_shot:
        computed = recompute(row, now=now)
        if owed is None or computed is None or computed.next_due_at != owed:
            return computed
    wakes_at = wake_at(row, owed, row.occurrence)
    return replace(progress_of(row), wake_at=wakes_at, attempts=0, status=SCHEDULED, note=None)


def triggered(row: ReminderRow, now: int, *, begun: bool) -> Progress:
    """An occurrence is owed now.

    One that is overdue and has not begun is this one.  If a tick of it has ``begun``, or none is due, it is
    a new one; it stands for the first grid instant that passed behind the running one, if any did.
    """
    if row.status == PAUSED:
        raise InvalidSchedule(
            f"reminder {row.name!r} of {row.grain_type}/{row.grain_key} is paused; resume it first"
        )
    due, occurrence = now, row.occurrence + 1
    if row.status == SCHEDULED and row.next_due_at is not None and row.next_due_at <= now:
        if begun:
            passed = next_due(Schedule.of_row(row), row.next_due_at)
            due = now if passed is None else min(passed, now)
        else:
            due, occurrence = row.next_due_at, row.occurrence
    return replace(
        progress_of(row),
        next_due_at=due,
        wake_at=now,
        occurrence=occurrence,
        attempts=0,
        status=SCHEDULED,
        note=None,
    )


def checked_note(note: str | None) -> str | None:
    """An operator's note; :class:`InvalidPayload` if it is too long, or has a NUL."""
    if note is None:
        return None
    if len(note) > NOTE_CHARACTERS_MAX:
        raise InvalidPayload(
            f"a note has at most {NOTE_CHARACTERS_MAX} characters, not {len(note)}; say it shorter"
        )
    if "\x00" in note:
        raise InvalidPayload("a note must not contain a NUL character")
    return note
