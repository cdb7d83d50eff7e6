"""Makes reminder rows out of checked words: for grains, for declarations at silo start, for operators."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from farro.client.clock import Clock, duration_us, from_us
from farro.client.errors import InvalidPayload, InvalidSchedule
from farro.client.identity import GrainId, canonical_key
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderStatus
from farro.providers.rows import SCHEDULED, PutMode, ReminderRow
from farro.silo.grains.grain_class import RECEIVE_REMINDER
from farro.silo.ownership import Ownership
from farro.silo.schedules.cron import Cron
from farro.silo.schedules.schedule import (
    Schedule,
    jitter_offset_us,
    make_named_schedule,
    make_schedule,
)


class RowMaker:
    def __init__(self, clock: Clock, ownership: Ownership, minimum_period: timedelta) -> None:
        self._clock = clock
        self._ownership = ownership
        self._minimum_period_us = duration_us(minimum_period)

    def schedule(self, **when: Any) -> Schedule:
        """A keyed operation's schedule; the words of :func:`make_schedule`."""
        return make_schedule(now_us=self._clock.now(), minimum_period_us=self._minimum_period_us, **when)

    def named(
        self,
        grain: GrainId,
        name: str,
        due: timedelta | datetime | None,
        period: timedelta | None,
        *,
        cron: str | Cron | None,
        timezone: str | None,
        priority: ReminderPriority,
        action: MissedReminderAction | None,
        day_match: str | None = None,
    ) -> tuple[ReminderRow, PutMode]:
        """The row of Orleans' form and how it is put.  No action given: SKIP, FIRE_IMMEDIATELY if once."""
        name = checked_name(name)
        schedule = make_named_schedule(
            now_us=self._clock.now(),
            due=due,
            period=period,
            cron=cron,
            timezone=timezone,
            day_match=day_match,
            minimum_period_us=self._minimum_period_us,
        )
        if action is None:
            once, again = MissedReminderAction.FIRE_IMMEDIATELY, MissedReminderAction.SKIP
            action = once if schedule.is_one_shot else again
        row = self.row(grain, name, RECEIVE_REMINDER, None, b"", schedule, priority=priority, action=action)
        return row, put_mode(schedule, if_missing=False)

    def row(
        self,
        grain: GrainId,
        name: str,
        operation: str,
        key: str | None,
        args: bytes,
        schedule: Schedule,
        *,
        priority: Any,
        action: Any,
    ) -> ReminderRow:
        """A new registration of ``name``, its first occurrence owed."""
        partition = self._ownership.partition_of(grain.type, grain.key)
        due_at = schedule.first_due_at
        return ReminderRow(
            grain_type=grain.type,
            grain_key=grain.key,
            partition=partition,
            name=name,
            operation=operation,
            key=key,
            args=args,
            start_at=schedule.start_at,
            period_us=schedule.period_us,
            cron=schedule.cron,
            timezone=schedule.timezone,
            day_match=schedule.day_match,
            until_at=schedule.until_at,
            times_left=schedule.times_left,
            jitter_us=schedule.jitter_us,
            next_due_at=due_at,
            wake_at=due_at + jitter_offset_us(grain.type, grain.key, name, 1, schedule.jitter_us),
            last_fire_at=None,
            priority=checked_priority(priority),
            action=checked_action(action),
            registration=self._ownership.new_registration(partition),
            occurrence=1,
            status=SCHEDULED,
        )


def put_mode(schedule: Schedule, *, if_missing: bool) -> PutMode:
    if if_missing:
        return PutMode.IF_MISSING
    return PutMode.KEEP_PROGRESS if schedule.cron is not None else PutMode.REPLACE


def checked_name(name: Any) -> str:
    """A reminder name, or :class:`InvalidPayload`."""
    if not isinstance(name, str):
        raise InvalidPayload(f"a reminder name must be str, not {type(name).__name__}")
    return canonical_key(name, "reminder name")


def checked_priority(value: Any) -> int:
    try:
        return int(ReminderPriority(value))
    except ValueError:
        known = ", ".join(each.name for each in ReminderPriority)
        raise InvalidSchedule(f"priority must be a ReminderPriority ({known}), not {value!r}") from None


def checked_action(value: Any) -> int:
    """A missed action; ``"latest"`` and ``"all"`` are Solid Objects' names for two of them."""
    if value in ("latest", "all"):
        latest, every = MissedReminderAction.FIRE_IMMEDIATELY, MissedReminderAction.FIRE_ALL
        return int(latest if value == "latest" else every)
    try:
        return int(MissedReminderAction(value))
    except ValueError:
        known = ", ".join(each.name for each in MissedReminderAction)
        raise InvalidSchedule(f"missed must be a MissedReminderAction ({known}), not {value!r}") from None


def status_of(row: ReminderRow) -> ReminderStatus:
    """What a reader is shown of a row; numbers that no version of farro wrote are shown as the defaults."""
    known = row.priority in tuple(ReminderPriority), row.action in tuple(MissedReminderAction)
    return ReminderStatus(
        name=row.name,
        operation=row.operation,
        key=row.key,
        next_run_at=None if row.next_due_at is None or row.wake_at is None else from_us(row.next_due_at),
        interval_seconds=None if row.period_us is None else row.period_us / 1e6,
        cron=row.cron,
        timezone=row.timezone,
        priority=ReminderPriority(row.priority) if known[0] else ReminderPriority.NORMAL,
        missed_policy=MissedReminderAction(row.action) if known[1] else MissedReminderAction.SKIP,
        occurrence=row.occurrence,
        last_fired_at=None if row.last_fire_at is None else from_us(row.last_fire_at),
        missed_count=row.missed_count,
        attempts=row.attempts,
        status=row.status,
        note=row.note,
    )
