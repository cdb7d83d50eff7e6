"""Rows and commits as plain frozen values: the language between a silo and any store.

Instants (``*_at``) and durations (``*_us``) are integer microseconds, instants since the epoch in UTC.
A provider is opened for one service id; rows carry it only inside the store.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, IntEnum

from farro.providers.values import value

SCHEDULED = "scheduled"
PAUSED = "paused"
FAILED = "failed"


@value(frozen=True, slots=True)
class GrainRow:
    """One grain as stored.  ``version`` moves with every commit of the grain, changed state or not.

    ``state`` None: the grain has (no longer) a state.  A destroyed grain stays as a row without state whose
    ``incarnation`` has grown, so that a straggling commit for the old one still collides.
    """

    grain_type: str
    grain_key: str
    partition: int
    version: int
    incarnation: int
    layout: int
    state: bytes | None


@value(frozen=True, slots=True)
class ReminderRow:
    """One reminder as stored (design/reminders.md, "The row")."""

    grain_type: str
    grain_key: str
    partition: int
    name: str
    operation: str
    key: str | None
    args: bytes
    start_at: int
    period_us: int | None  # None and cron None: a one-shot
    cron: str | None
    timezone: str
    day_match: str
    until_at: int | None
    times_left: int | None
    jitter_us: int
    next_due_at: int | None  # the grid instant that is owed
    wake_at: int | None  # what is polled: next_due_at (+ jitter), a back-off, or None for paused and failed
    last_fire_at: int | None
    priority: int
    action: int
    registration: int  # changes whenever the reminder is registered anew; grows
    occurrence: int
    attempts: int = 0
    missed_count: int = 0
    first_missed_at: int | None = None
    catch_up_left: int | None = None  # FIRE_ALL: how many of this outage may still be delivered
    status: str = SCHEDULED
    note: str | None = None


@value(frozen=True, slots=True)
class Progress:
    """The part of a reminder row that delivery moves.  An operator's fields are not in it."""

    next_due_at: int | None
    wake_at: int | None
    last_fire_at: int | None
    occurrence: int
    times_left: int | None = None
    attempts: int = 0
    missed_count: int = 0
    first_missed_at: int | None = None
    catch_up_left: int | None = None
    status: str = SCHEDULED
    note: str | None = None


@value(frozen=True, slots=True)
class Settle:
    """Consume ``(registration, occurrence)`` of a reminder.

    The row moves to ``progress``, or is deleted when that is None.  A row that is gone or has another
    registration or occurrence is left alone; the rest of the commit still holds.  A paused row moves too, but
    stays paused: its status and note stay and its ``wake_at`` stays None; only ``by_operator`` wakes it.
    """

    name: str
    registration: int
    occurrence: int
    progress: Progress | None
    by_operator: bool = False


class PutMode(Enum):
    """How a put treats a row of the same name."""

    REPLACE = "replace"
    IF_MISSING = "if_missing"  # an existing row is left untouched
    KEEP_PROGRESS = "keep_progress"
    # keep_progress: when the existing row has the same cron text, zone and day_match and is not failed, its
    # start_at, next_due_at, wake_at, last_fire_at, occurrence, registration, attempts, missed fields, status
    # and note stay; the rest is replaced.  Otherwise it is a REPLACE.  See put_over.


def put_over(existing: ReminderRow | None, row: ReminderRow, mode: PutMode) -> ReminderRow:
    """The row that stands after a put: the reference that every store's own language must agree with."""
    if existing is None or mode is PutMode.REPLACE:
        return row
    if mode is PutMode.IF_MISSING:
        return existing
    same_schedule = (existing.cron, existing.timezone, existing.day_match) == (
        row.cron,
        row.timezone,
        row.day_match,
    )
    if row.cron is None or not same_schedule or existing.status == FAILED:
        return row
    return replace(
        row,
        start_at=existing.start_at,
        next_due_at=existing.next_due_at,
        wake_at=existing.wake_at,
        last_fire_at=existing.last_fire_at,
        registration=existing.registration,
        occurrence=existing.occurrence,
        attempts=existing.attempts,
        missed_count=existing.missed_count,
        first_missed_at=existing.first_missed_at,
        catch_up_left=existing.catch_up_left,
        status=existing.status,
        note=existing.note,
    )


@value(frozen=True, slots=True)
class PutReminder:
    row: ReminderRow
    mode: PutMode = PutMode.REPLACE


@value(frozen=True, slots=True)
class DeleteReminder:
    name: str


@value(frozen=True, slots=True)
class DeleteOperation:
    """Every reminder of one operation, whatever its key."""

    operation: str


