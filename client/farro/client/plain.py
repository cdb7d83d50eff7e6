"""Runtime-typed values: what travels where no type is declared, and how a misfit is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from farro.client.reference import Reference

NESTING_MAX = 32
EQUAL_HASHES_MAX = 64


class Mismatch(Exception):
    """A value does not fit where it stands.  Containers add where, the border makes the text."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps: list[str] = []

    def at(self, step: str) -> Mismatch:
        self.steps.append(step)
        return self

    def text(self, path: str) -> str:
        return f"{path}{''.join(reversed(self.steps))}: {self.problem}"


def show(value: Any) -> str:
    """A short text of a value for an error: never raises, never long, never more than one line."""
    if type(value) is int and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, (str, bytes, bytearray)):
        value = value[:80]
    elif not isinstance(value, (int, float, Decimal, UUID, date, time, timedelta, Enum, type)):
        return f"a value of type {type(value).__qualname__}"
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def too_deep() -> Mismatch:
    return Mismatch(f"nested more than {NESTING_MAX} levels; flatten it")


def check_hashes(items: Collection[Any]) -> None:
    """Raise :class:`Mismatch` if building a set or dict of ``items`` would take far too long.

    Numbers, and what is made of them, have hashes that anybody can make equal: inserting n such elements
    takes n² comparisons.  Looked at before the set or dict is built.
    """
    if len(items) <= EQUAL_HASHES_MAX:
        return
    hashes = [hash(item) for item in items]
    if len(hashes) - len(set(hashes)) < EQUAL_HASHES_MAX:
        return
    ((_, most),) = Counter(hashes).most_common(1)
    if most > EQUAL_HASHES_MAX:
        raise Mismatch(
            f"{most:,} set elements or dict keys have the same hash; at most {EQUAL_HASHES_MAX} may. "
            "Send a list, or send the numbers as text"
        )


def plain_str(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Mismatch(
                f"text holds a lone surrogate at position {error.start}; "
                "send bytes, or decode with errors='replace'"
            ) from None
    return value


def plain_datetime(value: datetime) -> datetime:
    """The same instant with the zone reduced to its offset, as it will arrive anywhere else."""
    if type(value.tzinfo) is timezone and not value.fold:
        return value
    offset = value.utcoffset()
    if offset is None:
        raise Mismatch(f"naive datetime {value.isoformat()}; give it a time zone, such as tzinfo=UTC")
    return value.replace(tzinfo=timezone(offset), fold=0)


def plain_time(value: time) -> time:
    offset = value.utcoffset()
    if offset is None and value.tzinfo is not None:
        raise Mismatch("time with a zone whose offset depends on the date; send a datetime or a naive time")
    zone = None if offset is None else timezone(offset)
    return value.replace(tzinfo=zone, fold=0) if value.fold or zone else value


def unchanged(value: Any) -> Any:
    return value


SCALARS: dict[type, Callable[[Any], Any]] = {
    type(None): unchanged,
    bool: unchanged,
    int: unchanged,
    float: unchanged,
    str: plain_str,
    bytes: unchanged,
    Decimal: unchanged,
    UUID: unchanged,
    datetime: plain_datetime,
    date: unchanged,
    time: plain_time,
    timedelta: unchanged,
}


def plain(value: Any, depth: int = 0) -> Any:
    """A copy of a value of any type the wire carries by itself; scalars and references are not copied.

    Raises :class:`Mismatch` for everything else.  It is its own inverse: a received value is checked and
    copied by the same walk.
    """
    scalar = SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value)
    if depth >= NESTING_MAX and isinstance(value, (list, dict, tuple, set, frozenset)):
        raise too_deep()
    container = _CONTAINERS.get(type(value))
    if container is not None:
        return container(value, depth + 1)
    if isinstance(value, Reference):
        return value
    raise Mismatch(_refusal(value))


def _list(value: list[Any], depth: int) -> list[Any]:
    return [_item(item, depth, f"[{index}]") for index, item in enumerate(value)]


def _tuple(value: tuple[Any, ...], depth: int) -> tuple[Any, ...]:
    return tuple(_list(list(value), depth))


def _dict(value: dict[Any, Any], depth: int) -> dict[Any, Any]:
    check_hashes(value)
    made = {}
    for key, item in value.items():
        wire_key = _item(key, depth, f"[key {show(key)}]")
        made[wire_key] = _item(item, depth, f"[{show(key)}]")
    return made


def _set(value: set[Any], depth: int) -> set[Any]:
    return {_item(item, depth, "{…}") for item in value}


def _frozenset(value: frozenset[Any], depth: int) -> frozenset[Any]:
    return frozenset(_item(item, depth, "{…}") for item in value)


_CONTAINERS: dict[type, Callable[[Any, int], Any]] = {
    list: _list,
    dict: _dict,
    tuple: _tuple,
    set: _set,
    frozenset: _frozenset,
}


def _item(value: Any, depth: int, step: str) -> Any:
    try:
        return plain(value, depth)
    except Mismatch as mismatch:
        raise mismatch.at(step) from None


def _refusal(value: Any) -> str:
    """Why a value of this type does not travel, and what to do instead."""
    kind = type(value)
    name = kind.__qualname__
    if isinstance(value, Enum) or hasattr(kind, "__dataclass_fields__"):
        return f"{name} only travels where it is declared; annotate the parameter, field or result as {name}"
    if isinstance(value, complex):
        return "complex does not travel; send a tuple of two floats"
    if isinstance(value, PurePath):
        return f"{name} does not travel; send str(path)"
    for base in (*SCALARS, *_CONTAINERS):
        if isinstance(value, base) and kind is not bool:
            return f"{name} would arrive as a plain {base.__name__}; send {base.__name__}(value)"
    if isinstance(value, (bytearray, memoryview)):
        return f"{name} does not travel; send bytes(value)"
    return f"{name} does not travel; use plain values, or declare a dataclass for it"
