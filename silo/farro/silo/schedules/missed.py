"""Late, missed, overrun: what becomes of an overdue reminder.

*Load never makes an occurrence missed; absence does.*  An occurrence is missed when it is overdue by more
than the grace, fell due more than the grace after the last sign of life of its partition's owner, and before
the present ownership began.  Anything else overdue is late, and is delivered.  Grid instants that pass while
an occurrence of the same reminder waits or runs are *overruns*.  What the action makes of both:

==================  ====================================================================================
FIRE_IMMEDIATELY    one tick for all of them, carrying count and first; then the next grid instant
SKIP, NOTIFY        none delivered, counted; NOTIFY also reports them once
FIRE_ALL            each in order, at most ``catch_up_max`` per outage, the rest counted
==================  ====================================================================================

``missed_count`` and ``first_missed_at`` of a row say what has not been delivered since the last tick that
was; the next tick carries them, and its settle clears them.  ``last_fire_at`` is that tick's due instant.

Instants are microseconds since the epoch, UTC.  Everything is computed from due instants, so a clock that is
set back delays, and repeats nothing.  A row whose cron text or zone cannot be read raises
:class:`~farro.client.errors.InvalidSchedule` wherever its grid is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from farro.client.reminders import MissedReminderAction
from farro.providers.rows import FAILED, Progress, ReminderRow
from farro.silo.schedules.cron import COUNT_MAX
from farro.silo.schedules.schedule import check_stored, count_between, next_due, wake_at

RETRY_BASE_US = 1_000_000
RETRY_MAX_US = 300_000_000
NOTE_CHARACTERS_MAX = 500

# As plain numbers, which is how rows carry them: before Python 3.12 a member costs a look-up each time.
FIRE_IMMEDIATELY = int(MissedReminderAction.FIRE_IMMEDIATELY)
SKIP = int(MissedReminderAction.SKIP)
NOTIFY = int(MissedReminderAction.NOTIFY)
FIRE_ALL = int(MissedReminderAction.FIRE_ALL)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver the owed occurrence.  ``missed_count`` and ``first_missed_at`` are what its tick carries.

    ``folded_until``: grid instants up to here are part of this tick.  ``catch_up_left``: how many more of
    this outage FIRE_ALL may deliver after it; None outside a catch-up.
    """

    due_at: int
    missed_count: int
    first_missed_at: int | None
    folded_until: int
    catch_up_left: int | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """Deliver nothing; store ``progress`` (None: the reminder is finished, delete it).

    ``missed`` occurrences from ``first_missed_at`` on are passed over; ``notify`` asks for one event of it.
    """

    progress: Progress | None
    missed: int
    first_missed_at: int
    notify: bool


Judgement = Deliver | Skip


@dataclass(frozen=True, slots=True)
class Overrun:
    """Occurrences that a settle passes over: how many, from when on, and whether an event is asked for."""

    count: int
    first_at: int
    notify: bool


def progress_of(row: ReminderRow) -> Progress:
    """The progress that a row stands at."""
    return Progress(
        row.next_due_at,
        row.wake_at,
        row.last_fire_at,
        row.occurrence,
        row.times_left,
        row.attempts,
        row.missed_count,
        row.first_missed_at,
        row.catch_up_left,
        row.status,
        row.note,
    )


def judge(
    row: ReminderRow,
    *,
    now: int,
    grace_us: int,
    alive_until: int | None,
    ownership_began: int,
    catch_up_max: int,
) -> Judgement:
    """What to do with a reminder that is due: ``row.next_due_at <= now``.

    ``alive_until``: the last sign of life of the partition's previous owner (None: there never was one);
    ``ownership_began``: when this ownership, thaw or clock jump began.  Call it when the tick is about to
    start, so that ``now`` covers its time in the queue.  Raises ``ValueError`` for a row that owes nothing.
    """
    due = row.next_due_at
    if due is None:
        raise ValueError(f"reminder {row.name!r} of {row.grain_type}/{row.grain_key} owes no occurrence")
    check_stored(row)
    lived = -1 << 63 if alive_until is None else alive_until
    fell_due = wake_at(row, due, row.occurrence)
    missed = now - fell_due > grace_us and fell_due > lived + grace_us and fell_due < ownership_began
    if row.action == FIRE_ALL:
        return _judge_all(row, due, now, missed, catch_up_max)
    if not missed:
        if row.action != FIRE_IMMEDIATELY:
            return Deliver(due, row.missed_count, row.first_missed_at, due)
        behind = count_between(row, due, now)
        first = row.first_missed_at
        if behind and first is None:
            first = next_due(row, due)
        return Deliver(due, _capped(row.missed_count + behind), first, max(due, now))
    if row.action == FIRE_IMMEDIATELY:
        count = _capped(row.missed_count + count_between(row, due, now) + 1)
        return Deliver(due, count, _first(row.first_missed_at, due), max(due, now))
    return _skip(row, due, now, notify=row.action == NOTIFY)


def still_stands(row: ReminderRow, judged: Deliver, *, judged_at: int, now: int, grace_us: int) -> bool:
    """Would :func:`judge` decide now what it decided at ``judged_at``, all else being as it was then?

    Only two things come with time alone: another grid instant, and the end of the grace.
    """
    upcoming = next_due(row, judged.folded_until)
    if upcoming is not None and upcoming <= now:
        return False
    missed_from = wake_at(row, judged.due_at, row.occurrence) + grace_us
    return (judged_at > missed_from) is (now > missed_from)


def _is_one_shot(row: ReminderRow) -> bool:
    return row.period_us is None and row.cron is None


