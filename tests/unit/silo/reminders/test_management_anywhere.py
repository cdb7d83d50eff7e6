"""Every management verb, asked of a silo that owns nothing of what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from farro.client.errors import Fenced, ReminderNotFound
from farro.client.management import ManagementApi
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderQuery
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.cluster.rooms_kit import PARTITIONS, Group, Member
from tests.unit.silo.kit import bell_row, s

CRITICAL, NORMAL, BACKGROUND = ReminderPriority
FIRE, SKIP, NOTIFY, ALL = MissedReminderAction


@pytest.fixture
async def group(virtual: VirtualClock) -> AsyncGenerator[Group]:
    async with Group(virtual) as made:
        yield made


def any_key(member: Member) -> ManagementApi:
    """The verbs by a key that names no grain: they arrive at whichever silo owns that key."""
    return member.reminders._api


def once(due: datetime, bell: Any) -> Any:
    return bell.schedule(bell.ring, at=due)


async def test_verbs_for_one_reminder_are_carried_out_by_its_owner(group: Group) -> None:
    here, there = await group.start(2)
    key = there.key("bell")
    at, manage = f"bell/{key}", here.reminders
    await manage.register_or_update(at, "chime", s(50), s(100))
    status = await manage.get(at, "chime")
    assert status is not None
    await manage.set_priority(at, "chime", CRITICAL)
    await manage.set_action(at, "chime", ALL)
    row = await group.row(key, "chime")
    assert row is not None
    assert (row.priority, row.action) == (int(CRITICAL), int(ALL))
    assert there.held() == [("bell", key, "chime")]
    await manage.pause(at, "chime", "storm")
    assert there.held() == []
    await manage.resume(at, "chime")
    await manage.trigger_now(at, "chime")
    await asyncio.sleep(1)
    assert await group.rung(key) == 1
    await manage.repair(at, "chime")
    assert [each.name for each in await manage.list_for_grain(at)] == ["chime"]
    await manage.delete(at, "chime")
    await manage.delete(at, "chime")  # absent: no error
    assert await manage.get(at, "chime") is None
    with pytest.raises(ReminderNotFound, match="has no reminder 'chime'"):
        await manage.pause(at, "chime")
    assert there.store.calls["commit"] > 5


async def test_trigger_now_knows_on_any_silo_that_the_tick_has_begun(group: Group) -> None:
    here, there = await group.start(2)
    key = there.key("bell")
    group.handler = lambda bell: asyncio.sleep(5)
    await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(100)))
    await asyncio.sleep(101)
    await here.reminders.trigger_now(f"bell/{key}", "ring")  # one more, not the one that runs
    await asyncio.sleep(20)
    assert await group.rung(key) == 2


async def test_a_verb_that_arrives_at_the_wrong_silo_is_passed_on(group: Group) -> None:
    here, there = await group.start(2)
    wrong = here if here.owns("farro.reminders", "management") else there
    key = (there if wrong is here else here).key("bell")
    await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(100)))
    group.calls.clear()
    await any_key(wrong).set_priority("bell", key, "ring", BACKGROUND)
    partition = wrong.ownership.partition_of("bell", key)
    assert group.calls == [f"farro.partition/{partition}.set_priority"]
    row = await group.row(key)
    assert row is not None
    assert row.priority == int(BACKGROUND)


async def test_a_grain_whose_id_is_too_long_for_a_key_is_managed_all_the_same(group: Group) -> None:
    here, _ = await group.start(2)
    for number in range(4):
        key = str(number) * 510
        await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(100)))
        await here.reminders.set_action(f"bell/{key}", "ring", NOTIFY)
        row = await group.row(key)
        assert row is not None
        assert row.action == int(NOTIFY)


async def test_verbs_in_bulk_make_one_call_to_each_partition_of_others(group: Group) -> None:
    silos = await group.start(3)
    await group.write(
        *(bell_row(f"k{number}", group.clock.at() + s(50), period=s(100)) for number in range(300))
    )
    for silo in silos:
        silo.service.poll_soon()
    await asyncio.sleep(0.1)
    everything = ReminderQuery(grain_type="bell")
    group.calls.clear()
    assert await silos[1].reminders.pause_all(everything, note="storm") == 300
    asked = [call for call in group.calls if call.startswith("farro.partition/")]
    assert len(asked) == len(set(asked)) <= PARTITIONS
    assert all(silo.held() == [] for silo in silos)
    counts = await silos[2].reminders.count_all(ReminderQuery(status="paused"))
    assert counts.total == 300
    assert await silos[2].reminders.resume_all(everything) == 300
    await asyncio.sleep(0.1)
    assert sum(len(silo.held()) for silo in silos) == 300
    listed = [each async for each in silos[0].reminders.list(everything)]
    assert len(listed) == 300
    assert len([each async for each in silos[0].reminders.upcoming(s(3600))]) == 300
    assert await silos[0].reminders.delete_all(everything) == 300
    assert all(silo.held() == [] for silo in silos)


@pytest.mark.parametrize("planned", [True, False])
async def test_partitions_that_move_in_the_middle_of_a_bulk_verb_are_changed_by_their_next_owner(
    group: Group, planned: bool
) -> None:
    first, second, third = await group.start(3)
    await group.write(
        *(bell_row(f"k{number}", group.clock.at() + s(500), period=s(100)) for number in range(200))
    )
    for silo in (first, second, third):
        silo.store.delay("commit", 0.05, answer=0.05)
    work = asyncio.ensure_future(first.reminders.pause_all(ReminderQuery(grain_type="bell")))
    await asyncio.sleep(0.06)
    for source, target in ((first, third), (second, first), (third, second)):
        some = sorted(source.ownership.all())[:10]
        if planned:
            await group.hand_over(source, target, some)
        else:
            await group.seize(target, some, unseen_s=0.05)
    assert await work == 200
    assert (await first.reminders.count_all(ReminderQuery(status="paused"))).total == 200


async def test_a_partition_that_nobody_takes_fails_its_verb_and_no_other(group: Group) -> None:
    first, second = await group.start(2)
    lost, kept = second.key("bell"), first.key("bell")
    for key in (lost, kept):
        await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(1000)))
    await group.crash(second)
    await first.reminders.pause(f"bell/{kept}", "ring")
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await first.reminders.pause(f"bell/{lost}", "ring")
    assert asyncio.get_running_loop().time() - began <= 30.1


async def test_a_fenced_owner_gives_up_within_the_deadline(group: Group) -> None:
    first, second = await group.start(2)
    key = first.key("bell")
    await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(1000)))
    partition = first.ownership.partition_of("bell", key)
    await second.store.take(second.number, [partition], group.clock.now())  # and nobody is told
    began = asyncio.get_running_loop().time()
    with pytest.raises(Fenced, match="another silo owns the partition"):
        await first.reminders.set_priority(f"bell/{key}", "ring", CRITICAL)
    assert asyncio.get_running_loop().time() - began <= 30
    assert first.store.calls["commit"] < 60


async def test_history_is_gathered_from_every_silo_and_names_those_that_do_not_answer(group: Group) -> None:
    first, second, third = await group.start(3)
    keys = [each.key("bell") for each in (first, second, third)]
    for number, key in enumerate(keys):
        due = group.clock.at() + s(1 + number)
        await group.do(key, partial(once, due))
    await asyncio.sleep(10)
    history = await second.reminders.history()
    assert [each.grain_key for each in history.ticks] == keys[::-1]
    assert history.unanswered == []
    assert [each.grain_key for each in (await third.reminders.history(f"bell/{keys[0]}")).ticks] == keys[:1]
    assert len((await first.reminders.history(limit=2)).ticks) == 2
    orphans = await group.crash(third)
    await group.take(second, orphans)
    began = asyncio.get_running_loop().time()
    history = await first.reminders.history()
    assert [each.grain_key for each in history.ticks] == keys[1::-1]
    assert history.unanswered == [third.number]
    assert asyncio.get_running_loop().time() - began <= 2.1


async def test_a_reminder_keeps_its_history_where_it_was_delivered_when_its_partition_moves(
    group: Group,
) -> None:
    first, second = await group.start(2)
    key = first.key("bell")
    await group.do(key, lambda bell: bell.schedule(bell.ring, every=s(10)))
    await asyncio.sleep(15)
    await group.hand_over(first, second, [first.ownership.partition_of("bell", key)])
    await asyncio.sleep(10)
    ticks = (await first.reminders.history(f"bell/{key}", "ring")).ticks
    assert [each.occurrence for each in ticks] == [2, 1]


async def test_a_silo_alone_asks_nobody(group: Group) -> None:
    (only,) = await group.start(1)
    await group.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    await only.reminders.set_priority("bell/b", "ring", CRITICAL)
    assert await only.reminders.pause_all(ReminderQuery()) == 1
    assert (await only.reminders.history()).unanswered == []
    assert group.calls == []