@value(frozen=True, slots=True)
class EditReminder:
    """An operator's change; fields left at None stay.  A row that is gone is no error here."""

    name: str
    priority: int | None = None
    action: int | None = None


ReminderChange = PutReminder | DeleteReminder | DeleteOperation | EditReminder


@value(frozen=True, slots=True)
class EventRow:
    """One event to append to a stream, in order.  The store numbers it within the partition."""

    stream: str
    payload: bytes
    at: int


@value(frozen=True, slots=True)
class OutboxRow:
    """One message a turn leaves for another grain (the durable ``tell``).  Numbered within the partition."""

    target_type: str
    target_key: str
    method: str
    args: bytes
    at: int


@value(frozen=True, slots=True)
class Watermark:
    """This commit consumes message ``position`` of ``source``; a grain takes each source in rising order.

    A stored position at or above it means that the message has had its effect: the member is a DUPLICATE.
    """

    source: str
    position: int


@value(frozen=True, slots=True)
class RequestRow:
    """This commit answers a caller's request for the first time; ``answer`` is the packed result.

    A request that its grain has answered before makes the member REPEATED, and the verdict carries that
    answer.
    """

    request_id: str
    answer: bytes
    at: int


@value(frozen=True, slots=True)
class GrainWrite:
    """What a turn does to its grain's row.

    ``expected_version`` 0: the row must not exist yet.  ``writes_state`` False keeps the stored state and
    layout.  ``destroy``: state and every reminder of the grain go (before the commit's own reminder changes
    would apply, which must be empty then); the incarnation grows by one.
    """

    expected_version: int
    writes_state: bool = False
    state: bytes | None = None
    layout: int = 1
    destroy: bool = False


@value(frozen=True, slots=True)
class Commit:
    """One member of a batch: all of it happens or none.

    Applied in this order: fence (``epoch`` must be the partition's), request, version, watermarks, settle,
    state or destroy, reminder changes in the order given, events, outbox.  ``grain`` None: a row-only commit
    (skips, repair, management); the grain's version does not move.  ``reminders_max`` > 0: a member whose
    puts leave the grain with more reminders than that, and more than it had, is REJECTED.  Watermarks and
    answered requests survive destroy.
    """

    partition: int
    epoch: int
    grain_type: str
    grain_key: str
    grain: GrainWrite | None = None
    settle: Settle | None = None
    reminders: tuple[ReminderChange, ...] = ()
    events: tuple[EventRow, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    watermarks: tuple[Watermark, ...] = ()
    reminders_max: int = 0
    request: RequestRow | None = None


class Outcome(IntEnum):
    COMMITTED = 0
    FENCED = 1  # another epoch owns the partition; nothing changed
    CONFLICT = 2  # the grain's version is not the expected one; nothing changed
    REJECTED = 3  # the store refused the data of this member (``reason``); nothing changed
    DUPLICATE = 4  # a watermark had been reached before: the message already had its effect; nothing changed
    REPEATED = 5  # the request was answered before, with ``answer``; nothing changed


@value(frozen=True, slots=True)
class Verdict:
    """What became of one :class:`Commit`.

    ``version`` is the grain's new version (COMMITTED with a grain).  ``settled`` is False when the settle
    matched no row.  ``kept`` names the puts that left an existing row (IF_MISSING) or its progress
    (KEEP_PROGRESS) in place.  ``answer``: the packed result given before (REPEATED).
    """

    outcome: Outcome
    version: int = 0
    settled: bool = False
    kept: tuple[str, ...] = ()
    reason: str = ""
    answer: bytes | None = None


@value(frozen=True, slots=True)
class PollQuery:
    """One index range: scheduled rows of one priority with ``wake_at <= wake_until``, by (wake_at,
    registration).

    ``partitions`` None: all.  At most ``limit`` rows, after the key ``after`` when given.
    """

    priority: int
    wake_until: int
    limit: int
    partitions: frozenset[int] | None = None
    after: PollCursor | None = None


@value(frozen=True, slots=True)
class PollCursor:
    """The last row of a page: the next page starts strictly after it."""

    wake_at: int
    registration: int
    grain_type: str
    grain_key: str
    name: str


@value(frozen=True, slots=True)
class ReminderFilter:
    """Which reminders a listing or count wants; None means any."""

    grain_type: str | None = None
    grain_key: str | None = None
    operation: str | None = None
    priority: int | None = None
    action: int | None = None
    status: str | None = None
    due_until: int | None = None


@value(frozen=True, slots=True)
class ReminderCount:
    priority: int
    status: str
    count: int


@value(frozen=True, slots=True)
class StoreInfo:
    """What a store says of itself once open."""

    url: str  # printable: no password
    schema_version: int
    partitions: int
