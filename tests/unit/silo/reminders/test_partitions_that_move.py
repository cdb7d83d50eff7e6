"""Reminders on several silos: each fires once, wherever its partition is and however often that moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from farro.client.clock import to_us
from farro.client.reminders import MissedReminderAction, ReminderQuery, TickStatus
from farro.silo import Grain, register_reminder
from farro.silo.ownership import Owned
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.cluster.rooms_kit import PARTITIONS, Group
from tests.unit.silo.kit import ONE_PERMIT, bell_row, reminder_options, s

FIRE, SKIP, NOTIFY, ALL = MissedReminderAction


@pytest.fixture
async def group(virtual: VirtualClock) -> AsyncGenerator[Group]:
    async with Group(virtual) as made:
        yield made


async def test_a_reminder_armed_on_one_silo_for_a_grain_of_another_fires_there(group: Group) -> None:
    first, second = await group.start(2)
    key = second.key("bell")
    await group.do(key, lambda bell: bell.schedule(bell.ring, after=s(5)), by=first)
    assert (first.held(), second.held()) == ([], [("bell", key, "ring")])
    await asyncio.sleep(6)
    assert await group.rung(key) == 1
    assert second.service.figures().delivered == 1
    assert first.service.figures().delivered == 0


async def test_what_is_held_of_a_partition_leaves_with_it_at_once(group: Group) -> None:
    first, second = await group.start(2)
    mine, other = first.key("bell", 0), first.key("bell", 5)
    for key in (mine, other):
        await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(60)))
    partition = first.ownership.partition_of("bell", mine)
    await group.hand_over(first, second, [partition])
    assert first.held() == [("bell", other, "ring")]
    figures = first.service.figures().bucket
    assert (figures.held, figures.ready) == (1, 0)
    await asyncio.sleep(0.1)
    assert second.held() == [("bell", mine, "ring")]
    await asyncio.sleep(60)
    assert (await group.rung(mine), await group.rung(other)) == (1, 1)


async def test_parked_and_queued_ticks_of_a_lost_partition_never_begin(virtual: VirtualClock) -> None:
    async with Group(virtual, options=reminder_options(**ONE_PERMIT, permit_hold_max=s(1000))) as group:
        group.handler = lambda bell: asyncio.sleep(10)
        first, second = await group.start(2)
        keys = [first.key("bell", number) for number in range(6)]
        due = virtual.at() + s(1)
        await group.write(*(bell_row(key, due + s(n / 1000)) for n, key in enumerate(keys)))
        first.service.poll_soon()
        await asyncio.sleep(2)
        assert [rung.key for rung in group.rungs] == keys[:1]
        await group.seize(second, range(PARTITIONS))
        assert first.held() == []
        bucket, permits = first.service.figures().bucket, first.service.figures().permits
        assert (bucket.held, bucket.ready, permits.waiting) == (0, 0, 0)
        await asyncio.sleep(120)
        assert first.service.figures().permits.held == 0
        assert first.service.figures().delivered == 0  # the one that ran was fenced
        assert [await group.rung(key) for key in keys] == [1] * 6


async def test_a_silo_without_partitions_asks_the_table_nothing(group: Group) -> None:
    await group.start(1)
    idle = await group.join()
    await asyncio.sleep(200)
    assert idle.store.calls["poll"] == 0
    assert idle.service.figures().polls == 0


async def test_a_page_that_was_asked_for_before_a_partition_came_back_is_not_believed(group: Group) -> None:
    first, second = await group.start(2)
    key = first.key("bell")
    partition = first.ownership.partition_of("bell", key)
    await group.write(bell_row(key, group.clock.at() + s(3)))
    first.store.delay("poll", 0.0, answer=20.0)  # says what was true when it was asked
    first.service.poll_soon()
    await asyncio.sleep(1)
    await group.hand_over(first, second, [partition])
    await asyncio.sleep(5)
    assert await group.rung(key) == 1  # on the second
    first.store.delay("poll", 0.0)
    await group.hand_over(second, first, [partition])
    await asyncio.sleep(40)
    assert await group.rung(key) == 1
    assert len(group.rungs) == 1


async def test_a_tick_that_outlived_its_ownership_commits_nothing_when_the_partition_is_back(
    group: Group,
) -> None:
    first, second = await group.start(2)
    key = first.key("bell")
    partition = first.ownership.partition_of("bell", key)
    gate = asyncio.Event()

    async def wait_once(bell: Any) -> None:
        if len(group.rungs) == 1:
            await gate.wait()

    group.handler = wait_once
    await group.do(key, lambda bell: bell.schedule(bell.ring, after=s(1)))
    await asyncio.sleep(2)
    await group.seize(second, [partition])
    await asyncio.sleep(2)
    assert len(group.rungs) == 2  # delivered again by the new owner
    await group.seize(first, [partition])
    gate.set()
    await asyncio.sleep(60)
    assert await group.rung(key) == 1
    assert len(group.rungs) == 2


async def test_a_fenced_tick_leaves_and_does_not_come_back_in_a_hot_loop(group: Group) -> None:
    first, second = await group.start(2)
    key = first.key("bell")
    await group.do(key, lambda bell: bell.schedule(bell.ring, after=s(1)))
    await group.do(key, lambda bell: bell.schedule(bell.toll, every=s(20)))
    partition = first.ownership.partition_of("bell", key)
    now = group.clock.now()
    await second.store.take(second.number, [partition], now)  # and nobody tells anybody
    commits = first.store.calls["commit"]
    await asyncio.sleep(100)
    assert first.store.calls["commit"] - commits < 12
    assert first.service.figures().delivered == 0


async def test_an_occurrence_that_fell_due_while_nobody_owned_its_partition_is_missed_there_alone(
    group: Group,
) -> None:
    first, second = await group.start(2)
    lost, kept = second.key("bell"), first.key("bell")
    for key in (lost, kept):
        await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(100), missed=SKIP))
    orphans = await group.crash(second)
    await asyncio.sleep(350)
    await group.take(first, orphans)
    await asyncio.sleep(10)
    assert [rung.key for rung in group.rungs] == [kept] * 3
    row = await group.row(lost)
    assert row is not None
    assert row.missed_count == 3
    await asyncio.sleep(100)
    assert Counter(rung.key for rung in group.rungs) == {kept: 4, lost: 1}


async def test_a_gap_of_this_silos_clock_makes_nothing_missed_that_another_owner_lived_through(
    group: Group,
) -> None:
    first, second = await group.start(2)
    key = second.key("bell")
    partition = second.ownership.partition_of("bell", key)
    group.clock.jump(timedelta(seconds=300))  # both saw it, and it is long over
    await asyncio.sleep(31)
    assert first.service.judging.gap is not None
    await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(100), missed=SKIP))
    second.service.pause()  # alive, and behind
    await asyncio.sleep(160)
    await second.store.inner.renew(second.number, group.clock.now())
    await group.hand_over(second, first, [partition])
    await asyncio.sleep(1)
    assert [rung.key for rung in group.rungs] == [key]


async def test_a_pause_begins_no_tick_and_keeps_the_queue_and_a_thaw_judges_anew(group: Group) -> None:
    (only,) = await group.start(1)
    late, missed = "late", "missed"
    await group.do(late, lambda bell: bell.schedule(bell.ring, after=s(5)))
    await group.do(missed, lambda bell: bell.schedule(bell.ring, every=s(100), missed=SKIP))
    only.service.pause()
    frozen_at = group.clock.now()
    await asyncio.sleep(150)
    assert group.rungs == []
    assert len(only.held()) == 2
    now = group.clock.now()
    owned = {each: only.ownership.owned(each) for each in only.ownership.all()}
    only.ownership.take_all({each: Owned(was.epoch, now, frozen_at) for each, was in owned.items() if was})
    assert len(only.held()) == 2  # a thaw keeps them
    only.service.resume()
    await asyncio.sleep(1)
    assert [rung.key for rung in group.rungs] == [late]  # a one-shot is never lost
    row = await group.row(missed)
    assert row is not None
    assert (row.missed_count, row.next_due_at) == (1, to_us(group.clock.at()) - 151_000_000 + 200_000_000)


async def test_a_tick_that_waits_in_a_mailbox_through_a_pause_goes_on_after_it(group: Group) -> None:
    (only,) = await group.start(1)
    gate = asyncio.Event()
    await group.do("b", lambda bell: bell.schedule(bell.ring, after=s(1)))
    turn = asyncio.ensure_future(group.do("b", lambda bell: gate.wait()))
    await asyncio.sleep(2)  # the tick waits behind that turn
    only.service.pause()
    gate.set()
    await turn
    await asyncio.sleep(5)
    assert group.rungs == []
    only.service.resume()
    await asyncio.sleep(1)
    assert await group.rung("b") == 1


@register_reminder("hourly", 3600, 3600)
@register_reminder("hourly", 3600, 3600, grain_key="second")
class Declared(Grain, name="declared"):
    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        raise AssertionError("nothing is due within this test")


async def test_what_is_declared_is_created_once_by_whoever_takes_its_partition(virtual: VirtualClock) -> None:
    async with Group(virtual, Declared) as group:
        first = await group.join()
        second = await group.join()
        assert await first.store.inner.reminders_of("declared", "default") == []
        partition = first.ownership.partition_of("declared", "default")
        await group.take(first, [partition])
        await asyncio.sleep(0.1)
        (row,) = await first.store.inner.reminders_of("declared", "default")
        assert await first.store.inner.reminders_of("declared", "second") == []
        await group.hand_over(first, second, [partition])
        await asyncio.sleep(0.1)
        assert await first.store.inner.reminders_of("declared", "default") == [row]


async def test_what_is_declared_is_created_although_the_store_fails_at_first(virtual: VirtualClock) -> None:
    async with Group(virtual, Declared) as group:
        only = await group.join()
        only.store.fail("commit", Fault.UNAVAILABLE, Fault.LOST_BEFORE)
        await group.take(only, range(PARTITIONS))
        await asyncio.sleep(5)
        rows = [await only.store.inner.reminders_of("declared", key) for key in ("default", "second")]
        assert [len(each) for each in rows] == [1, 1]


async def test_a_herd_on_three_silos_fires_each_reminder_once(group: Group) -> None:
    silos = await group.start(3)
    due = group.clock.at() + s(10)
    keys = [f"k{number}" for number in range(600)]
    await group.write(*(bell_row(key, due) for key in keys))
    for silo in silos:
        silo.service.poll_soon()
    await asyncio.sleep(30)
    assert Counter(rung.key for rung in group.rungs) == dict.fromkeys(keys, 1)
    assert sum(silo.service.figures().delivered for silo in silos) == 600
    assert all(silo.service.figures().delivered > 100 for silo in silos)
    assert all(silo.held() == [] for silo in silos)


BELLS, PERIOD_S = 30, 5


@pytest.mark.parametrize("seed", range(8))
def test_moves_and_crashes_in_the_middle_of_everything_cost_no_tick_and_double_none(seed: int) -> None:
    async def play(clock: VirtualClock) -> None:
        chance = Random(seed)
        async with Group(clock, options=reminder_options(permits_per_cpu=0.5)) as group:

            async def slow(bell: Any) -> None:
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.choice([0.01, 0.5, 3]))

            group.handler = slow
            silos = await group.start(3)
            start = clock.at()
            for number in range(BELLS):
                await group.do(
                    f"k{number}",
                    lambda bell: bell.schedule(bell.ring, at=start + s(10), every=s(PERIOD_S), missed=ALL),
                )
            for silo in silos:
                for verb in ("poll", "reminder", "commit"):
                    silo.store.delay(verb, chance.choice([0.0, 0.02]), answer=chance.choice([0.0, 0.05, 0.5]))
            for _ in range(40):
                await asyncio.sleep(chance.choice([0, 0.05, 1, PERIOD_S]))
                source, target = chance.sample(silos, 2)
                some = chance.sample(sorted(source.ownership.all()), min(12, len(source.ownership.all())))
                if chance.random() < 0.5:
                    await group.hand_over(source, target, some)
                else:
                    await group.seize(target, some, unseen_s=chance.choice([0.0, 0.3, 3]))
            await silos[0].reminders.pause_all(ReminderQuery())
            await asyncio.sleep(60)
            for number in range(BELLS):
                row = await group.row(f"k{number}")
                assert row is not None
                assert row.last_fire_at is not None
                expected = (row.last_fire_at - to_us(start + s(10))) // (PERIOD_S * 1_000_000) + 1
                assert await group.rung(f"k{number}") == expected, f"seed {seed}"
                assert row.missed_count == 0
            for silo in silos:
                assert silo.service.figures().permits.held == 0
                assert silo.held() == []

    run_virtual(play)
