"""Converters: one compiled object per declared type, between its values and wire values.

``enc`` and ``dec`` are the inner verbs: they raise :class:`Mismatch` and count nesting.  ``encode`` and
``decode`` are for the border: they name the whole path.  What a converter says about itself:

``passes_through``
    ``enc`` gives an immutable value that ``dec`` would give back unchanged: a local call may use it as it is.
``types`` / ``wire_types``
    the exact types it takes from the author and from the wire; unions choose by them.
``hashable``
    its wire form can stand in a set or be a key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from farro.client.codec import packed_each
from farro.client.errors import InvalidPayload
from farro.client.plain import NESTING_MAX, SCALARS, Mismatch, check_hashes, plain, show, too_deep, unchanged


class Converter:
    """See the head of the file."""

    __slots__ = ("hashable", "name", "passes_through", "types", "wire_types")

    def __init__(
        self,
        name: str,
        types: tuple[type, ...],
        wire_types: tuple[type, ...],
        *,
        passes_through: bool = False,
        hashable: bool = True,
    ) -> None:
        self.name = name
        self.types = types
        self.wire_types = wire_types
        self.passes_through = passes_through
        self.hashable = hashable

    def enc(self, value: Any, depth: int) -> Any:
        raise NotImplementedError

    def dec(self, wire: Any, depth: int) -> Any:
        raise NotImplementedError

    def encode(self, value: Any, path: str = "value") -> Any:
        """The wire value of ``value``; :class:`InvalidPayload` naming the path if it does not fit."""
        try:
            return self.enc(value, 0)
        except Mismatch as mismatch:
            raise InvalidPayload(mismatch.text(path)) from None

    def decode(self, wire: Any, path: str = "value") -> Any:
        """The value that ``wire`` stands for; :class:`InvalidPayload` naming the path if it does not fit."""
        try:
            return self.dec(wire, 0)
        except Mismatch as mismatch:
            raise InvalidPayload(mismatch.text(path)) from None

    def expected(self, value: Any) -> Mismatch:
        kind = type(value)
        shown = "None" if value is None else kind.__qualname__
        if kind in SCALARS and value is not None:
            shown += f" {show(value)}"
        problem = f"expected {self.name}, got {shown}"
        for base in self.types:
            if isinstance(value, base) and kind is not base and not (base is int and kind is bool):
                problem += f"; a subclass would arrive as {base.__qualname__}, so it is refused"
                break
        return Mismatch(problem)


class Anything(Converter):
    """``Any`` and ``object``: the type travels with the value."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("any value", (object,), (object,), hashable=False)

    def enc(self, value: Any, depth: int) -> Any:
        return plain(value, depth)

    def dec(self, wire: Any, depth: int) -> Any:
        return plain(wire, depth)


class Scalar(Converter):
    """A type that the wire carries as it is.  ``normal`` checks the value and reduces it to what arrives."""

    __slots__ = ("_normal", "_parse")

    def __init__(self, *types: type, parse: Callable[[str], Any] | None = None) -> None:
        name = "None" if types[0] is type(None) else types[0].__name__
        super().__init__(name, types, types, passes_through=True)
        self._normal = SCALARS[types[0]] if len(types) == 1 else unchanged
        self._parse = parse

    def enc(self, value: Any, depth: int) -> Any:
        if type(value) not in self.types:
            raise self.expected(value)
        return value if self._normal is unchanged else self._normal(value)

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) in self.types:
            return self._normal(wire)
        if self._parse is not None and type(wire) is str:
            # Tools that only have JSON write these types as text; here the declaration says what it means.
            try:
                return self._normal(self._parse(wire))
            except (ValueError, ArithmeticError):
                raise Mismatch(f"expected {self.name}, got text that is none: {show(wire)}") from None
        raise self.expected(wire)


# An int where float is declared stays an int, as in Python itself; a bool is no int and no float.
SCALAR_CONVERTERS: dict[Any, Converter] = {
    None: (_NONE := Scalar(type(None))),
    type(None): _NONE,
    bool: Scalar(bool),
    int: Scalar(int),
    float: Scalar(float, int),
    str: Scalar(str),
    bytes: Scalar(bytes),
    Decimal: Scalar(Decimal, parse=Decimal),
    UUID: Scalar(UUID, parse=UUID),
    datetime: Scalar(datetime, parse=datetime.fromisoformat),
    date: Scalar(date, parse=date.fromisoformat),
    time: Scalar(time, parse=time.fromisoformat),
    timedelta: Scalar(timedelta),
}


def deeper(depth: int) -> int:
    if depth >= NESTING_MAX:
        raise too_deep()
    return depth + 1


def convert_all(convert: Callable[[Any, int], Any], values: Any, depth: int) -> list[Any]:
    """Each element converted; a misfit names its index."""
    try:
        return [convert(value, depth) for value in values]
    except Mismatch:
        for index, value in enumerate(values):
            step(convert, value, depth, f"[{index}]")
        raise


def step(convert: Callable[[Any, int], Any], value: Any, depth: int, name: str) -> Any:
    try:
        return convert(value, depth)
    except Mismatch as mismatch:
        raise mismatch.at(name) from None


