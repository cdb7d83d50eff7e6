"""What a turn publishes: checked where it is asked for, there with the commit or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from farro.client.errors import FarroError, GrainCallFailed
from farro.client.reference import Reference
from farro.silo.options import OptionsError, ReminderOptions, SiloOptions, StreamOptions
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World
from tests.unit.silo.streams.stream_kit import Billing, Listening, Shop, a_world, heard, until


async def events_of(world: World, stream: str) -> list[bytes]:
    heads = await world.store.inner.stream_heads(stream)
    pages = [await world.store.inner.events(partition, stream, 0, 1_000) for partition, _ in heads]
    return [row.payload for page in pages for _, row in page]


async def test_values_arrive_as_they_were_published(virtual: VirtualClock) -> None:
    values: list[Any] = [
        None,
        2**80,
        Decimal("1.10"),
        b"\x00",
        (1, {"a": {3, 4}}),
        datetime(2031, 1, 2, tzinfo=UTC),
        timedelta(days=-1),
    ]
    world = a_world(virtual, Billing)
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(*values)
        await until(virtual, lambda: len(Listening.begun) == len(values))
        assert [event.value for _, event in Listening.begun] == values


async def test_a_reference_in_an_event_can_be_called_by_whoever_gets_it(virtual: VirtualClock) -> None:
    world = a_world(virtual, Billing)
    answers: list[Any] = []
    async with world.up() as silo:

        async def publish(bell: Bell) -> None:
            bell.publish("orders", bell.grain(Shop, "a"))

        async def trouble(event: Any) -> None:
            assert isinstance(event.value, Reference)
            answers.append(await silo.call(event.value.grain_id.type, event.value.grain_id.key, "sold"))

        Listening.trouble = trouble
        await world.do("b", publish)
        await until(virtual, lambda: answers == [0])


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 201, "ü" * 101, None, 7, b"orders"])
async def test_a_name_that_cannot_be_a_stream_is_refused_in_the_turn(
    virtual: VirtualClock, name: Any
) -> None:
    world = a_world(virtual)
    async with world.up():
        with pytest.raises(GrainCallFailed, match="stream name"):
            await world.do("b", lambda bell: bell.publish(name, 1))
        assert await world.store.inner.watermarks("farro.streams.known", "all") == {}


@pytest.mark.parametrize("name", ["x" * 200, "a/b:1>2", "стрим", " ", "farro.reminders.missed"])
async def test_any_other_name_is_a_stream_of_its_own(virtual: VirtualClock, name: str) -> None:
    world = a_world(virtual)
    async with world.up() as silo:
        await silo.grain(Shop, "a").say(name, 1)
        await silo.grain(Shop, "a").say(name[:-1] + "~", 2)
        assert len(await events_of(world, name)) == 1


async def test_a_value_that_does_not_travel_is_refused_by_its_path(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    async with world.up():
        with pytest.raises(GrainCallFailed, match=r"event\['value'\]\['x'\]\[1\]: object does not travel"):
            await world.do("b", lambda bell: bell.publish("orders", {"x": [1, object()]}))
        with pytest.raises(GrainCallFailed, match="time zone"):
            await world.do("b", lambda bell: bell.publish("orders", datetime(2030, 1, 1)))
        assert await events_of(world, "orders") == []


async def test_sizes_and_numbers_are_bounded_and_the_error_names_the_option(virtual: VirtualClock) -> None:
    world = a_world(virtual, event_bytes_max=1_000, events_per_turn_max=3, streams_max=2)
    async with world.up() as silo:
        shop = silo.grain(Shop, "a")
        with pytest.raises(GrainCallFailed, match=r"at most 1,000 are allowed: publish a pointer"):
            await shop.sell(b"x" * 1_000)
        with pytest.raises(GrainCallFailed, match="events_per_turn_max"):
            await shop.sell(1, 2, 3, 4)
        await shop.sell(1, 2, 3)
        await shop.say("two", 1)
        with pytest.raises(GrainCallFailed, match=r"StreamOptions.streams_max \(2\)"):
            await shop.say("three", 1)
        await shop.say("two", 2)
        assert (len(await events_of(world, "orders")), len(await events_of(world, "two"))) == (3, 2)


async def test_a_readonly_turn_publishes_nothing(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    async with world.up() as silo:
        with pytest.raises(GrainCallFailed, match="readonly"):
            await silo.grain(Shop, "a").peek()


async def test_a_grain_may_publish_and_then_destroy_itself_but_not_the_other_way_round(
    virtual: VirtualClock,
) -> None:
    world = a_world(virtual, Billing)
    async with world.up() as silo:
        with pytest.raises(GrainCallFailed, match="after destroy"):
            await silo.grain(Shop, "a").close_down_and_sell()
        await silo.grain(Shop, "a").close_down()
        await until(virtual, lambda: silo.rooms.streams.statistics.delivered == 1)
        assert await heard(world, Billing) == ["last words"]


async def test_publishing_outside_a_turn_is_refused(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    kept: list[Bell] = []
    async with world.up():
        await world.do("b", kept.append)
        with pytest.raises(FarroError, match="only possible inside a turn"):
            kept[0].publish("orders", 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (StreamOptions(retention=timedelta(0)), "StreamOptions.retention"),
        (StreamOptions(batch=0), "StreamOptions.batch"),
        (StreamOptions(max_attempts=0), "StreamOptions.max_attempts"),
        (StreamOptions(in_flight_max=-1), "StreamOptions.in_flight_max"),
        (StreamOptions(event_bytes_max=2**20), "event_bytes_max"),
        (StreamOptions(retention=timedelta(minutes=1)), r"retention .* trim_interval"),
    ],
)
def test_options_that_cannot_work_are_named(options: StreamOptions, words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        SiloOptions(streams=options).validate()


def test_the_stream_of_missed_ticks_must_have_a_name_that_is_one() -> None:
    with pytest.raises(OptionsError, match="missed_stream must name a stream"):
        SiloOptions(reminders=ReminderOptions(missed_stream="x" * 300)).validate()