def _judge_all(row: ReminderRow, due: int, now: int, missed: bool, catch_up_max: int) -> Judgement:
    if not missed and row.catch_up_left is None:
        return Deliver(due, row.missed_count, row.first_missed_at, due)
    left = catch_up_max if row.catch_up_left is None else row.catch_up_left
    if left <= 0 and not _is_one_shot(row):  # a one-shot is never lost
        return _skip(row, due, now, notify=False)
    return Deliver(due, row.missed_count, row.first_missed_at, due, max(left - 1, 0))


def _skip(row: ReminderRow, due: int, now: int, *, notify: bool) -> Skip:
    missed = _capped(1 + count_between(row, due, now))
    upcoming = next_due(row, max(due, now))
    if upcoming is None:
        return Skip(None, missed, due, notify)
    progress = replace(
        _moved(row, upcoming),
        missed_count=_capped(row.missed_count + missed),
        first_missed_at=_first(row.first_missed_at, due),
        note=row.note,
    )
    return Skip(progress, missed, due, notify)


def overrun(row: ReminderRow, *, judged: Deliver, finished_at: int) -> Overrun | None:
    """What :func:`settle_delivered` passes over under SKIP and NOTIFY, or None: NOTIFY reports it."""
    if row.action != SKIP and row.action != NOTIFY:
        return None
    first = next_due(row, judged.folded_until)
    if first is None or first > finished_at:
        return None
    count = _capped(count_between(row, judged.folded_until, finished_at))
    return Overrun(count, first, row.action == NOTIFY)


def settle_delivered(
    row: ReminderRow, *, judged: Deliver, finished_at: int, catch_up_max: int
) -> Progress | None:
    """Where a reminder stands after its tick's turn returned; None when it is finished and its row goes.

    ``row`` is the row that was judged; ``finished_at`` is when the turn's code ended.
    """
    times_left = None if row.times_left is None else row.times_left - 1
    upcoming = next_due(row, judged.folded_until)
    if upcoming is None or times_left == 0 or _is_one_shot(row):
        return None  # a one-shot is finished even when an operator triggered it before its time
    passed, first_passed, left = 0, None, None
    if upcoming <= finished_at:
        if row.action == FIRE_ALL:
            left = catch_up_max if judged.catch_up_left is None else judged.catch_up_left
        if left == 0 or row.action == SKIP or row.action == NOTIFY:
            first_passed = upcoming
            passed = _capped(count_between(row, judged.folded_until, finished_at))
            upcoming, left = next_due(row, finished_at), None
            if upcoming is None:
                return None
    occurrence = row.occurrence + 1
    return Progress(
        next_due_at=upcoming,
        wake_at=wake_at(row, upcoming, occurrence),
        last_fire_at=judged.due_at,
        occurrence=occurrence,
        times_left=times_left,
        missed_count=passed,
        first_missed_at=first_passed,
        catch_up_left=left,
    )


def settle_failed(row: ReminderRow, *, now: int, max_attempts: int, chance: Random, reason: str) -> Progress:
    """Where a reminder stands after its tick's turn raised, for ``reason``.

    Up to ``max_attempts`` the same occurrence is tried again after 1 s · 2ⁿ, at most 5 minutes, of which
    ``chance`` takes off up to a half.  Then a repeating reminder goes on to the first grid instant after
    ``now`` and a one-shot, or one whose grid has ended, becomes ``failed``.  The note keeps the reason.
    """
    attempts = row.attempts + 1
    reason = " ".join(reason.split())[:NOTE_CHARACTERS_MAX]
    if attempts < max_attempts:
        delay = min(RETRY_BASE_US << min(row.attempts, 32), RETRY_MAX_US)
        wake = now + delay - int(delay * chance.random() / 2)
        note = f"attempt {attempts} of {max_attempts} failed: {reason}"
        return replace(progress_of(row), wake_at=wake, attempts=attempts, note=note)
    note = f"gave up after {attempts} attempts: {reason}"
    check_stored(row)
    due = now if row.next_due_at is None else row.next_due_at
    upcoming = next_due(row, max(due, now))
    if _is_one_shot(row) or upcoming is None:
        return replace(progress_of(row), wake_at=None, attempts=attempts, status=FAILED, note=note)
    behind = count_between(row, due, now)
    first = next_due(row, due) if behind else None
    return replace(
        _moved(row, upcoming),
        missed_count=_capped(row.missed_count + behind),
        first_missed_at=_first(row.first_missed_at, first),
        note=note,
    )


def recompute(row: ReminderRow, *, now: int) -> Progress | None:
    """Put a row that owes nothing (a null next due, a resumed pause) back on its grid; None: none is left.

    The next grid instant after ``now`` and after the last one delivered; a one-shot keeps its own instant.
    """
    check_stored(row)
    if _is_one_shot(row):
        upcoming = row.start_at if row.last_fire_at is None else None
    else:
        upcoming = next_due(row, now if row.last_fire_at is None else max(now, row.last_fire_at))
    return None if upcoming is None else _moved(row, upcoming)


def _moved(row: ReminderRow, due: int) -> Progress:
    """The next occurrence, owed at ``due``, with nothing tried yet."""
    occurrence = row.occurrence + 1
    return Progress(
        next_due_at=due,
        wake_at=wake_at(row, due, occurrence),
        last_fire_at=row.last_fire_at,
        occurrence=occurrence,
        times_left=row.times_left,
    )


def _first(stored: int | None, now_found: int | None) -> int | None:
    return now_found if stored is None else stored


def _capped(count: int) -> int:
    return min(count, COUNT_MAX)
