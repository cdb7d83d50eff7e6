"""Where grains live: the same answer everywhere and for ever, spread evenly, with those they talk to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.client.errors import FarroError, IncompatibleState, InvalidGrainId, InvalidPayload
from farro.client.identity import partition_of
from farro.client.interface import grain_interface, interface_of
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.ownership import Ownership
from farro.silo.placement import HERE, OnSilo, place_of

keys = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1, max_size=40)


@dataclass(frozen=True)
class Declared:
    affinity: Any = None
    max_local: int = 0


def first_part(key: str) -> str:
    return key.split("/")[0]


class Order(Grain, name="orders", affinity=str):
    pass


class OrderLine(Grain, name="order-lines", affinity=first_part):
    pass


class Plain(Grain, name="plain"):
    pass


@pytest.mark.parametrize(
    ("grain_type", "key", "affinity", "at_64", "at_1024"),
    [
        ("shipments", "s-42", None, 0, 896),
        ("cart", "1", None, 38, 486),
        ("größe", "schlüssel/ß", None, 28, 924),
        ("orders", "7", str, 44, 172),
        ("order-lines", "7/1", first_part, 44, 172),
    ],
)
def test_a_place_is_the_same_in_every_release(
    grain_type: str, key: str, affinity: Any, at_64: int, at_1024: int
) -> None:
    # told by b2sum -l 64
    known = Declared(affinity)
    assert [place_of(grain_type, key, known, n) for n in (64, 1024)] == [at_64, at_1024]


def test_a_place_is_the_same_in_every_process() -> None:
    code = (
        "from farro.silo.placement import place_of\n"
        "print([place_of('a', str(n), None, 64) for n in range(50)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{[place_of('a', str(n), None, 64) for n in range(50)]}\n"}


@pytest.mark.parametrize("key", ["{}", "user-{:08d}", "{:x}/state"])
@pytest.mark.parametrize("affinity", [None, str], ids=["plain", "affinity"])
def test_a_hundred_thousand_ids_spread_evenly(key: str, affinity: Any) -> None:
    known = Declared(affinity)
    counts = Counter(place_of("t", key.format(n), known, 64) for n in range(100_000))
    mean = 100_000 / 64
    assert len(counts) == 64
    # 39.5 is the deviation of an even lot, and five of them 12.6 % of the mean
    assert all(abs(count - mean) < 5 * 39.5 for count in counts.values())
    spread = sum((count - mean) ** 2 for count in counts.values()) / mean
    assert 25 < spread < 120, "chi square with 63 degrees of freedom"


@given(key=keys, first=keys.filter(lambda text: "/" not in text))
def test_grains_of_one_affinity_share_a_partition_whatever_their_types(key: str, first: str) -> None:
    line, order = OrderLine.__farro_class__, Order.__farro_class__
    for partitions in (1, 64, 1024):
        place = place_of("order-lines", f"{first}/{key}", line, partitions)
        assert place == place_of("orders", first, order, partitions)
        assert isinstance(place, int)
        assert 0 <= place < partitions


@given(key=keys)
def test_a_plain_class_and_an_unknown_type_live_where_their_id_says(key: str) -> None:
    expected = partition_of("plain", key, 64)
    assert place_of("plain", key, Plain.__farro_class__, 64) == expected
    assert place_of("plain", key, None, 64) == expected


def test_an_int_and_a_uuid_are_affinities_as_they_are_keys() -> None:
    number = place_of("a", "x", Declared(lambda key: 7), 1024)
    assert number == place_of("b", "y", Declared(lambda key: "7"), 1024)
    uuid = UUID("12345678123456781234567812345678")
    assert place_of("a", "x", Declared(lambda key: uuid), 64) == place_of(
        "a", "x", Declared(lambda _: str(uuid)), 64
    )


@pytest.mark.parametrize(
    ("affinity", "problem"),
    [
        (lambda key: key.split("/")[1], "IndexError: list index out of range"),
        (lambda key: "", "affinity must not be empty"),
        (lambda key: None, "affinity must be str, int or UUID, not NoneType"),
        (lambda key: "a\x00b", "contains a NUL character"),
        (lambda key: "a" * 600, "at most 512 are allowed"),
        (lambda key: 1.5, "not float"),
    ],
)
def test_an_affinity_that_cannot_be_told_is_a_bad_grain_id(affinity: Any, problem: str) -> None:
    with pytest.raises(InvalidGrainId) as caught:
        place_of("order-lines", "7", Declared(affinity), 64)
    assert problem in str(caught.value)
    assert "order-lines/7" in str(caught.value)


# ---- pinned types


def test_pinned_types_live_where_they_say() -> None:
    assert [place_of("farro.partition", str(p), None, 64) for p in range(64)] == list(range(64))
    assert place_of("farro.silo", "12", None, 64) == OnSilo(12)


@pytest.mark.parametrize("key", ["64", "-1", "01", "x", "1.0", "٣", "9" * 30, " 1", "1_0"])
def test_a_partition_that_does_not_exist_is_a_bad_key(key: str) -> None:
    with pytest.raises(InvalidGrainId, match="must be a number from 0 to 63"):
        place_of("farro.partition", key, None, 64)


@pytest.mark.parametrize("key", ["0", "-1", "01", "all"])
def test_a_silo_number_that_cannot_be_is_a_bad_key(key: str) -> None:
    with pytest.raises(InvalidGrainId, match="must be a number of 1 or more"):
        place_of("farro.silo", key, None, 64)


def test_the_reminders_of_a_grain_are_managed_where_it_lives() -> None:
    classes = {each.__farro_type__: each.__farro_class__ for each in (Order, OrderLine, Plain)}
    for grain in ("orders/7", "order-lines/7/1", "order-lines/7/2"):
        assert place_of("farro.reminders", grain, None, 1024, classes.get) == place_of(
            "orders", "7", classes["orders"], 1024
        )
    assert place_of("farro.reminders", "plain/a/b", None, 64, classes.get) == place_of(
        "plain", "a/b", None, 64
    )
    assert place_of("farro.reminders", "gone/x", None, 64, classes.get) == place_of("gone", "x", None, 64)


@pytest.mark.parametrize("key", ["default", "no-id", "/x", "t/"])
def test_reminders_of_no_grain_are_a_plain_grain(key: str) -> None:
    assert place_of("farro.reminders", key, None, 64) == partition_of("farro.reminders", key, 64)


def test_a_stateless_worker_lives_here() -> None:
    worker = Declared(max_local=4)
    assert place_of("thumbnails", "x", worker, 64) == HERE
    reminders = place_of("farro.reminders", "thumbnails/x", None, 64, {"thumbnails": worker}.get)
    assert reminders == partition_of("farro.reminders", "thumbnails/x", 64)
    ownership = Ownership(64)
    ownership.know("thumbnails", worker)
    with pytest.raises(InvalidPayload, match="thumbnails/x lives in no partition"):
        ownership.partition_of("thumbnails", "x")


# ---- declarations


def test_an_affinity_that_is_no_function_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(TypeError, match=r"Bad: affinity= takes a plain function .*, not 'order'"):
        type("Bad", (Grain,), {}, affinity="order")

    async def later(key: str) -> str:
        return key

    with pytest.raises(TypeError, match="takes a plain function"):
        type("Bad", (Grain,), {}, affinity=later)


def test_an_affinity_is_not_inherited_and_a_client_without_the_class_can_name_it() -> None:
    class Special(OrderLine, name="special-lines"):
        pass

    assert interface_of(Special).affinity is None

    @grain_interface("order-lines", affinity=first_part)
    class Lines:
        async def add(self) -> None: ...

    assert interface_of(Lines).affinity is interface_of(OrderLine).affinity is first_part


# ---- stored grains


@dataclass
class Count:
    n: int = 0


def counting(affinity: Any) -> type[Grain[Count]]:
    class Counting(Grain[Count], name="counting", affinity=affinity):
        async def count(self) -> int:
            self.state.n += 1
            return self.state.n

    return Counting


def remembering(affinity: Any) -> type[Grain[Any]]:
    class Remembering(Grain, name="remembering", affinity=affinity):
        async def remember(self) -> None:
            await self.register_or_update_reminder("later", due=None, cron="0 0 1 1 *")

        async def receive_reminder(self, name: str, status: Any) -> None: ...

    return Remembering


@pytest.mark.parametrize(("make", "method"), [(counting, "count"), (remembering, "remember")])
async def test_a_grain_whose_affinity_changed_says_so_and_keeps_what_it_has(make: Any, method: str) -> None:
    store = MemoryStore()

    async def call(affinity: Any) -> Any:
        async with Silo([make(affinity)], MemoryProvider(store)) as silo:
            return await silo.call(make(None).__farro_type__, "a/1", method)

    first = await call(first_part)
    with pytest.raises(FarroError) as caught:
        await call(None)
    assert isinstance(caught.value, IncompatibleState)
    assert "affinity= has changed since" in str(caught.value)
    assert await call(first_part) == (first + 1 if first else None)
