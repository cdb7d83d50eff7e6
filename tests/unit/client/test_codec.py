"""Plain values and their bytes: what is kept, what is refused, and how fast garbage is."""

from __future__ import annotations

import math
import struct
import tracemalloc
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.client.codec import Codec
from farro.client.errors import InvalidPayload
from farro.client.reference import Reference, untyped_reference

CODEC = Codec()


class Color(Enum):
    RED = 1


class Count(int):
    pass


KEPT: list[Any] = [
    *(2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40), 0, -1),
    *(None, True, False, "", "grüße 🚚", b"", b"\x00\xff"),
    *(Decimal("1.10"), Decimal("-0"), Decimal("Infinity"), Decimal("1E+400")),
    UUID("12345678-1234-5678-1234-567812345678"),
    datetime(2100, 1, 1, 1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    *(date(2024, 2, 29), time(23, 59, 59, 1), time(1, tzinfo=UTC)),
    *(timedelta.min, timedelta.max, timedelta(microseconds=-1), timedelta(0)),
    *((1, 2), (), (1, (2, [3])), {1, 2}, set(), frozenset(), frozenset({(1, 2)})),
    {"a": [1, {2: b"x"}], (1, 2): None, True: 1.5, b"k": {}},
]


@pytest.mark.parametrize("value", KEPT, ids=ascii)
def test_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    back = CODEC.unpack(CODEC.pack(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1e308, 0.1])
def test_floats_are_bit_equal_ser_012(value: float) -> None:
    assert struct.pack(">d", CODEC.unpack(CODEC.pack(value))) == struct.pack(">d", value)


@pytest.mark.parametrize("fold", [0, 1])
def test_an_aware_datetime_keeps_its_instant_and_its_offset(fold: int) -> None:
    value = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    back = CODEC.unpack(CODEC.pack(value))
    assert back.timestamp() == value.timestamp()
    assert back.utcoffset() == value.utcoffset()


def test_equal_sets_have_equal_bytes() -> None:
    forward = set(range(2_000))
    backward = set(reversed(range(2_000)))
    assert CODEC.pack(forward) == CODEC.pack(backward)


def test_a_reference_comes_back_untyped_and_bound_to_the_codecs_caller() -> None:
    caller: Any = object()
    back = Codec(caller).unpack(CODEC.pack(untyped_reference("shipments", "s/42", None)))
    assert type(back) is Reference
    assert str(back.grain_id) == "shipments/s/42"
    assert back._caller is caller


REFUSED: list[tuple[Any, str]] = [
    (datetime(2020, 1, 1), r"naive datetime .* give it a time zone"),
    (1j, r"complex .* tuple of two floats"),
    (Path("x"), r"send str\(path\)"),
    (Color.RED, r"annotate .* as Color"),
    (Count(3), r"send int\(value\)"),
    (object(), r"object does not travel"),
    ("a\ud800", r"lone surrogate at position 1"),
    (bytearray(b"x"), r"send bytes\(value\)"),
    (time(1, tzinfo=ZoneInfo("Europe/Berlin")), r"depends on the date"),
]


@pytest.mark.parametrize(("value", "says"), REFUSED, ids=[type(value).__name__ for value, _ in REFUSED])
def test_what_does_not_travel_is_refused_where_it_stands_with_a_way_out(value: Any, says: str) -> None:
    with pytest.raises(InvalidPayload, match=r"^order\['lines'\]\[1\]: " + ".*" + says):
        CODEC.pack({"lines": [0, value]}, "order")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_nesting_up_to_the_limit_travels_and_beyond_it_does_not_ser_010() -> None:
    assert CODEC.unpack(CODEC.pack(nested(32))) == nested(32)
    for levels in (33, 400, 100_000):
        with pytest.raises(InvalidPayload, match="nested more than 32 levels"):
            CODEC.pack(nested(levels))


def test_more_than_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidPayload, match=r"1,048,581 bytes packed; at most 1,048,576"):
        CODEC.pack(b"x" * (1 << 20))


def test_a_refused_value_leaves_nothing_behind_for_the_next_one() -> None:
    codec = Codec()
    with pytest.raises(InvalidPayload):
        codec.pack_wire([1, 2, object()])
    assert codec.unpack(codec.pack(7)) == 7


