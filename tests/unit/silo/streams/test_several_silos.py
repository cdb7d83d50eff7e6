"""Publishers, subscribers and readers on several silos, whose partitions move in the middle of it all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from random import Random
from typing import Any

import pytest

from farro.client.errors import FarroError
from farro.client.reminders import MissedReminderAction
from farro.client.streams import EventStream
from farro.silo.options import SiloOptions, StreamOptions
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.cluster.rooms_kit import Group, Member
from tests.unit.silo.kit import s
from tests.unit.silo.streams.stream_kit import (
    Account,
    Alarm,
    Billing,
    Listening,
    Newcomer,
    Shop,
)
from tests.unit.silo.streams.test_under_faults import Ledger

KINDS = (Shop, Ledger, Billing, Account, Alarm)


def a_group(clock: VirtualClock, *grains: Any, **streams: Any) -> Group:
    Listening.begun.clear()
    Listening.trouble = None
    return Group(clock, *(grains or KINDS), options=SiloOptions(streams=StreamOptions(**streams)))


@pytest.fixture
async def group(virtual: VirtualClock) -> AsyncGenerator[Group]:
    async with a_group(virtual) as made:
        yield made


def apart(group: Group, grain_type: str = "billing", key: str = "all") -> tuple[Member, Member]:
    """The silo where a subscriber lives, and another one."""
    home = next(each for each in group.members if each.owns(grain_type, key))
    return home, next(each for each in group.members if each is not home)


async def test_an_event_for_a_subscriber_elsewhere_is_brought_by_its_owner(group: Group) -> None:
    await group.start(2)
    home, away = apart(group)
    await away.grain(Shop, away.key("shop")).sell(1, 2, 3)
    await asyncio.sleep(0.2)
    assert await away.grain(Billing, "all").values() == [1, 2, 3]
    assert home.store.calls["commit"] >= 3
    assert away.rooms.streams.statistics.delivered == 6  # and the account's
    assert home.rooms.catalog.awake("billing", "all") is not None
    assert away.rooms.catalog.awake("billing", "all") is None


async def test_a_lost_answer_delivers_nothing_twice(group: Group) -> None:
    await group.start(2)
    _, away = apart(group)
    lost: list[str] = []

    def lose(call: Any) -> bool:
        if call.method == "bring" and len(lost) < 2:
            lost.append(call.target)
            return True
        return False

    group.lose = lose
    await away.grain(Shop, away.key("shop")).sell(1, 2)
    await asyncio.sleep(10)
    assert len(lost) == 2
    assert [event.value for target, event in Listening.begun if target == "billing/all"] == [1, 2]
    assert await away.grain(Billing, "all").values() == [1, 2]


async def test_a_subscriber_elsewhere_may_take_its_time(group: Group) -> None:
    await group.start(2)
    _, away = apart(group)
    Listening.trouble = lambda event: asyncio.sleep(100)
    await away.grain(Shop, away.key("shop")).sell("slow")
    await asyncio.sleep(90)
    assert [target for target, _ in Listening.begun if target == "billing/all"] == ["billing/all"]
    await asyncio.sleep(20)
    assert await away.grain(Billing, "all").values() == ["slow"]
    assert len([target for target, _ in Listening.begun if target == "billing/all"]) == 1


async def test_an_event_that_no_turn_takes_is_passed_over_where_its_subscriber_lives(group: Group) -> None:
    await group.start(2)
    home, away = apart(group)

    def refuse(event: Any) -> None:
        if event.value == "bad":
            raise ValueError("no")

    Listening.trouble = refuse
    await away.grain(Shop, away.key("shop")).sell("bad", "good")
    await asyncio.sleep(120)
    assert await away.grain(Billing, "all").values() == ["good"]
    assert away.rooms.streams.statistics.passed_over == 2  # and the account's
    assert home.rooms.streams.statistics.passed_over == 0


async def test_notify_reaches_a_subscriber_on_another_silo(group: Group) -> None:
    await group.start(2)
    home, away = apart(group, "alarm")
    key = away.key("bell")
    await group.do(
        key, lambda bell: bell.schedule(bell.ring, every=s(100), missed=MissedReminderAction.NOTIFY)
    )
    orphans = away.ownership.all()
    partition = away.ownership.partition_of("bell", key)
    await away.store.release(away.number, sorted(orphans), group.clock.now())
    group._forget(away, orphans)
    await asyncio.sleep(250)
    third = await group.join([partition])
    await group.take(home, orphans - {partition})
    await asyncio.sleep(5)
    (report,) = await home.grain(Alarm, "all").values()
    assert (report["grain_key"], report["name"], report["count"]) == (key, "ring", 2)
    assert third.rooms.streams.statistics.delivered == 1


async def test_after_now_is_settled_once_for_all_silos(virtual: VirtualClock) -> None:
    async with a_group(virtual, Shop) as before:
        (old,) = await before.start(1)
        for key in range(20):
            await old.grain(Shop, str(key)).sell(f"old {key}")
        await before.crash(old)
        async with a_group(virtual, Shop, Newcomer) as group:
            group.memory = before.memory
            first = await group.join()
            second = await group.join()
            settled_by = first.ownership.partition_of("newcomer", "x")
            await group.take(second, set(range(64)) - {settled_by})  # its lanes wait for the other
            await asyncio.sleep(3)
            await group.take(first, [settled_by])
            await asyncio.sleep(5)
            for key in range(20):
                await first.grain(Shop, str(key)).sell(f"new {key}")
            await asyncio.sleep(5)
            heard = await first.grain(Newcomer, "x").values()
            assert sorted(heard) == sorted(f"new {key}" for key in range(20))


async def test_a_lane_ends_with_its_partition_and_begins_where_it_is_taken(group: Group) -> None:
    first, second = await group.start(2)
    key = first.key("shop")
    partition = first.ownership.partition_of("shop", key)
    await first.grain(Shop, key).sell(1)
    await asyncio.sleep(1)
    delivered = first.rooms.streams.statistics.delivered
    await group.hand_over(first, second, [partition])
    await first.grain(Shop, key).sell(2)
    await asyncio.sleep(1)
    assert first.rooms.streams.statistics.delivered == delivered
    assert await first.grain(Billing, "all").values() == [1, 2]
    assert await first.grain(Account, key).values() == [1, 2]


async def test_each_silo_trims_what_it_owns_of_streams_that_others_put_on_record(
    virtual: VirtualClock,
) -> None:
    async with a_group(virtual, Shop, retention=s(4000), trim_interval=s(600)) as group:
        first, second = await group.start(2)
        mine, other = first.key("shop"), second.key("shop")
        await first.grain(Shop, mine).sell(1)
        await second.grain(Shop, other).sell(2)
        await asyncio.sleep(6000)
        for key in (mine, other):
            partition = first.ownership.partition_of("shop", key)
            assert await first.store.inner.events(partition, "orders", 0, 10) == []
        assert [each.rooms.streams.statistics.trimmed for each in (first, second)] == [1, 1]


# ---- readers


async def next_within(events: EventStream, seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        return (await anext(events)).value


async def test_a_reader_sees_soon_what_any_silo_commits(group: Group) -> None:
    silos = await group.start(3)
    async with silos[0].stream("orders") as events:
        for silo in (*silos, *silos):
            waiting = asyncio.ensure_future(next_within(events, 60))
            await asyncio.sleep(3.05)  # it waits
            began = asyncio.get_running_loop().time()
            await silo.grain(Shop, silo.key("shop")).sell(silo.number)
            assert await waiting == silo.number
            assert asyncio.get_running_loop().time() - began <= 0.3


async def test_nobody_looks_while_nobody_reads(virtual: VirtualClock) -> None:
    async with a_group(virtual, Shop) as group:
        silos = await group.start(2)
        async with silos[0].stream("orders") as events:
            with pytest.raises(TimeoutError):
                await next_within(events, 2)
        await asyncio.sleep(20)
        looks = [silo.store.calls["stream_heads"] for silo in silos]
        await asyncio.sleep(600)
        assert [silo.store.calls["stream_heads"] for silo in silos] == looks


async def test_a_silo_that_owns_everything_looks_for_nobody(virtual: VirtualClock) -> None:
    async with a_group(virtual, Shop) as group:
        (only,) = await group.start(1)
        async with only.stream("orders") as events:
            waiting = asyncio.ensure_future(next_within(events, 600))
            await asyncio.sleep(300)
            assert only.store.calls["stream_heads"] < 100  # one for each answer of the reader's grain
            # and begins to when it no longer does, in the middle of a wait
            second = await group.join()
            key = only.key("shop")
            await group.seize(second, [only.ownership.partition_of("shop", key)])
            await second.grain(Shop, key).sell("here")
            assert await waiting == "here"


async def test_readers_do_not_hold_up_a_hand_over(group: Group) -> None:
    first, second = await group.start(2)
    home = first if first.owns("farro.streams", "orders") else second
    away = second if home is first else first
    async with away.stream("orders") as events:
        waiting = asyncio.ensure_future(next_within(events, 60))
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await group.hand_over(home, away, [home.ownership.partition_of("farro.streams", "orders")])
        assert asyncio.get_running_loop().time() - began < 0.1
        await away.grain(Shop, "any").sell(1)
        assert await waiting == 1


# ---- everything at once


@pytest.mark.parametrize("seed", range(6))
def test_what_is_published_is_consumed_once_each_in_order_whatever_moves(seed: int) -> None:
    async def play(clock: VirtualClock) -> None:
        chance = Random(seed)
        async with a_group(clock, Ledger, Billing, Account, batch=5, in_flight_max=4) as group:
            silos = await group.start(3)
            group.lose = lambda call: call.method in ("bring", "pass_over") and chance.random() < 0.1

            def wait(event: Any) -> Any:
                return asyncio.sleep(chance.choice([0.01, 0.5])) if chance.random() < 0.3 else None

            Listening.trouble = wait
            publishers = [str(number) for number in range(6)]
            for step in range(120):
                try:
                    await chance.choice(silos).grain(Ledger, chance.choice(publishers)).publish_one(str(step))
                except FarroError:
                    await asyncio.sleep(chance.random())
                if chance.random() < 0.25:
                    source, target = chance.sample(silos, 2)
                    some = chance.sample(sorted(source.ownership.all()), min(16, len(source.ownership.all())))
                    if chance.random() < 0.5:
                        await group.hand_over(source, target, some)
                    else:
                        await group.seize(target, some, unseen_s=chance.choice([0.0, 0.2, 2]))
            group.lose = lambda call: False
            Listening.trouble = None
            await asyncio.sleep(90)
            bills = await silos[0].grain(Billing, "all").values()
            for key in publishers:
                truth = await silos[0].grain(Ledger, key).values()
                assert len(truth) > 5
                assert [value for value in bills if value[0] == key] == truth, f"seed {seed}"
                assert await silos[0].grain(Account, key).values() == truth, f"seed {seed}"
            assert sum(each.rooms.streams.statistics.passed_over for each in silos) == 0
            assert all(not each.rooms.streams.subscribers._out for each in silos)

    run_virtual(play)
