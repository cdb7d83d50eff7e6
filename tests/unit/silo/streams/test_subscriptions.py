"""Events reach the grains that subscribe: in order, with an effect that takes place once, past what fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.client.clock import from_us
from farro.client.identity import GrainId
from farro.client.streams import StreamEvent
from farro.providers.rows import EventRow
from farro.silo.grains.grain import Grain
from farro.silo.grains.subscriptions import subscribe
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World
from tests.unit.silo.streams.stream_kit import (
    Account,
    Billing,
    Listening,
    Newcomer,
    Shop,
    a_world,
    heard,
    until,
)

MakeWorld = Callable[..., World]


@pytest.fixture(params=["memory", "sqlite"])
def make_world(request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path) -> MakeWorld:
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'streams.db'}"

    def make(*grains: type[Grain[Any]], **options: Any) -> World:
        return a_world(virtual, *grains, url=url, **options)

    return make


async def delivered(world: World, count: int) -> None:
    await until(world.clock, lambda: world.silo.rooms.streams.statistics.delivered >= count, 3_600)


async def test_a_subscriber_gets_every_event_with_publisher_instant_and_stable_id(
    make_world: MakeWorld,
) -> None:
    world = make_world(Billing)
    async with world.up() as silo:
        at = from_us(world.clock.now())
        await silo.grain(Shop, "a").sell({"n": 1}, {"n": 2})
        await delivered(world, 2)
        first, second = (event for _, event in Listening.begun)
        assert (first.stream, first.value, first.publisher) == ("orders", {"n": 1}, GrainId("shop", "a"))
        assert timedelta(0) <= first.published_at - at <= timedelta(seconds=1)
        assert first.id != second.id
        assert await heard(world, Billing) == [{"n": 1}, {"n": 2}]


async def test_events_of_one_publisher_are_consumed_in_the_order_of_their_commits(
    make_world: MakeWorld,
) -> None:
    world = make_world(Billing, Account, batch=3)
    async with world.up() as silo:
        for number in range(10):
            await asyncio.gather(
                silo.grain(Shop, "a").sell(["a", number]), silo.grain(Shop, "b").sell(["b", number])
            )
        await delivered(world, 40)
        all_heard = await heard(world, Billing)
        for key in ("a", "b"):
            assert [value for value in all_heard if value[0] == key] == [[key, n] for n in range(10)]
            assert await heard(world, Account, key) == [[key, n] for n in range(10)]


async def test_publishing_does_not_wait_for_delivery_so_a_subscriber_may_call_the_publisher_ACT_005(
    virtual: VirtualClock,
) -> None:
    world = a_world(virtual, Caller)
    async with world.up() as silo:
        began = virtual.now()
        await silo.grain(Shop, "a").sell("x")
        assert virtual.now() - began < 1_000_000
        await delivered(world, 1)
        assert virtual.now() - began < 1_000_000
        assert await silo.grain(Caller, "default").values() == [1]


class Caller(Listening, name="caller"):
    @subscribe("orders")
    async def on_order(self, event: StreamEvent) -> None:
        assert event.publisher is not None
        self.state.values.append(await self.grain(Shop, event.publisher.key).sold())


async def test_an_event_of_a_turn_that_raises_does_not_exist(make_world: MakeWorld) -> None:
    world = make_world(Billing)
    async with world.up() as silo:
        with pytest.raises(Exception, match="sold out"):
            await silo.grain(Shop, "a").sell_and_fail("no")
        await silo.grain(Shop, "a").sell("yes")
        await delivered(world, 1)
        assert await heard(world, Billing) == ["yes"]


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE, Fault.UNAVAILABLE])
async def test_a_lost_answer_to_the_subscribers_commit_does_not_double_its_effect(
    make_world: MakeWorld, fault: Fault
) -> None:
    world = make_world(Billing, Account)

    def trouble(event: StreamEvent) -> None:
        Listening.trouble = None  # the very next commits are those of the two subscribers' turns
        world.store.fail("commit", fault, fault)

    async with world.up() as silo:
        await silo.grain(Shop, "a").sell("warm up")
        await delivered(world, 2)
        Listening.trouble = trouble
        await silo.grain(Shop, "a").sell("x")
        await asyncio.sleep(60)
        await silo.grain(Shop, "b").sell("y")
        await asyncio.sleep(60)
        assert sorted(await heard(world, Billing)) == ["warm up", "x", "y"]
        assert await heard(world, Account, "a") == ["warm up", "x"]
        assert await heard(world, Account, "b") == ["y"]


async def test_an_event_whose_publishing_commit_lost_its_answer_is_delivered_all_the_same(
    make_world: MakeWorld,
) -> None:
    world = make_world(Billing)
    async with world.up() as silo:
        await silo.grain(Shop, "a").sold()
        world.store.fail("commit", Fault.LOST_AFTER)
        with pytest.raises(Exception, match="did not answer the commit"):
            await silo.grain(Shop, "a").sell("perhaps")
        await asyncio.sleep(31)
        assert await heard(world, Billing) == ["perhaps"]


async def test_after_a_crash_what_was_not_committed_is_delivered_and_nothing_else(
    make_world: MakeWorld,
) -> None:
    world = make_world(Billing, Account)
    silo = await world.start()
    await silo.grain(Shop, "a").sell(1)
    await delivered(world, 2)
    world.store.freeze("commit")
    selling = asyncio.gather(silo.grain(Shop, "a").sell(2), return_exceptions=True)
    await world.store.until_frozen("commit")
    world.store.thaw()
    await until(world.clock, lambda: len(Listening.begun) > 2)
    await world.crash()
    await selling
    async with world.up():
        await asyncio.sleep(5)
        assert await heard(world, Billing) == [1, 2]
        assert await heard(world, Account, "a") == [1, 2]
        begun = len(Listening.begun)
    async with world.up():
        await asyncio.sleep(60)
        assert len(Listening.begun) == begun, "a consumed event ran again"


async def test_a_subscriber_killed_in_its_turn_gets_the_event_again(make_world: MakeWorld) -> None:
    world = make_world(Billing)
    silo = await world.start()
    never = asyncio.Event()
    Listening.trouble = lambda event: never.wait()
    await silo.grain(Shop, "a").sell(1)
    await until(world.clock, lambda: len(Listening.begun) == 1)
    await world.crash()
    Listening.trouble = None
    async with world.up():
        await delivered(world, 1)
        assert await heard(world, Billing) == [1]


async def test_a_stopping_silo_lets_the_running_delivery_finish_and_begins_no_other(
    make_world: MakeWorld,
) -> None:
    world = make_world(Billing)
    silo = await world.start()
    gate = asyncio.Event()
    Listening.trouble = lambda event: gate.wait()
    await silo.grain(Shop, "a").sell(1, 2, 3)
    await until(world.clock, lambda: len(Listening.begun) == 1)
    stopping = asyncio.gather(silo.stop())
    await asyncio.sleep(1)
    gate.set()
    await stopping
    assert [event.value for _, event in Listening.begun] == [1]
    Listening.trouble = None
    async with world.up():
        await delivered(world, 2)
        assert await heard(world, Billing) == [1, 2, 3]
    assert [event.value for _, event in Listening.begun] == [1, 2, 3]


async def test_an_event_whose_subscriber_always_raises_is_tried_again_and_then_passed_over(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def trouble(event: StreamEvent) -> None:
        if event.value == "poison":
            raise ValueError("cannot digest it")

    world = make_world(Billing, Account, max_attempts=4)
    async with world.up() as silo:
        Listening.trouble = trouble
        with caplog.at_level(logging.ERROR, "farro.streams"):
            await silo.grain(Shop, "a").sell("before", "poison", "after")
            await until(world.clock, lambda: silo.rooms.streams.statistics.passed_over == 2)
            await delivered(world, 4)
        for cls, key in ((Billing, "all"), (Account, "a")):
            assert await heard(world, cls, key) == ["before", "after"]
            tries = [e for who, e in Listening.begun if who == f"{cls.__farro_type__}/{key}"]
            assert [each.value for each in tries] == ["before", *["poison"] * 4, "after"]
        said = [record.getMessage() for record in caplog.records if record.name == "farro.streams"]
        assert len(said) == 2 and all("cannot digest it" in line for line in said)
        assert silo.rooms.streams.statistics.failed == 8
    begun = len(Listening.begun)
    async with world.up():
        await asyncio.sleep(60)
    assert len(Listening.begun) == begun, "what was passed over came again"


async def test_a_store_that_is_away_for_long_is_no_failed_attempt_of_the_subscriber(
    make_world: MakeWorld,
) -> None:
    world = make_world(Billing, Account, max_attempts=2)
    async with world.up() as silo:
        Listening.trouble = lambda event: setattr(
            world.store, "policy", lambda verb: Fault.UNAVAILABLE if verb != "renew" else None
        )
        await silo.grain(Shop, "a").sell(1, 2)
        await asyncio.sleep(300)
        assert silo.rooms.streams.statistics.delivered == 0
        Listening.trouble = None
        world.store.policy = lambda verb: None
        await delivered(world, 4)
        assert await heard(world, Billing) == [1, 2]
        assert await heard(world, Account, "a") == [1, 2]
        assert silo.rooms.streams.statistics.failed == 0
        assert silo.rooms.streams.statistics.passed_over == 0


async def test_back_off_of_one_event_delays_no_other_publisher(virtual: VirtualClock) -> None:
    def trouble(event: StreamEvent) -> None:
        if event.value == "poison":
            raise ValueError("cannot digest it")

    world = a_world(virtual, Billing, in_flight_max=1)
    async with world.up() as silo:
        Listening.trouble = trouble
        await silo.grain(Shop, "a").sell("poison")
        await until(virtual, lambda: silo.rooms.streams.statistics.failed >= 1)
        began = virtual.now()
        await silo.grain(Shop, "b").sell("fine")
        await delivered(world, 1)
        assert virtual.now() - began < 1_000_000
        assert silo.rooms.streams.statistics.passed_over == 0


async def test_bytes_that_are_no_event_are_passed_over_once(
    virtual: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(virtual, Billing, Account)
    async with world.up() as silo:

        async def garbage(bell: Any) -> None:
            for payload in (b"\xc1", b"\x90", b"\x82\xa4from\x01\xa5value\x01"):
                bell.turn.effects.events.append(EventRow("orders", payload, virtual.now()))

        await world.do("b", garbage)
        await silo.grain(Shop, "a").sell("fine")
        await delivered(world, 2)
        await until(virtual, lambda: silo.rooms.streams.statistics.passed_over == 6)
        assert await heard(world, Billing) == ["fine"]


async def test_no_more_deliveries_are_out_than_in_flight_max(virtual: VirtualClock) -> None:
    world = a_world(virtual, Account, in_flight_max=3)
    gate = asyncio.Event()
    async with world.up() as silo:
        Listening.trouble = lambda event: gate.wait()
        for number in range(20):
            await silo.grain(Shop, f"s{number}").sell(number)
        await asyncio.sleep(5)
        assert len(Listening.begun) == 3
        gate.set()
        await delivered(world, 20)


async def test_a_subscriber_deployed_later_gets_what_is_retained(make_world: MakeWorld) -> None:
    world = make_world()
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(1, 2)
    world.grains = (*world.grains, Billing, Account)
    async with world.up():
        await delivered(world, 4)
        assert await heard(world, Billing) == [1, 2]
        assert await heard(world, Account, "a") == [1, 2]


async def test_a_subscriber_after_now_begins_with_its_first_start_and_forgets_nothing_since(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell("too early")
    plain, world.grains = world.grains, (*world.grains, Newcomer)
    async with world.up():
        await asyncio.sleep(1)
    world.grains = plain
    async with world.up() as silo:  # deployed, then away for a while
        await silo.grain(Shop, "a").sell("x")
        await silo.grain(Shop, "b").sell("y")
    world.grains = (*plain, Newcomer)
    async with world.up():
        await delivered(world, 2)
        assert sorted(await heard(world, Newcomer, "x")) == ["x", "y"]


async def test_a_subscriber_after_now_on_a_stream_without_events_misses_none_of_the_first(
    make_world: MakeWorld,
) -> None:
    world = make_world(Newcomer)
    async with world.up():
        await asyncio.sleep(1)
    world.grains = (Shop,)
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell("first")
    world.grains = (Shop, Newcomer)
    async with world.up():
        await delivered(world, 1)
        assert await heard(world, Newcomer, "x") == ["first"]


async def test_an_idle_stream_is_not_polled_faster_than_twice_a_minute(virtual: VirtualClock) -> None:
    world = a_world(virtual, Billing)
    async with world.up() as silo:
        await silo.grain(Shop, "a").sell(1)
        await delivered(world, 1)
        await asyncio.sleep(1)
        world.store.calls.clear()
        await asyncio.sleep(500)  # the first trim comes later
        assert world.store.calls["events"] == 0
        assert world.store.calls["stream_heads"] <= 17


async def test_a_stream_that_cannot_be_read_is_read_again(virtual: VirtualClock) -> None:
    world = a_world(virtual, Billing)
    async with world.up() as silo:
        world.store.fail("events", Fault.UNAVAILABLE, Fault.UNAVAILABLE)
        await silo.grain(Shop, "a").sell(1)
        await delivered(world, 1)
        assert await heard(world, Billing) == [1]


# ---- declarations


def test_a_subscription_goes_on_an_async_method_that_takes_the_event() -> None:
    with pytest.raises(TypeError, match="async def"):

        @subscribe("orders")
        def plain(self: Any, event: StreamEvent) -> None: ...

    with pytest.raises(TypeError, match="takes one argument, the event"):

        @subscribe("orders")
        async def nothing(self: Any) -> None: ...


def test_a_bad_stream_name_key_or_after_is_refused_where_it_stands() -> None:
    with pytest.raises(ValueError, match="stream name must not be empty"):
        subscribe("")
    with pytest.raises(ValueError, match="key of a subscription"):
        subscribe("orders", key="")
    with pytest.raises(ValueError, match="'now' or 'start'"):
        subscribe("orders", after="soon")  # type: ignore[arg-type]


def test_a_class_that_subscribes_twice_to_one_stream_is_refused_at_import() -> None:
    with pytest.raises(TypeError, match=r"'one' and 'two' both subscribe to 'orders'"):

        class Twice(Grain, name="twice"):
            @subscribe("orders", key="a")
            async def one(self, event: StreamEvent) -> None: ...

            @subscribe("orders", key="b")
            async def two(self, event: StreamEvent) -> None: ...


async def test_one_method_may_subscribe_to_several_streams(virtual: VirtualClock) -> None:
    class Both(Listening, name="both"):
        @subscribe("one", key="all")
        @subscribe("two", key="all")
        async def on_event(self, event: StreamEvent) -> None:
            await self._hears(event)

    world = a_world(virtual, Both)
    async with world.up() as silo:
        await silo.grain(Shop, "a").say("one", 1)
        await silo.grain(Shop, "a").say("two", 2)
        await silo.grain(Shop, "a").say("three", 3)
        await delivered(world, 2)
        assert sorted(await heard(world, Both)) == [1, 2]