GARBAGE: list[bytes] = [
    b"",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc1",
    b"\x91" * 100_000,
    b"\xdc\xff\xff" * 300_000,
    b"\xdd\x00\x0f\xff\xff" * 200_000,
    b"\x01\x02",
    b"\x82\x01\x01\x01\x02",
    b"\x82\x01\x01\xc3\x02",  # 1 and True are one key
    b"\xa1\xff",
    b"\xa5abc",
    b"\xc7\x01\x63\x00",  # unknown extension
    b"\xd6\xff\x00\x00\x00\x00",  # msgpack's own timestamp
    b"\xc7\x01\x01\x05",  # a small int as a big one
    b"\xc7\x03\x02 1 ",
    b"\xc7\x03\x021_0",
    b"\xc7\x03\x08\x92\x01\x02\x03",
    b"\xc7\x03\x09\x92\x01\x01",  # a set with the same element twice
    b"\xc7\x02\x09\x91\x90",  # a set of lists
    b"\xc7\x01\x0b\x90",
    b"\xd8\x03" + b"x" * 15,
    b"\xc7\x0a\x042024-01-01",
]


@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: data[:8].hex() or "empty")
def test_garbage_is_refused_quickly_and_without_memory_ser_009_ser_013(data: bytes) -> None:
    CODEC.pack(1)
    tracemalloc.start()
    try:
        start = perf_counter()
        with pytest.raises(InvalidPayload):
            CODEC.unpack(data)
        elapsed = perf_counter() - start
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert elapsed < 0.5  # loose for a busy machine; the order of magnitude of a decoded flood is seconds


def test_nested_extensions_do_not_get_around_the_limit() -> None:
    data = b"\x01"
    for _ in range(40):
        inner = b"\x91" + data
        data = b"\xc8" + len(inner).to_bytes(2, "big") + b"\x08" + inner
    with pytest.raises(InvalidPayload):
        CODEC.unpack(data)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
    | st.uuids()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_every_plain_value_survives_the_wire(value: Any) -> None:
    assert CODEC.unpack(CODEC.pack(value)) == value


@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_or_an_invalid_payload(data: bytes) -> None:
    try:
        value = CODEC.unpack(data)
    except InvalidPayload:
        return
    CODEC.pack(value)


CRAFTED: list[Any] = [
    [((1 << 70) + n) * (2**61 - 1) for n in range(20_000)],
    [Decimal(((1 << 70) + n) * (2**61 - 1)) for n in range(5_000)],
    [(((1 << 70) + n) * (2**61 - 1), 1) for n in range(5_000)],
    [UUID(int=n * (2**61 - 1)) for n in range(5_000)],
]


@pytest.mark.parametrize("values", CRAFTED, ids=["int", "Decimal", "tuple", "UUID"])
@pytest.mark.parametrize("code", [9, 10])
def test_a_set_of_values_with_equal_hashes_is_refused_before_it_is_built(
    values: list[Any], code: int
) -> None:
    data = msgpack.packb(msgpack.ExtType(code, CODEC.pack(values)))
    began = perf_counter()
    with pytest.raises(InvalidPayload, match="have the same hash; at most 64 may"):
        CODEC.unpack(data)
    assert perf_counter() - began < 1


@pytest.mark.parametrize("values", CRAFTED, ids=["int", "Decimal", "tuple", "UUID"])
def test_a_map_of_keys_with_equal_hashes_is_refused_before_it_is_built(values: list[Any]) -> None:
    pairs = b"".join(CODEC.pack(value) + b"\x00" for value in values)
    data = b"\xdf" + len(values).to_bytes(4, "big") + pairs
    began = perf_counter()
    with pytest.raises(InvalidPayload, match="have the same hash; at most 64 may"):
        CODEC.unpack(data)
    assert perf_counter() - began < 1


def test_what_could_not_be_unpacked_for_equal_hashes_is_not_packed() -> None:
    values = CRAFTED[0][:65]
    for value in (set(values), frozenset(values), dict.fromkeys(values)):
        with pytest.raises(InvalidPayload, match="have the same hash"):
            CODEC.pack(value)


def test_a_few_equal_hashes_and_many_different_ones_travel() -> None:
    values = {*CRAFTED[0][:63], *(1 << n for n in range(2_000)), *range(-500, 500)}
    assert CODEC.unpack(CODEC.pack(values)) == values
    assert CODEC.unpack(CODEC.pack(dict.fromkeys(values, 1))) == dict.fromkeys(values, 1)
