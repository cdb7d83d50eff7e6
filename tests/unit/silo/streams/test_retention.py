"""Old events go by their age; who missed them is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.silo.grains.grain import Grain
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World
from tests.unit.silo.streams.stream_kit import Billing, Listening, Shop, a_world, heard, until

HALF_S = 1_800.0  # half the retention


@pytest.fixture(params=["memory", "sqlite"])
def make_world(request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path) -> Callable[..., World]:
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'retention.db'}"

    def make(*grains: type[Grain[Any]]) -> World:
        return a_world(
            virtual, *grains, url=url, retention=timedelta(hours=1), trim_interval=timedelta(minutes=10)
        )

    return make


async def retained(world: World) -> list[Any]:
    events = world.silo.stream("orders", after="start")
    found: list[Any] = []
    try:
        async with asyncio.timeout(1):
            async for event in events:
                found.append(event.value)
    except TimeoutError:
        return found
    raise AssertionError("a stream ended by itself")


async def test_events_older_than_the_retention_are_deleted_and_younger_ones_stay(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(1, 2)
        await silo.grain(Shop, "b").sell(3)
        await asyncio.sleep(HALF_S)
        await silo.grain(Shop, "a").sell(4)
        assert sorted(await retained(world)) == [1, 2, 3, 4]
        await asyncio.sleep(1.5 * HALF_S)
        assert await retained(world) == [4]
        assert silo.rooms.streams.statistics.trimmed == 3
        assert silo.rooms.streams.statistics.trimmed_unread == 0
        await asyncio.sleep(HALF_S)
        assert await retained(world) == []


async def test_a_stream_of_an_earlier_silo_is_trimmed_though_nobody_publishes_to_it(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(1)
    await asyncio.sleep(3 * HALF_S)
    async with world.up() as silo:
        assert await retained(world) == [1]
        await asyncio.sleep(900)
        assert await retained(world) == []
        assert silo.rooms.streams.statistics.trimmed == 1


async def test_after_a_long_silence_subscriptions_catch_up_before_anything_is_deleted(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(1, 2)
    await asyncio.sleep(9 * HALF_S)
    world.grains = (Shop, Billing)
    async with world.up() as silo:
        await asyncio.sleep(HALF_S)
        assert await heard(world, Billing) == [1, 2]
        assert silo.rooms.streams.statistics.trimmed_unread == 0


async def test_a_subscriber_that_sleeps_longer_than_the_retention_misses_events_and_it_is_counted(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(Billing)
    gate = asyncio.Event()
    async with world.up() as silo:
        Listening.trouble = lambda event: gate.wait()
        await silo.grain(Shop, "a").sell(1)
        await until(world.clock, lambda: len(Listening.begun) == 1)
        for number in range(2, 102):  # more than the page that the lane already holds
            await silo.grain(Shop, "a").sell(number)
        with caplog.at_level(logging.WARNING, "farro.streams"):
            await asyncio.sleep(3 * HALF_S)
        assert silo.rooms.streams.statistics.trimmed_unread == 101
        assert any("older than 1:00:00" in record.getMessage() for record in caplog.records)
        gate.set()
        await silo.grain(Shop, "a").sell("new")
        await until(world.clock, lambda: silo.rooms.streams.statistics.delivered == 2)
        assert await heard(world, Billing) == [1, "new"]


async def test_a_named_consumer_that_was_away_too_long_is_told_of_the_gap(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    async with world.up() as silo:
        async with silo.stream("orders", consumer="slow", after="start") as events:
            await silo.grain(Shop, "a").sell(1, 2)
            assert (await anext(events)).value == 1
            assert (await anext(events)).value == 2
        await asyncio.sleep(3 * HALF_S)
        await silo.grain(Shop, "a").sell(3)
        async with silo.stream("orders", consumer="slow") as events:
            assert (await anext(events)).value == 3
            assert events.gaps == 1
        async with silo.stream("orders", after="start") as events:
            assert (await anext(events)).value == 3
            assert events.gaps == 0


async def test_a_store_that_refuses_to_trim_is_asked_again(virtual: VirtualClock) -> None:
    world = a_world(virtual, retention=timedelta(hours=1), trim_interval=timedelta(minutes=10))
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(1)
        await asyncio.sleep(1.9 * HALF_S)
        world.store.fail("trim_events", Fault.UNAVAILABLE)
        await asyncio.sleep(HALF_S)
        assert silo.rooms.streams.statistics.trimmed == 1
        assert await retained(world) == []
