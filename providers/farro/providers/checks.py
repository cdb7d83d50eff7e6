"""What every store refuses to keep, decided before any store is asked.

One set of rules for all stores: a turn that memory accepts must not fail on a real store.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from struct import error as StructError
from struct import pack
from typing import Any

from farro.providers.rows import (
    Commit,
    DeleteOperation,
    DeleteReminder,
    EditReminder,
    EventRow,
    GrainWrite,
    OutboxRow,
    Progress,
    PutMode,
    PutReminder,
    ReminderRow,
    RequestRow,
    Settle,
    Watermark,
)

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1

_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bytes": (bytes,), "bool": (bool,)}


def _kinds_of(annotation: str) -> tuple[type, ...]:
    """The accepted types of a plain field; empty for a field that holds another row."""
    name, _, optional = annotation.partition(" | ")
    kinds = _KINDS.get(name, ())
    return (*kinds, type(None)) if kinds and optional == "None" else kinds


def _is_among(kind: type, kinds: tuple[type, ...]) -> bool:
    """Subclasses too, but a bool is no number."""
    return kind in kinds or (kind is not bool and issubclass(kind, kinds))


class _Shape:
    """The plain fields of one row class."""

    def __init__(self, row_class: type) -> None:
        kinds = {field.name: _kinds_of(str(field.type)) for field in fields(row_class)}
        self._row_class = row_class
        self._kinds = {name: accepted for name, accepted in kinds.items() if accepted}
        # the last name twice: attrgetter answers no tuple for one name
        self._values: Callable[[Any], tuple[Any, ...]] = attrgetter(*self._kinds, list(self._kinds)[-1])

    def all_hold(self, rows: Sequence[Any]) -> bool:
        """True when every store can hold all of the rows; column by column, as every commit passes here."""
        if {*map(type, rows)} != {self._row_class}:
            return False
        columns = zip(*map(self._values, rows), strict=True)
        try:
            return all(map(_column_holds, self._kinds.values(), columns))
        except (TypeError, StructError):  # texts that cannot be joined, numbers that do not fit
            return False

    def wrong_type(self, row: Any) -> str:
        for (name, kinds), value in zip(self._kinds.items(), self._values(row), strict=False):
            if not _is_among(type(value), kinds):
                wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                return f"{type(row).__name__}.{name} must be {wanted}, not {type(value).__name__}"
        return ""

    def wrong_value(self, row: Any) -> str:
        """The first text or number that no store can hold, named; empty when all can be held."""
        for name, value in zip(self._kinds, self._values(row), strict=False):
            if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
                return f"{type(row).__name__}.{name} does not fit in 64 bits"
            if isinstance(value, str) and not is_storable(value):
                return f"{type(row).__name__}.{name} has a NUL or a lone surrogate: {value!r:.60}"
        return ""


def _column_holds(kinds: tuple[type, ...], column: tuple[Any, ...]) -> bool:
    """May raise instead of answering False."""
    if kinds == (str,):
        return is_storable("".join(column))
    if column[0] is None and column.count(None) == len(column):
        return type(None) in kinds
    found = {*map(type, column)}
    for kind in found:
        if not _is_among(kind, kinds):
            return False
    if type(None) in found:
        column = tuple([value for value in column if value is not None])
    if str in kinds:
        return is_storable("".join(column))
    if int in kinds:
        pack(f"{len(column)}q", *column)  # a quarter of the time that min and max take
    return True


_SHAPES: dict[type, _Shape] = {
    row_class: _Shape(row_class)
    for row_class in (
        Commit,
        DeleteOperation,
        DeleteReminder,
        EditReminder,
        EventRow,
        GrainWrite,
        OutboxRow,
        Progress,
        ReminderRow,
        RequestRow,
        Settle,
        Watermark,
    )
}


def is_storable(text: str) -> bool:
    """True for Unicode text that every store can hold: no NUL, no lone surrogate."""
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rejections(batch: Sequence[Commit]) -> list[str]:
    """For each member, why no store takes it, or an empty text when nothing speaks against it."""
    # all members at once, as nearly every one is sound; one by one only to name what is wrong
    return [""] * len(batch) if _all_hold(batch) else [_rejection(member) for member in batch]


def _all_hold(batch: Sequence[Commit]) -> bool:
    settles = [member.settle for member in batch if member.settle is not None]
    parts: dict[type, Sequence[Any]] = {
        Commit: batch,
        GrainWrite: [member.grain for member in batch if member.grain is not None],
        Settle: settles,
        Progress: [settle.progress for settle in settles if settle.progress is not None],
        EventRow: [event for member in batch if member.events for event in member.events],
        OutboxRow: [message for member in batch if member.outbox for message in member.outbox],
        RequestRow: [member.request for member in batch if member.request is not None],
        Watermark: [mark for member in batch if member.watermarks for mark in member.watermarks],
    }
    changes: dict[type, list[Any]] = {}
    for member in batch:
        if member.reminders:
            if _misfit(member):
                return False
            for change in member.reminders:
                part = change.row if isinstance(change, PutReminder) else change
                if type(part) in changes:
                    changes[type(part)].append(part)
                else:
                    changes[type(part)] = [part]
    for kind, rows in (*parts.items(), *changes.items()):
        if rows and (kind not in _SHAPES or not _SHAPES[kind].all_hold(rows)):
            return False
    return True


def _rejection(member: Commit) -> str:
    parts: list[Any] = [member, member.grain, member.settle, member.request]
    if member.settle is not None:
        parts.append(member.settle.progress)
    parts += (change.row if isinstance(change, PutReminder) else change for change in member.reminders)
    parts += (*member.events, *member.outbox, *member.watermarks)
    parts = [part for part in parts if part is not None]
    for part in parts:
        if type(part) not in _SHAPES:
            return f"a commit cannot hold a {type(part).__name__}"
        if wrong := _SHAPES[type(part)].wrong_type(part):
            return wrong
    for part in parts:
        if wrong := _SHAPES[type(part)].wrong_value(part):
            return wrong
    return _misfit(member)


def _misfit(member: Commit) -> str:
    """What is wrong with the member's reminder changes beside the values in them."""
    if not member.reminders:
        return ""
    for change in member.reminders:
        if not isinstance(change, PutReminder):
            continue
        row = change.row
        if (
            row.grain_key != member.grain_key
            or row.grain_type != member.grain_type
            or row.partition != member.partition
        ):
            return (
                f"reminder {row.name!r:.100} belongs to {row.grain_type}/{row.grain_key} in partition "
                f"{row.partition}, the commit to {member.grain_type}/{member.grain_key} in {member.partition}"
            )
    if member.grain is not None and member.grain.destroy:
        return "a commit that destroys its grain cannot change its reminders too"
    return ""


