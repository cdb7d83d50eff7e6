"""Plain values ↔ msgpack bytes: the extension types, the limits, and nothing else.

Theory of operation.  Two layers make a payload.  :mod:`farro.client.converters` turns values of declared
types into *wire values*; this file turns wire values into bytes.  A wire value is ``None``, ``bool``,
``int``, ``float``, ``str``, ``bytes``, ``list``, ``dict``, or one of the extension types below, each of
exactly that type: a subclass is refused, because it would come back as its base.

=====  ==========  =====================================================================
code   type        payload
=====  ==========  =====================================================================
1      int         two's complement, big-endian; only values that msgpack's 64 bits do not hold
2      Decimal     its text
3      UUID        16 bytes
4      datetime    ISO text with offset (the zone becomes its offset at that instant)
5      date        ISO text
6      time        ISO text, with offset if it has a fixed one
7      timedelta   msgpack ``[days, seconds, microseconds]``, normalized as Python does
8      tuple       msgpack array
9      set         msgpack array, sorted by packed bytes: equal sets have equal bytes
10     frozenset   the same
11     reference   msgpack ``[type, key]``
=====  ==========  =====================================================================

Decoding builds these types and no others: no class is looked up, imported or called by a name in the data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack

from farro.client.errors import InvalidPayload
from farro.client.plain import NESTING_MAX, Mismatch, check_hashes, plain
from farro.client.reference import Caller, Reference, untyped_reference
from farro.client.structure import check_structure

PAYLOAD_BYTES_MAX = 1 << 20

BIG_INT, DECIMAL, UUID_CODE, DATETIME, DATE, TIME, TIMEDELTA, TUPLE, SET, FROZENSET, REFERENCE = range(1, 12)

_INT64_MIN = -(1 << 63)
_UINT64_MAX = (1 << 64) - 1


def _packb(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_to_extension, strict_types=True, use_bin_type=True)
    return packed


def packed_each(values: Any) -> list[bytes]:
    """Each wire value packed by itself; sorted, this is the canonical order of sets."""
    return [_packb(value) for value in values]


def array_header(count: int) -> bytes:
    """The msgpack header of an array of ``count`` elements."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 65_536:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def _pack_set(value: Any) -> bytes:
    check_hashes(value)
    return array_header(len(value)) + b"".join(sorted(packed_each(value)))


def _pack_int(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


_ENCODERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (BIG_INT, _pack_int),
    Decimal: (DECIMAL, lambda v: str(v).encode()),
    UUID: (UUID_CODE, lambda v: v.bytes),
    datetime: (DATETIME, lambda v: v.isoformat().encode()),
    date: (DATE, lambda v: v.isoformat().encode()),
    time: (TIME, lambda v: v.isoformat().encode()),
    timedelta: (TIMEDELTA, lambda v: _packb([v.days, v.seconds, v.microseconds])),
    tuple: (TUPLE, lambda v: _packb(list(v))),
    set: (SET, _pack_set),
    frozenset: (FROZENSET, _pack_set),
}


def _to_extension(value: Any) -> msgpack.ExtType:
    found = _ENCODERS.get(type(value))
    if found is not None:
        code, encode = found
        return msgpack.ExtType(code, encode(value))
    if isinstance(value, Reference):
        grain_id = value.grain_id
        return msgpack.ExtType(REFERENCE, _packb([grain_id.type, grain_id.key]))
    raise TypeError(f"{type(value).__qualname__} is not a wire value")