class ListConverter(Converter):
    __slots__ = ("_item",)

    def __init__(self, item: Converter) -> None:
        super().__init__("list", (list,), (list,), hashable=False)
        self._item = item

    def enc(self, value: Any, depth: int) -> Any:
        if type(value) is not list:
            raise self.expected(value)
        return convert_all(self._item.enc, value, deeper(depth))

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) is not list:
            raise self.expected(wire)
        return convert_all(self._item.dec, wire, deeper(depth))


class SequenceConverter(Converter):
    """``tuple[T, ...]``, and sets whose elements are hashable on the wire.

    A received list is taken too: tools that only have JSON write nothing else.
    """

    __slots__ = ("_item", "_kind")

    def __init__(self, kind: type, item: Converter) -> None:
        passes = item.passes_through and kind is not set
        super().__init__(
            kind.__name__, (kind,), (kind, list), passes_through=passes, hashable=kind is not set
        )
        self._kind = kind
        self._item = item

    def enc(self, value: Any, depth: int) -> Any:
        if type(value) is not self._kind:
            raise self.expected(value)
        return self._made(convert_all(self._item.enc, value, deeper(depth)))

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) is not self._kind and type(wire) is not list:
            raise self.expected(wire)
        return self._made(convert_all(self._item.dec, wire, deeper(depth)))

    def _made(self, items: list[Any]) -> Any:
        if self._kind is not tuple:
            check_hashes(items)
        return self._kind(items)


class RecordSetConverter(Converter):
    """A set whose elements are maps on the wire: a list there, sorted by packed bytes."""

    __slots__ = ("_item", "_kind")

    def __init__(self, kind: type, item: Converter) -> None:
        super().__init__(kind.__name__, (kind,), (list,), hashable=False)
        self._kind = kind
        self._item = item

    def enc(self, value: Any, depth: int) -> Any:
        if type(value) is not self._kind:
            raise self.expected(value)
        wires = convert_all(self._item.enc, value, deeper(depth))
        return [wire for _, wire in sorted(zip(packed_each(wires), wires, strict=True), key=_first)]

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) is not list:
            raise self.expected(wire)
        items = convert_all(self._item.dec, wire, deeper(depth))
        check_hashes(items)
        found = self._kind(items)
        if len(found) != len(items):
            raise Mismatch("a set holds the same element twice")
        return found


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


class FixedTuple(Converter):
    """``tuple[A, B]`` and NamedTuple classes (whose missing last fields take their defaults)."""

    __slots__ = ("_items", "_labels", "_make", "_required")

    def __init__(
        self,
        kind: type,
        items: list[Converter],
        labels: list[str],
        required: int,
    ) -> None:
        passes = kind is tuple and all(item.passes_through for item in items)
        hashable = all(item.hashable for item in items)
        super().__init__(kind.__name__, (kind,), (tuple, list), passes_through=passes, hashable=hashable)
        self._items = items
        self._labels = labels
        self._make: Callable[[list[Any]], Any] = tuple if kind is tuple else lambda parts: kind(*parts)
        self._required = required

    def enc(self, value: Any, depth: int) -> Any:
        parts: tuple[Any, ...] = value
        if type(value) is not self.types[0]:
            raise self.expected(value)
        if len(parts) != len(self._items):
            raise self._wrong_length(parts)
        depth = deeper(depth)
        rows = zip(self._items, parts, self._labels, strict=True)
        return tuple([step(item.enc, part, depth, label) for item, part, label in rows])

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) is not tuple and type(wire) is not list:
            raise self.expected(wire)
        if not self._required <= len(wire) <= len(self._items):
            raise self._wrong_length(wire)
        depth = deeper(depth)
        rows = zip(self._items, wire, self._labels, strict=False)
        return self._make([step(item.dec, part, depth, label) for item, part, label in rows])

    def _wrong_length(self, value: Any) -> Mismatch:
        return Mismatch(f"expected {self.name} of {len(self._items)} elements, got {len(value)}")


class DictConverter(Converter):
    __slots__ = ("_key", "_value")

    def __init__(self, key: Converter, value: Converter) -> None:
        super().__init__("dict", (dict,), (dict,), hashable=False)
        self._key = key
        self._value = value

    def enc(self, value: Any, depth: int) -> Any:
        return self._convert(value, depth, self._key.enc, self._value.enc)

    def dec(self, wire: Any, depth: int) -> Any:
        return self._convert(wire, depth, self._key.dec, self._value.dec)

    def _convert(
        self, found: Any, depth: int, key: Callable[[Any, int], Any], value: Callable[[Any, int], Any]
    ) -> Any:
        if type(found) is not dict:
            raise self.expected(found)
        depth = deeper(depth)
        try:
            keys = [key(k, depth) for k in found]
            check_hashes(keys)  # the converted ones: those that arrived may have had other hashes
            made = dict(zip(keys, [value(v, depth) for v in found.values()], strict=True))
        except Mismatch:
            for k, v in found.items():
                step(key, k, depth, f"[key {show(k)}]")
                step(value, v, depth, f"[{show(k)}]")
            raise
        if len(made) != len(found):
            raise Mismatch("two keys of the dict become the same key")
        return made
