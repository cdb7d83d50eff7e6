"""What every store refuses to keep, decided before any store is asked.

One set of rules for all stores: a turn that memory accepts must not fail on a real store.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from operator import attrgetter, itemgetter
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


def _pick(positions: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Some of the values, as a tuple whatever their number; ``itemgetter`` needs two for that."""
    return (
        itemgetter(*positions) if len(positions) > 1 else lambda values: tuple(values[i] for i in positions)
    )


class _Signature:
    """A combination of types found good: which of the values are text and which are numbers."""

    def __init__(self, types: tuple[type, ...]) -> None:
        self.texts = _pick([at for at, kind in enumerate(types) if issubclass(kind, str)])
        self.numbers = _pick([at for at, kind in enumerate(types) if issubclass(kind, int)])


class _Shape:
    """The plain fields of one row class: checked in bulk, as every commit passes here, named one by one."""

    def __init__(self, row_class: type) -> None:
        kinds = {field.name: _kinds_of(str(field.type)) for field in fields(row_class)}
        self.kinds = {name: accepted for name, accepted in kinds.items() if accepted}
        # the last name twice: attrgetter answers no tuple for one name
        self.values: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.kinds, list(self.kinds)[-1])
        self.good: dict[tuple[type, ...], _Signature] = {}

    def wrong(self, row: Any) -> str:
        values = self.values(row)
        types = tuple(map(type, values))
        signature = self.good.get(types)
        if signature is None:
            if named := self._wrong_type(values):
                return f"{type(row).__name__}.{named}"
            signature = self.good[types] = _Signature(types)
        numbers = signature.numbers(values)
        if (numbers and (min(numbers) < INTEGER_MIN or max(numbers) > INTEGER_MAX)) or not is_storable(
            "".join(signature.texts(values))
        ):
            return f"{type(row).__name__}.{self._wrong_value(values)}"
        return ""

    def _wrong_type(self, values: tuple[Any, ...]) -> str:
        for (name, kinds), value in zip(self.kinds.items(), values, strict=False):
            if not isinstance(value, kinds) or (type(value) is bool and bool not in kinds):
                wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                return f"{name} must be {wanted}, not {type(value).__name__}"
        return ""

    def _wrong_value(self, values: tuple[Any, ...]) -> str:
        for name, value in zip(self.kinds, values, strict=False):
            if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
                return f"{name} does not fit in 64 bits"
        bad = next((n, v) for n, v in zip(self.kinds, values, strict=False) if not is_storable(str(v)))
        return f"{bad[0]} has a NUL or a lone surrogate: {bad[1]!r:.60}"


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


def _parts(member: Commit) -> Iterable[Any]:
    yield member
    if member.grain is not None:
        yield member.grain
    if member.settle is not None:
        yield member.settle
        if member.settle.progress is not None:
            yield member.settle.progress
    for change in member.reminders:
        if isinstance(change, PutReminder):
            yield change.row
        else:
            yield change
    yield from member.events
    yield from member.outbox
    yield from member.watermarks


def rejection(member: Commit) -> str:
    """Why no store takes this member, or an empty text when nothing speaks against it."""
    for part in _parts(member):
        shape = _SHAPES.get(type(part))
        if shape is None:
            return f"a commit cannot hold a {type(part).__name__}"
        if wrong := shape.wrong(part):
            return wrong
    for change in member.reminders:
        if not isinstance(change, PutReminder):
            continue
        row = change.row
        if (row.grain_type, row.grain_key, row.partition) != (
            member.grain_type,
            member.grain_key,
            member.partition,
        ):
            return (
                f"reminder {row.name!r:.100} belongs to {row.grain_type}/{row.grain_key} in partition "
                f"{row.partition}, the commit to {member.grain_type}/{member.grain_key} in {member.partition}"
            )
    if member.grain is not None and member.grain.destroy and member.reminders:
        return "a commit that destroys its grain cannot change its reminders too"
    return ""


def too_many(member: Commit, settled: bool, operations: Mapping[str, str]) -> str:
    """Why the member's puts exceed its ``reminders_max``, or an empty text.

    ``operations``: the grain's reminders before the commit, name to operation. ``settled``: its settle
    matches.
    """
    after = dict(operations)
    if settled and member.settle is not None and member.settle.progress is None:
        del after[member.settle.name]
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
    return member.reminders_max > 0 and any(isinstance(change, PutReminder) for change in member.reminders)


def is_duplicate(member: Commit, positions: Mapping[str, int]) -> bool:
    """True when a watermark of the member was reached before.  ``positions``: what the grain has consumed."""
    reached = dict(positions)
    for watermark in member.watermarks:
        if reached.get(watermark.source, watermark.position - 1) >= watermark.position:
            return True
        reached[watermark.source] = watermark.position
    return False