class Codec:
    """Packs and unpacks wire values.  ``caller`` is what unpacked references will call through.

    One codec serves one thread at a time.
    """

    __slots__ = ("_caller", "_depth", "_packer", "bytes_max")

    def __init__(self, caller: Caller | None = None, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._caller = caller
        self._depth = 0
        self._packer = self._new_packer()
        self.bytes_max = bytes_max

    @staticmethod
    def _new_packer() -> msgpack.Packer:
        return msgpack.Packer(default=_to_extension, strict_types=True, use_bin_type=True)

    def pack(self, value: Any, path: str = "value") -> bytes:
        """The bytes of any plain value.

        Raises :class:`InvalidPayload`, naming the path inside ``value``, the rule and the way out, for what
        the wire does not carry: other classes (subclasses included), naive datetimes, lone surrogates,
        nesting beyond 32 levels, more than ``bytes_max`` bytes.
        """
        try:
            wire = plain(value)
        except Mismatch as mismatch:
            raise InvalidPayload(mismatch.text(path)) from None
        return self.pack_wire(wire, path)

    def pack_wire(self, wire: Any, path: str = "value") -> bytes:
        """:meth:`pack` for a value that a converter made: already checked, so only the size is looked at."""
        data = self.pack_unbounded(wire, path)
        if len(data) > self.bytes_max:
            raise InvalidPayload(
                f"{path} takes {len(data):,} bytes packed; at most {self.bytes_max:,} are allowed. "
                "Send it in parts, or send a pointer to where it is stored"
            )
        return data

    def pack_unbounded(self, wire: Any, path: str = "value") -> bytes:
        """:meth:`pack_wire` for who looks at the size himself."""
        try:
            data: bytes = self._packer.pack(wire)
        except Mismatch as mismatch:
            self._packer = self._new_packer()
            raise InvalidPayload(mismatch.text(path)) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            # A failed pack leaves half a message in the packer's buffer.
            self._packer = self._new_packer()
            raise InvalidPayload(f"{path} cannot be sent: {error}") from error
        return data

    def unpack(self, data: bytes, path: str = "value") -> Any:
        """The inverse of :meth:`pack`.  References come back untyped, bound to the codec's caller.

        Raises :class:`InvalidPayload` for anything :meth:`pack` would not have made: truncated data, bytes
        after the end, duplicate keys, unknown extensions, lengths that the data cannot hold.
        """
        wire = self.unpack_wire(data, path)
        try:
            return plain(wire)
        except Mismatch as mismatch:
            raise InvalidPayload(mismatch.text(path)) from None

    def unpack_wire(self, data: bytes, path: str = "value") -> Any:
        """:meth:`unpack` without the walk over the result: for values that a converter will decode."""
        if len(data) > self.bytes_max:
            raise InvalidPayload(f"{path} is {len(data):,} bytes; at most {self.bytes_max:,} are allowed")
        try:
            check_structure(data)
            return self._unpackb(data)
        except Mismatch as mismatch:
            raise InvalidPayload(mismatch.text(path)) from None
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            text = str(error) or type(error).__name__
            raise InvalidPayload(f"{path} is not a valid payload: {text}") from error

    def _unpackb(self, data: bytes) -> Any:
        return msgpack.unpackb(
            data, raw=False, strict_map_key=False, ext_hook=self._from_extension, object_pairs_hook=_unique
        )

    def _from_extension(self, code: int, data: bytes) -> Any:
        self._depth += 1
        try:
            if self._depth > NESTING_MAX:
                raise ValueError(f"nested more than {NESTING_MAX} levels")
            return self._decode(code, data)
        finally:
            self._depth -= 1

    def _decode(self, code: int, data: bytes) -> Any:
        text_decoder = _TEXT_DECODERS.get(code)
        if text_decoder is not None:
            return _canonical(text_decoder, data.decode("ascii"))
        if code == UUID_CODE:
            return UUID(bytes=data)
        if code == BIG_INT:
            return _big_int(data)
        if code not in (TIMEDELTA, TUPLE, SET, FROZENSET, REFERENCE):
            raise ValueError(f"unknown extension type {code}")
        check_structure(data)
        items = self._unpackb(data)
        if type(items) is not list:
            raise ValueError(f"extension type {code} must hold an array")
        if code == TUPLE:
            return tuple(items)
        if code == TIMEDELTA:
            return _timedelta(items)
        if code == REFERENCE:
            return _reference(items, self._caller)
        check_hashes(items)
        found = set(items) if code == SET else frozenset(items)
        if len(found) != len(items):
            raise ValueError("a set holds the same element twice")
        return found


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    check_hashes([key for key, _ in pairs])
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a map holds the same key twice")
    return found


def _datetime(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError(f"datetime {text!r} has no offset")
    return value


_TEXT_DECODERS: dict[int, Callable[[str], Any]] = {
    DECIMAL: Decimal,
    DATETIME: _datetime,
    DATE: date.fromisoformat,
    TIME: time.fromisoformat,
}


def _canonical(decode: Callable[[str], Any], text: str) -> Any:
    value = decode(text)
    written = str(value) if type(value) is Decimal else value.isoformat()
    if written != text:
        raise ValueError(f"{text!r:.80} is not the canonical text of its value")
    return value


def _big_int(data: bytes) -> int:
    value = int.from_bytes(data, "big", signed=True)
    if _INT64_MIN <= value <= _UINT64_MAX or len(data) != value.bit_length() // 8 + 1:
        raise ValueError("an integer is not in its shortest form")
    return value


def _timedelta(items: list[Any]) -> timedelta:
    if len(items) != 3 or any(type(item) is not int for item in items):
        raise ValueError("a timedelta must be [days, seconds, microseconds]")
    days, seconds, microseconds = items
    if not (0 <= seconds < 86_400 and 0 <= microseconds < 1_000_000 and abs(days) < 1_000_000_000):
        raise ValueError("a timedelta is out of range")
    return timedelta(days, seconds, microseconds)


def _reference(items: list[Any], caller: Caller | None) -> Reference:
    if len(items) != 2 or type(items[0]) is not str or type(items[1]) is not str:
        raise ValueError("a reference must be [type, key]")
    return untyped_reference(items[0], items[1], caller)
