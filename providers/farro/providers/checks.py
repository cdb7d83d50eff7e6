"""What every store refuses to keep, decided before any store is asked.

One set of rules for all stores: a turn that memory accepts must not fail on a real store.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def gather(self, row: Any, texts: list[str], numbers: list[int]) -> str:
        """Add the row's texts and numbers to the lists; what is wrong with its types, if anything."""
        values = self.values(row)
        types = tuple(map(type, values))
        signature = self.good.get(types)
        if signature is None:
            if named := self._wrong_type(values):
                return f"{type(row).__name__}.{named}"
            signature = self.good[types] = _Signature(types)
        texts += signature.texts(values)
        numbers += signature.numbers(values)
        return ""

    def _wrong_type(self, values: tuple[Any, ...]) -> str:
        for (name, kinds), value in zip(self.kinds.items(), values, strict=False):
            if not isinstance(value, kinds) or (type(value) is bool and bool not in kinds):
                wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                return f"{name} must be {wanted}, not {type(value).__name__}"
        return ""

    def wrong_value(self, row: Any) -> str:
        """The first text or number that no store can hold, named; empty when all can be held."""
        for name, value in zip(self.kinds, self.values(row), strict=False):
            if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
                return f"{type(row).__name__}.{name} does not fit in 64 bits"
            if isinstance(value, str) and not is_storable(value):
                return f"{type(row).__name__}.{name} has a NUL or a lone surrogate: {value!r:.60}"
        return ""


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


def _parts(member: Commit) -> list[Any]:
    parts: list[Any] = [member]
    if member.grain is not None:
        parts.append(member.grain)
    if member.settle is not None:
        parts.append(member.settle)
        if member.settle.progress is not None:
            parts.append(member.settle.progress)
    for change in member.reminders:
        parts.append(change.row if isinstance(change, PutReminder) else change)
    parts += member.events
    parts += member.outbox
    parts += member.watermarks
    return parts


def rejection(member: Commit) -> str:
    """Why no store takes this member, or an empty text when nothing speaks against it."""
    parts = _parts(member)
    texts: list[str] = []
    numbers: list[int] = []
    for part in parts:
        shape = _SHAPES.get(type(part))
        if shape is None:
            return f"a commit cannot hold a {type(part).__name__}"
        if wrong := shape.gather(part, texts, numbers):
            return wrong
    # all values at once, as nearly every member is sound; one by one only to name the bad one
    if not is_storable("".join(texts)) or min(numbers) < INTEGER_MIN or max(numbers) > INTEGER_MAX:
        return next(filter(None, (_SHAPES[type(part)].wrong_value(part) for part in parts)))
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
