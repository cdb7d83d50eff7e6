"""Turns an author's words about schedules into rows and intents, and rows back into statuses.

Theory of operation: the verbs stage intents in the running turn and touch nothing else; reads ask the store
for committed rows and lay the staged intents over them.  One name space per grain: ``operation``,
``operation:key``, or the free name of Orleans' form, whose operation is ``receive_reminder``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from farro.client.codec import Codec
from farro.client.errors import InvalidPayload, UnknownOperation
from farro.client.identity import Key, canonical_key
from farro.client.interface import MethodSpec
from farro.client.reference import close_names
from farro.client.reminders import (
    MissedReminderAction,
    ReminderHandle,
    ReminderPriority,
    ReminderStatus,
    handle_name,
)
from farro.providers.rows import DeleteOperation, DeleteReminder, PutReminder, ReminderRow
from farro.silo.grains.context import Turn, turn_of
from farro.silo.grains.effects import overlay
from farro.silo.grains.grain_class import GrainClass
from farro.silo.grains.reminder_rows import RowMaker, checked_name, put_mode, status_of
from farro.silo.schedules.cron import Cron

if TYPE_CHECKING:
    from farro.silo.grains.grain import Grain

ARGS_BYTES_MAX = 256 * 1024  # a row of arguments is read again at every tick: state belongs in the grain

OperationName = Callable[..., Awaitable[Any]] | str


class ReminderReader(Protocol):
    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None: ...

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]: ...


class ReminderBook:
    """The reminder verbs of every grain of one silo."""

    def __init__(self, rows: RowMaker, codec: Codec, reader: ReminderReader) -> None:
        self._rows = rows
        self._codec = codec
        self._reader = reader
        self._no_args = codec.pack_wire([[], None])

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
        schedule = self._rows.schedule(timezone=timezone, **when)
        packed = self._packed(name, known.operations[operation_name].spec, args, kwargs)
        row = self._rows.row(
            grain.id, name, operation_name, key_text, packed, schedule, priority=priority, action=missed
        )
        for old in known.former_names(operation_name):
            turn.effects.stage("schedule()", DeleteReminder(compose_name(old, key_text)))
        turn.effects.stage("schedule()", PutReminder(row, put_mode(schedule, if_missing=if_missing)))
        return {"reminder_name": name}

    def _packed(self, name: str, spec: MethodSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        wire_args, wire_kwargs = spec.encode_call(args, kwargs)
        if not wire_args and not wire_kwargs:
            return self._no_args
        packed = self._codec.pack_wire([wire_args, wire_kwargs])
        if len(packed) > ARGS_BYTES_MAX:
            raise InvalidPayload(
                f"the arguments of reminder {name!r} take {len(packed)} bytes; at most {ARGS_BYTES_MAX} are "
                "allowed: keep large data in the grain's state"
            )
        return packed

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
        row, mode = self._rows.named(
            grain.id, name, due, period, cron=cron, timezone=timezone, priority=priority, action=action
        )
        turn.effects.stage("register_or_update_reminder()", PutReminder(row, mode))
        return {"reminder_name": name}

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
        turn.effects.stage("unregister_reminder()", DeleteReminder(checked_name(name)))

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
        row = await self._reader.reminder(grain.id.type, grain.id.key, checked_name(name))
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


# ---- names


def compose_name(operation: str, key: str | None) -> str:
    """``operation`` or ``operation:key``: the name a reminder is stored under."""
    return checked_name(operation if key is None else f"{operation}:{key}")


def _operation_name(known: GrainClass, operation: Any) -> str:
    """The canonical name of an operation given by name or method; a typo must not pass in silence."""
    if isinstance(operation, str):
        name = operation
    else:
        function = getattr(operation, "__func__", operation)
        name = getattr(function, "__name__", None) or repr(operation)
        if getattr(known.cls, name, None) is not function:
            mine = name if name in known.operations else "x"
            raise UnknownOperation(
                f"{operation!r:.200} is not a method of {known.type_name}; pass a method of this grain, "
                f"such as self.{mine}"
            )
    found = known.canonical_operation(name)
    if found is None:
        if inspect.isfunction(getattr(known.cls, name, None)):
            raise UnknownOperation(
                f"{known.type_name}.{name} cannot be scheduled: an operation is an 'async def' method of the "
                "author's without 'yield'"
            )
        hint = close_names(name, list(known.operations)).removesuffix("?")
        if ":" in name:
            hint = " (give the part after the colon as key=)"
        raise UnknownOperation(
            f"{known.type_name} has no operation {name!r}{hint}; it has: "
            + (", ".join(sorted(known.operations)) or "none")
        )
    return found


def _names(known: GrainClass, target: Any, key: Key | None) -> list[str]:
    """The stored names that a cancel or read means: the current one first, then those under former names."""
    if not isinstance(target, str):
        if isinstance(target, ReminderStatus):
            target = target.handle
        if isinstance(target, Mapping) or not callable(target):
            name = handle_name(target)
            if key is not None:
                raise TypeError(
                    "a handle already names its key; give either a handle or an operation with key="
                )
            return [name]
    operation = _operation_name(known, target)
    key_text = None if key is None else canonical_key(key, "reminder key")
    return [compose_name(each, key_text) for each in (operation, *known.former_names(operation))]
