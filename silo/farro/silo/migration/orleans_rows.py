"""From a row of Orleans' reminder table to a reminder of farro, on the same grid.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from farro.client.clock import from_us
from farro.client.errors import FarroError, InvalidSchedule
from farro.client.identity import GrainId
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.providers.rows import ReminderRow
from farro.silo.grains.grain_class import RECEIVE_REMINDER
from farro.silo.grains.reminder_rows import checked_name
from farro.silo.migration.orleans_ids import Naming, UnreadableId
from farro.silo.ownership import Ownership
from farro.silo.schedules.cron import FIRST_US, LAST_US, Cron
from farro.silo.schedules.schedule import CALENDAR_US, Schedule, next_due

_YEAR_2_US = -62_104_060_800_000_000  # an instant before it is .NET's DateTime.MinValue, give or take a zone
_OCCURRENCE = 1


@dataclass(frozen=True, slots=True)
class OrleansRow:
    """One stored reminder.  Instants are microseconds since the epoch, UTC; None: not set, or infinite.

    ``cron`` and what follows are the adaptive reminder proposal's columns, None where they are not filled.
    """

    grain_id: str
    name: str
    start_at: int | None
    period_ms: int | None
    cron: str | None = None
    next_due_at: int | None = None
    last_fire_at: int | None = None
    priority: int | None = None
    action: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that is left where it is, and why."""

    row: OrleansRow
    reason: str


@dataclass(frozen=True, slots=True)
class Converted:
    """A row of farro, what it was made of, and the type its grain has in Orleans."""

    row: ReminderRow
    source: OrleansRow
    orleans_type: str


def convert(row: OrleansRow, naming: Naming, ownership: Ownership, now: int) -> Converted | Unreadable:
    """The reminder that goes on where Orleans' stops: the first grid instant not yet passed is owed.

    A set ``next_due_at`` is owed instead, also when it has passed: the silo then treats it by the row's
    action.  Nothing up to ``last_fire_at`` is owed again.
    """
    try:
        orleans_type, grain = naming.grain(row.grain_id)
        name = checked_name(row.name)
        schedule = _schedule(row, now)
        due = _owed(row, schedule, now)
        priority = _known("Priority", row.priority, ReminderPriority, ReminderPriority.NORMAL)
        action = _known("Action", row.action, MissedReminderAction, MissedReminderAction.SKIP)
    except (UnreadableId, FarroError) as error:
        return Unreadable(row, str(error))
    made = _row(grain, name, schedule, due, row.last_fire_at, priority, action, ownership)
    return Converted(made, row, orleans_type)


def _row(
    grain: GrainId,
    name: str,
    schedule: Schedule,
    due: int,
    last_fire_at: int | None,
    priority: int,
    action: int,
    ownership: Ownership,
) -> ReminderRow:
    partition = ownership.partition_of(grain.type, grain.key)
    return ReminderRow(
        grain_type=grain.type,
        grain_key=grain.key,
        partition=partition,
        name=name,
        operation=RECEIVE_REMINDER,
        key=None,
        args=b"",
        start_at=schedule.start_at,
        period_us=schedule.period_us,
        cron=schedule.cron,
        timezone=schedule.timezone,
        day_match=schedule.day_match,
        until_at=None,
        times_left=None,
        jitter_us=0,
        next_due_at=due,
        wake_at=due,
        last_fire_at=last_fire_at,
        priority=priority,
        action=action,
        registration=ownership.new_registration(partition),
        occurrence=_OCCURRENCE,
    )


def _schedule(row: OrleansRow, now: int) -> Schedule:
    """The grid.  A cron text has its own, so its row needs no start and no period."""
    start = row.start_at
    if start is not None and not _YEAR_2_US <= start <= LAST_US:
        start = None
    if row.cron:
        cron = Cron(row.cron)
        if cron.never_fires:
            raise InvalidSchedule(f"Cron {row.cron!r} can never fire: {cron.never_reason}")
        since = row.next_due_at if start is None else start
        first = cron.next_us((now if since is None else since) - 1)
        if first is None:
            raise InvalidSchedule(f"Cron {row.cron!r} does not fire again before the year 10000")
        return Schedule(first, cron=cron.text, timezone=cron.timezone, day_match=cron.day_match)
    if start is None:
        raise InvalidSchedule(_no_start(row.start_at))
    if row.period_ms is None or row.period_ms <= 0:
        raise InvalidSchedule(f"Period {row.period_ms} and no Cron: the row has no grid")
    if row.period_ms > CALENDAR_US // 1000:
        raise InvalidSchedule(f"Period {row.period_ms} ms reaches beyond the year 9999")
    return Schedule(start, row.period_ms * 1000)


def _owed(row: OrleansRow, schedule: Schedule, now: int) -> int:
    fired = row.last_fire_at
    stored = row.next_due_at
    # one before the start is left from an earlier registration, one already fired from a lost write
    if stored is not None and schedule.start_at <= stored <= LAST_US and (fired is None or stored > fired):
        return stored
    due = next_due(schedule, now - 1 if fired is None else max(now - 1, fired))
    if due is None:
        raise InvalidSchedule("the reminder does not fall due again before the year 10000")
    return due


def _known(
    column: str,
    value: int | None,
    known: type[ReminderPriority] | type[MissedReminderAction],
    default: ReminderPriority | MissedReminderAction,
) -> int:
    if value is None:
        return int(default)
    if value not in tuple(known):
        raise InvalidSchedule(
            f"{column} {value} is none of {', '.join(f'{each.value} ({each.name})' for each in known)}"
        )
    return int(value)


def _no_start(start_at: int | None) -> str:
    if start_at is None or not FIRST_US <= start_at <= LAST_US:
        return "StartTime was never set, or is no date in the years 1 to 9999"
    return f"StartTime {from_us(start_at).isoformat()} was never set"
