"""Turns an author's words about schedules into rows and intents, and rows back into statuses.

Theory of operation: the verbs stage intents in the running turn and touch nothing else; reads ask the store
for committed rows and lay the staged intents over them.  One name space per grain: ``operation``,
``operation:key``, or the free name of Orleans' form, whose operation is ``receive_reminder``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from farro.client.clock import Clock, from_us
from farro.client.codec import Codec
from farro.client.errors import InvalidPayload, InvalidSchedule, UnknownOperation
from farro.client.identity import Key, canonical_key
from farro.client.reminders import (
    MissedReminderAction,
    ReminderHandle,
    ReminderPriority,
    ReminderStatus,
    handle_name,
)
from farro.providers.rows import (
    SCHEDULED,
    DeleteOperation,
    DeleteReminder,
    PutMode,
    PutReminder,
    ReminderRow,
)
from farro.silo.grains.context import Turn, turn_of
from farro.silo.grains.effects import overlay
from farro.silo.grains.grain_class import RECEIVE_REMINDER, GrainClass
from farro.silo.ownership import Ownership
from farro.silo.schedules.cron import Cron
from farro.silo.schedules.schedule import (
    Schedule,
    first_due,
    jitter_offset_us,
    make_named_schedule,
    make_schedule,
)

if TYPE_CHECKING:
    from farro.silo.grains.grain import Grain

ARGS_BYTES_MAX = 256 * 1024  # a row of arguments is read again at every tick: state belongs in the grain

OperationName = Callable[..., Awaitable[Any]] | str


class ReminderReader(Protocol):
    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None: ...

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]: ...


class ReminderBook:
    """The reminder verbs of every grain of one silo."""

    def __init__(
        self,
        *,
        clock: Clock,
        codec: Codec,
        reader: ReminderReader,
        ownership: Ownership,
        minimum_period: timedelta,
    ) -> None:
        self._clock = clock
        self._codec = codec
        self._reader = reader
        self._ownership = ownership
        self._minimum_period_us = minimum_period // timedelta(microseconds=1)

    # ---- set

    def schedule(
        self,
        grain: Grain[Any],
        operation: OperationName,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        key: Key | None,
        timezone: str | None,
        priority: ReminderPriority,
        missed: MissedReminderAction,
        if_missing: bool,
        **when: Any,
    ) -> ReminderHandle:
        turn = turn_of(grain, "schedule()")
        known = grain.__farro_class__
        operation_name = _operation_name(known, operation)
        key_text = None if key is None else canonical_key(key, "reminder key")
        name = compose_name(operation_name, key_text)
        schedule = make_schedule(
            now_us=self._clock.now(), timezone=timezone, minimum_period_us=self._minimum_period_us, **when
        )
        wire_args, wire_kwargs = known.operations[operation_name].spec.encode_call(args, kwargs)
        packed = self._codec.pack_wire([wire_args, wire_kwargs])
        if len(packed) > ARGS_BYTES_MAX:
            raise InvalidPayload(
                f"the arguments of reminder {name!r} take {len(packed)} bytes; at most {ARGS_BYTES_MAX} are "
                "allowed: keep large data in the grain's state"
            )
        row = self._row(
            grain, name, operation_name, key_text, packed, schedule, _priority(priority), _action(missed)
        )
        for old in known.former_names(operation_name):
            turn.effects.stage("schedule()", DeleteReminder(compose_name(old, key_text)))
        turn.effects.stage("schedule()", PutReminder(row, _mode(schedule, if_missing)))
        return {"reminder_name": name}

    def register(
        self,
        grain: Grain[Any],
        name: str,
        due: timedelta | datetime | None,
        period: timedelta | None,
        *,
        cron: str | Cron | None,
        timezone: str | None,
        priority: ReminderPriority,
        action: MissedReminderAction | None,
    ) -> ReminderHandle:
        turn = turn_of(grain, "register_or_update_reminder()")
        if grain.__farro_class__.receive_reminder is None:
            raise UnknownOperation(
                f"{grain.__farro_class__.where} registers reminder {name!r} but has no receive_reminder"
            )
        _checked_name(name)
        schedule = make_named_schedule(
            now_us=self._clock.now(),
            due=due,
            period=period,
            cron=cron,
            timezone=timezone,
            minimum_period_us=self._minimum_period_us,
        )
        if action is None:
            action = (
                MissedReminderAction.FIRE_IMMEDIATELY if schedule.is_one_shot else MissedReminderAction.SKIP
            )
        row = self._row(
            grain, name, RECEIVE_REMINDER, None, b"", schedule, _priority(priority), _action(action)
        )
        turn.effects.stage("register_or_update_reminder()", PutReminder(row, _mode(schedule, False)))
        return {"reminder_name": name}

    def _row(
        self,
        grain: Grain[Any],
        name: str,
        operation: str,
        key: str | None,
        args: bytes,
        schedule: Schedule,
        priority: int,
        action: int,
    ) -> ReminderRow:
        grain_type, grain_key = grain.id.type, grain.id.key
        partition = self._ownership.partition_of(grain_type, grain_key)
        due_at = first_due(schedule, self._clock.now())
        return ReminderRow(
            grain_type=grain_type,
            grain_key=grain_key,
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
            wake_at=due_at + jitter_offset_us(grain_type, grain_key, name, 1, schedule.jitter_us),
            last_fire_at=None,
            priority=priority,
            action=action,
            registration=self._ownership.new_registration(partition),
            occurrence=1,
            status=SCHEDULED,
        )

    # ---- cancel

    def unschedule(self, grain: Grain[Any], target: OperationName | ReminderHandle, key: Key | None) -> None:
        turn = turn_of(grain, "unschedule()")
        for name in _names(grain.__farro_class__, target, key):
            turn.effects.stage("unschedule()", DeleteReminder(name))

    def unschedule_all(self, grain: Grain[Any], operation: OperationName) -> None:
        turn = turn_of(grain, "unschedule_all()")
        known = grain.__farro_class__
        name = _operation_name(known, operation)
        for each in (name, *known.former_names(name)):
            turn.effects.stage("unschedule_all()", DeleteOperation(each))

    def unregister(self, grain: Grain[Any], reminder: str | ReminderHandle | ReminderStatus) -> None:
        turn = turn_of(grain, "unregister_reminder()")
        if isinstance(reminder, ReminderStatus):
            name = reminder.name
        else:
            name = reminder if isinstance(reminder, str) else handle_name(reminder)
        turn.effects.stage("unregister_reminder()", DeleteReminder(_checked_name(name)))

    # ---- read

    async def reminder(
        self, grain: Grain[Any], target: OperationName | ReminderHandle, key: Key | None
    ) -> ReminderStatus | None:
        for name in _names(grain.__farro_class__, target, key):
            found = await self.named(grain, name)
            if found is not None:
                return found
        return None

    async def named(self, grain: Grain[Any], name: str) -> ReminderStatus | None:
        turn = turn_of(grain, "reading reminders")
        row = await self._reader.reminder(grain.id.type, grain.id.key, _checked_name(name))
        rows = _seen(turn, [] if row is None else [row])
        return next((status_of(each) for each in rows if each.name == name), None)

    async def reminders(self, grain: Grain[Any], operation: OperationName | None) -> list[ReminderStatus]:
        turn = turn_of(grain, "reading reminders")
        known = grain.__farro_class__
        wanted: tuple[str, ...] | None = None
        if operation is not None:
            name = _operation_name(known, operation)
            wanted = (name, *known.former_names(name))
        rows = _seen(turn, await self._reader.reminders_of(grain.id.type, grain.id.key))
        return [status_of(row) for row in rows if wanted is None or row.operation in wanted]


def _seen(turn: Turn, rows: list[ReminderRow]) -> list[ReminderRow]:
    return overlay(rows, turn.effects.reminders, turn.effects.destroy)


def status_of(row: ReminderRow) -> ReminderStatus:
    """What a reader is shown of a row."""
    return ReminderStatus(
        name=row.name,
        operation=row.operation,
        key=row.key,
        next_run_at=None if row.next_due_at is None or row.wake_at is None else from_us(row.next_due_at),
        interval_seconds=None if row.period_us is None else row.period_us / 1e6,
        cron=row.cron,
        timezone=row.timezone,
        priority=ReminderPriority(row.priority),
        missed_policy=MissedReminderAction(row.action),
        occurrence=row.occurrence,
        last_fired_at=None if row.last_fire_at is None else from_us(row.last_fire_at),
        missed_count=row.missed_count,
        attempts=row.attempts,
        status=row.status,
        note=row.note,
    )


# ---- names and choices


def compose_name(operation: str, key: str | None) -> str:
    """``operation`` or ``operation:key``: the name a reminder is stored under."""
    return _checked_name(operation if key is None else f"{operation}:{key}")


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidPayload(f"a reminder name must be str, not {type(name).__name__}")
    return canonical_key(name, "reminder name")


def _operation_name(known: GrainClass, operation: Any) -> str:
    """The canonical name of an operation given by name or method; a typo must not pass in silence."""
    if isinstance(operation, str):
        name = operation
    else:
        function = getattr(operation, "__func__", operation)
        name = getattr(function, "__name__", None) or repr(operation)
        if name in known.operations and known.operations[name].function is not function:
            raise UnknownOperation(f"{operation!r} is not a method of {known.type_name}; pass self.{name}")
    found = known.canonical_operation(name)
    if found is None:
        hint = " (give the part after the colon as key=)" if ":" in name else ""
        raise UnknownOperation(
            f"{known.type_name} has no operation {name!r}{hint}; it has: "
            + (", ".join(sorted(known.operations)) or "none")
        )
    return found


def _names(known: GrainClass, target: Any, key: Key | None) -> list[str]:
    """The stored names that a cancel or read means: the current one first, then those under former names."""
    if isinstance(target, ReminderStatus):
        target = target.handle
    if not isinstance(target, str) and (isinstance(target, Mapping) or not callable(target)):
        name = handle_name(target)
        if key is not None:
            raise TypeError("a handle already names its key; give either a handle or an operation with key=")
        return [name]
    operation = _operation_name(known, target)
    key_text = None if key is None else canonical_key(key, "reminder key")
    return [compose_name(each, key_text) for each in (operation, *known.former_names(operation))]


def _mode(schedule: Schedule, if_missing: bool) -> PutMode:
    if if_missing:
        return PutMode.IF_MISSING
    return PutMode.KEEP_PROGRESS if schedule.cron is not None else PutMode.REPLACE


def _priority(value: Any) -> int:
    try:
        return int(ReminderPriority(value))
    except ValueError:
        raise InvalidSchedule(
            f"priority must be one of {[each.name for each in ReminderPriority]}, not {value!r}"
        ) from None


def _action(value: Any) -> int:
    if value == "latest":
        return int(MissedReminderAction.FIRE_IMMEDIATELY)
    if value == "all":
        return int(MissedReminderAction.FIRE_ALL)
    try:
        return int(MissedReminderAction(value))
    except ValueError:
        raise InvalidSchedule(
            f"missed must be one of {[each.name for each in MissedReminderAction]}, not {value!r}"
        ) from None