def too_many(member: Commit, settled: bool, operations: Mapping[str, str]) -> str:
    """Why the member's puts exceed its ``reminders_max``, or an empty text.

    ``operations``: the grain's reminders before the commit, name to operation. ``settled``: its settle
    matches.
    """
    after = dict(operations)
    if settled and member.settle is not None and member.settle.progress is None:
        after.pop(member.settle.name, None)  # a store that assumes the match may still find no row
    for change in member.reminders:
        if isinstance(change, PutReminder):
            if change.mode is not PutMode.IF_MISSING or change.row.name not in after:
                after[change.row.name] = change.row.operation
        elif isinstance(change, DeleteReminder):
            after.pop(change.name, None)
        elif isinstance(change, DeleteOperation):
            after = {name: operation for name, operation in after.items() if operation != change.operation}
    if len(after) <= max(member.reminders_max, len(operations)):
        return ""
    return (
        f"{member.grain_type}/{member.grain_key} would have {len(after)} reminders; at most"
        f" {member.reminders_max} are allowed for one grain"
    )


def is_bounded(member: Commit) -> bool:
    """True when ``reminders_max`` can matter: the member puts something."""
    if member.reminders_max > 0:
        for change in member.reminders:
            if isinstance(change, PutReminder):
                return True
    return False


def is_duplicate(member: Commit, positions: Mapping[str, int]) -> bool:
    """True when a watermark of the member was reached before.  ``positions``: what the grain has consumed."""
    reached = dict(positions)
    for watermark in member.watermarks:
        if reached.get(watermark.source, watermark.position - 1) >= watermark.position:
            return True
        reached[watermark.source] = watermark.position
    return False
