"""Streams read from outside: through a gateway by two clients, and what a reader may rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from farro.client.client import Client
from farro.client.errors import InvalidPayload, Overloaded, SiloStopping
from farro.client.streams import EventStream
from farro.providers.rows import EventRow
from farro.silo.host import Silo
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.streams.stream_kit import Shop, a_world


async def take(events: EventStream, count: int) -> list[Any]:
    return [(await anext(events)).value for _ in range(count)]


async def nothing_more(events: EventStream, seconds: float = 30.0) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await anext(events)


# ---- over a real gateway


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Silo]:
    async with Silo([Shop], f"sqlite:///{tmp_path / 'read.db'}", listen="127.0.0.1:0") as silo:
        yield silo


async def test_two_clients_follow_a_stream_that_a_third_makes_grow(served: Silo) -> None:
    address = served.address
    assert address is not None
    async with (
        Client(address) as one,
        Client(address) as two,
        Client(address) as three,
        one.stream("orders") as left,
        two.stream("orders") as right,
    ):
        waiting = [asyncio.ensure_future(take(each, 3)) for each in (left, right)]
        for number in range(3):
            await three.grain(Shop, "a").sell({"n": number})
        expected = [{"n": 0}, {"n": 1}, {"n": 2}]
        assert await asyncio.gather(*waiting) == [expected, expected]


async def test_a_named_consumer_goes_on_in_another_client_where_it_stood(served: Silo) -> None:
    address = served.address
    assert address is not None
    async with Client(address) as client, client.stream("orders", consumer="audit") as events:
        await client.grain(Shop, "a").sell(1, 2, 3)
        assert await take(events, 2) == [1, 2]
    async with Client(address) as other, other.stream("orders", consumer="audit") as events:
        # the second was handed out, but no next one was asked for
        assert await take(events, 2) == [2, 3]


async def test_a_reader_goes_on_when_its_silo_is_replaced(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'replaced.db'}"
    async with Silo([Shop], url, listen="127.0.0.1:0") as first:
        address = first.address
        assert address is not None
        client = Client(address)
        await client.open()
        events = client.stream("orders")
        await client.grain(Shop, "a").sell(0)
        async with events:
            await client.grain(Shop, "a").sell(1)
            assert await take(events, 1) == [1]
            waiting = asyncio.ensure_future(take(events, 1))
            await first.stop()
            async with Silo([Shop], url, listen=address):
                await client.grain(Shop, "a").sell(2)
                assert await waiting == [2]
                await client.close()


async def test_closing_the_client_ends_a_waiting_reader(served: Silo) -> None:
    assert served.address is not None
    client = Client(served.address)
    await client.open()
    async with client.stream("orders") as events:
        waiting = asyncio.ensure_future(take(events, 1))
        while client.statistics().calls_pending == 0:  # noqa: ASYNC110 - one round each
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Exception, match="closed"):
            await waiting


# ---- on virtual time


async def test_a_reader_waits_without_asking_the_store_and_hears_a_commit_at_once(
    virtual: VirtualClock,
) -> None:
    world = a_world(virtual)
    async with world.up() as silo, silo.stream("orders") as events:
        waiting = asyncio.ensure_future(take(events, 1))
        await asyncio.sleep(1)
        world.store.calls.clear()
        await asyncio.sleep(70)
        assert world.store.calls["stream_heads"] <= 10
        began = virtual.now()
        await silo.grain(Shop, "a").sell("x")
        assert await waiting == ["x"]
        assert virtual.now() == began


async def test_after_now_begins_where_the_stream_is_entered_and_after_start_with_what_is_retained(
    virtual: VirtualClock,
) -> None:
    world = a_world(virtual)
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(1)
        async with silo.stream("orders") as now, silo.stream("orders", after="start") as start:
            await silo.grain(Shop, "a").sell(2)
            await silo.grain(Shop, "never published before").sell(3)
            assert sorted(await take(now, 2)) == [2, 3]
            assert sorted(await take(start, 3)) == [1, 2, 3]
            await nothing_more(now)


async def test_pages_keep_the_order_of_each_publisher_and_lose_nothing(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    async with world.up() as silo:
        for number in range(40):
            await asyncio.gather(*(silo.grain(Shop, key).sell([key, number]) for key in "abcdefg"))
        async with silo.stream("orders", after="start") as events:
            found = await take(events, 280)
            await nothing_more(events)
        for key in "abcdefg":
            assert [number for each, number in found if each == key] == list(range(40))


async def test_large_events_come_in_replies_that_fit_into_a_frame(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    async with world.up() as silo:
        for number in range(12):
            await silo.grain(Shop, f"s{number}").sell([number, b"x" * 200_000])
        async with silo.stream("orders", after="start") as events:
            assert sorted(number for number, _ in await take(events, 12)) == list(range(12))
        assert silo.rooms.streams.statistics.reads >= 5


async def test_a_deeply_nested_value_reaches_a_reader_too(virtual: VirtualClock) -> None:
    value: Any = 1
    for _ in range(28):
        value = [value]
    world = a_world(virtual)
    async with world.up() as silo, silo.stream("orders") as events:
        await silo.grain(Shop, "a").sell(value)
        assert await take(events, 1) == [value]


async def test_a_consumer_stands_where_it_stood_after_a_crash_of_the_silo(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    silo = await world.start()
    async with silo.stream("orders", consumer="c") as events:
        await silo.grain(Shop, "a").sell(1, 2, 3)
        assert await take(events, 3) == [1, 2, 3]
    await world.crash()
    async with world.up() as silo:
        async with silo.stream("orders", consumer="c") as events:
            assert await take(events, 1) == [3]
            await nothing_more(events)
        async with silo.stream("orders", consumer="c", after="start") as events:
            await nothing_more(events)  # after= counts the first time only
        async with silo.stream("orders", consumer="another", after="start") as events:
            assert await take(events, 3) == [1, 2, 3]


async def test_a_lost_answer_to_an_acknowledgement_is_no_trouble(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    async with world.up() as silo, silo.stream("orders", consumer="c") as events:
        await silo.grain(Shop, "a").sell(1, 2)
        assert await take(events, 1) == [1]
        world.store.fail("commit", Fault.LOST_AFTER)
        assert await take(events, 1) == [2]
        await silo.grain(Shop, "a").sell(3)
        world.store.fail("commit", Fault.UNAVAILABLE)
        world.store.fail("events", Fault.UNAVAILABLE)
        assert await take(events, 1) == [3]


async def test_cancelling_a_wait_loses_nothing(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    async with world.up() as silo, silo.stream("orders") as events:
        for number in range(5):
            await nothing_more(events, 0.5)
            await silo.grain(Shop, "a").sell(number)
            assert await take(events, 1) == [number]


async def test_a_silo_that_stops_does_not_wait_for_its_readers(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    silo = await world.start()
    events = silo.stream("orders")
    waiting = asyncio.ensure_future(take(events, 1))
    await asyncio.sleep(1)
    began = virtual.now()
    await silo.stop()
    assert virtual.now() - began < 1_000_000
    with pytest.raises(SiloStopping):
        await waiting


async def test_an_event_that_cannot_be_read_is_passed_over_and_counted(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    async with world.up() as silo, silo.stream("orders") as events:

        async def garbage(bell: Any) -> None:
            bell.turn.effects.events.append(EventRow("orders", b"\xc1", virtual.now()))

        await world.do("b", garbage)
        await silo.grain(Shop, "a").sell("fine")
        assert await take(events, 1) == ["fine"]
        await nothing_more(events)
        assert events.unreadable == 1


async def test_more_readers_than_readers_max_are_refused(virtual: VirtualClock) -> None:
    world = a_world(virtual, readers_max=2)
    async with world.up() as silo:
        reads = [
            asyncio.ensure_future(silo.call("farro.streams", "orders", "read", "orders", {}, 10, 5.0))
            for _ in range(2)
        ]
        await asyncio.sleep(1)
        with pytest.raises(Overloaded, match="readers_max"):
            await silo.call("farro.streams", "orders", "read", "orders", {}, 10, 5.0)
        await asyncio.gather(*reads)
        await silo.call("farro.streams", "orders", "read", "orders", {}, 10, 0.0)


@pytest.mark.parametrize(
    ("limit", "wait_s"), [(0, 1.0), (10_000, 1.0), (1, -1.0), (1, 3_600.0), (1, float("nan"))]
)
async def test_a_read_beyond_its_bounds_is_refused(virtual: VirtualClock, limit: int, wait_s: float) -> None:
    world = a_world(virtual)
    async with world.up() as silo:
        with pytest.raises(InvalidPayload, match="a read takes limit"):
            await silo.call("farro.streams", "orders", "read", "orders", {}, limit, wait_s)
