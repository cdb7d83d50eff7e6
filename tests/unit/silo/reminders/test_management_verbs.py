"""What operators do to reminders: at once, also while they wait or run, and without waking grains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from farro.client.errors import InvalidPayload
from farro.client.identity import GrainId
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderQuery, ReminderStatus
from farro.silo.schedules.cron import Cron
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import ONE_PERMIT, Bell, World, bell_row, reminder_options, s

CRITICAL, NORMAL, BACKGROUND = ReminderPriority
FIRE, SKIP, NOTIFY, ALL = MissedReminderAction
B = GrainId("bell", "b")


@pytest.fixture(params=["memory", "sqlite"])
async def world(
    request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path
) -> AsyncGenerator[World]:
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'managed.db'}"
    world = World(virtual, url)
    async with world.up():
        yield world


async def status(world: World, name: str = "ring", key: str = "b") -> ReminderStatus:
    found = await world.silo.reminders.get(GrainId("bell", key), name)
    assert found is not None
    return found


async def names(world: World, key: str = "b") -> list[str]:
    return [row.name for row in await world.rows(key)]


# ---- set from outside


async def test_a_reminder_set_from_outside_fires_wakes_nobody_before_and_can_be_moved(world: World) -> None:
    start, manage = world.clock.at(), world.silo.reminders
    await manage.register_or_update("bell/b", "daily", s(100), s(50), priority=BACKGROUND)
    await manage.register_or_update(world.silo.grain(Bell, "b"), "daily", s(10), s(20))
    await manage.register_or_update(B, "zoned", cron=Cron("0 9 * * *", timezone="Europe/Paris"))
    assert world.silo.active_grains == 0
    zoned = await status(world, "zoned")
    assert (zoned.cron, zoned.timezone, zoned.action) == ("0 9 * * *", "Europe/Paris", SKIP)
    await asyncio.sleep(35)
    assert [(rung.operation, rung.due_at - start) for rung in world.rungs] == [
        ("daily", s(10)),
        ("daily", s(30)),
    ]
    await manage.unregister(B, "daily")
    await asyncio.sleep(100)
    assert len(world.rungs) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"name": ""}, "reminder name must not be empty"),
        ({"name": "r"}, "due"),
        ({"name": "r", "cron": "61 * * * *"}, "minute"),
        ({"name": "r", "cron": "0 9 * * *", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"name": "r", "due": s(1), "period": s(0.01)}, "period"),
    ],
)
async def test_what_cannot_be_scheduled_is_refused_from_outside_as_inside(
    virtual: VirtualClock, words: dict[str, Any], says: str
) -> None:
    world = World(virtual)
    async with world.up() as silo:
        with pytest.raises(InvalidPayload, match=says):
            await silo.reminders.register_or_update(B, **words)
        assert await names(world) == []


async def test_SEC_008_a_grain_at_its_limit_is_refused_more_and_management_lists_and_deletes_what_it_has(
    virtual: VirtualClock, tmp_path: Path
) -> None:
    options = reminder_options(reminders_per_grain_max=20)
    for url in (None, f"sqlite:///{tmp_path / 'full.db'}"):
        world = World(virtual, url, options=options)
        async with world.up() as silo:
            manage = silo.reminders
            for number in range(20):
                await manage.register_or_update(B, f"r{number:02}", s(1000), s(1000))
            with pytest.raises(InvalidPayload, match="bell/b would have 21 reminders; at most 20"):
                await manage.register_or_update(B, "one too many", s(1000), s(1000))
            await manage.register_or_update(B, "r07", s(500), s(1000))
            await manage.register_or_update("bell/other", "r", s(1000), s(1000))
            assert len(await manage.list_for_grain(B)) == 20
            await manage.delete(B, "r07")
            await manage.register_or_update(B, "one more", s(1000), s(1000))
            assert await manage.delete_all(ReminderQuery(grain_type="bell", grain_key="b")) == 20
            assert (await manage.count_all()).total == 1


# ---- priority and action


async def test_set_priority_and_action_change_the_row_alone_and_wake_no_grain(world: World) -> None:
    await world.write(bell_row("b", world.clock.at() + s(1000), period=s(60), note="kept"))
    before = await world.row("b", "ring")
    await world.silo.reminders.set_priority(B, "ring", BACKGROUND)
    await world.silo.reminders.set_action(B, "ring", ALL)
    assert world.silo.active_grains == 0
    after = await world.row("b", "ring")
    assert (after.priority, after.action) == (2, 3)
    assert (after.next_due_at, after.occurrence, after.registration, after.note) == (
        before.next_due_at,
        before.occurrence,
        before.registration,
        "kept",
    )


async def test_a_new_priority_counts_for_what_is_due_and_waits(virtual: VirtualClock) -> None:
    world = World(virtual, options=reminder_options(**ONE_PERMIT, permit_hold_max=s(1000)))
    world.handler = lambda bell: asyncio.sleep(10)
    async with world.up() as silo:
        due = virtual.at() + s(1)
        await world.write(*(bell_row(f"k{number}", due + s(number / 1000)) for number in range(5)))
        await asyncio.sleep(35)
        assert [rung.key for rung in world.rungs] == ["k0"]
        await silo.reminders.set_priority("bell/k4", "ring", CRITICAL)
        await silo.reminders.set_priority("bell/k1", "ring", BACKGROUND)
        await asyncio.sleep(60)
        assert [rung.key for rung in world.rungs] == ["k0", "k4", "k2", "k3", "k1"]


async def test_a_new_action_counts_for_the_next_outage(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100), missed=FIRE))
    await world.silo.reminders.set_action(B, "ring", SKIP)
    await world.stop()
    world.clock.jump(s(1050))
    async with world.up():
        await asyncio.sleep(40)
        assert world.rungs == []
        await asyncio.sleep(100)
        assert len(world.rungs) == 1 and world.rungs[0].tick.missed_count == 10


async def test_a_priority_edit_while_a_page_is_on_its_way_does_not_lose_the_tick(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, at=start + s(61)))
    await asyncio.sleep(55)
    world.store.delay("poll", 0.0, answer=10.0)
    await asyncio.sleep(5.5)  # the poll of 60 s is out until 70 s
    await world.silo.reminders.set_priority(B, "ring", CRITICAL)
    await asyncio.sleep(60)
    assert world.fired_at() == [start + s(61)]


# ---- pause and resume


async def test_a_paused_reminder_fires_nothing_and_goes_on_with_the_next_instant(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    await world.silo.reminders.pause(B, "ring", note="bells are being cleaned")
    paused = await status(world)
    assert (paused.status, paused.note, paused.next_run_at) == ("paused", "bells are being cleaned", None)
    await asyncio.sleep(1050)
    assert world.rungs == []
    await world.silo.reminders.resume(B, "ring", note="clean")
    resumed = await status(world)
    assert (resumed.status, resumed.note, resumed.next_run_at) == ("scheduled", "clean", start + s(1100))
    await asyncio.sleep(100)
    assert world.due_at() == [start + s(1100)]
    assert world.rungs[0].tick.missed_count == 0


async def test_a_pause_that_ends_before_the_next_instant_changes_nothing(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    before = await world.row("b", "ring")
    await world.silo.reminders.pause(B, "ring")
    await asyncio.sleep(50)
    await world.silo.reminders.resume(B, "ring")
    assert await world.row("b", "ring") == before


async def test_a_one_shot_whose_instant_passed_in_a_pause_fires_at_the_resume(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await world.silo.reminders.pause(B, "ring")
    await asyncio.sleep(1000)
    await world.silo.reminders.resume(B, "ring")
    await asyncio.sleep(0.5)
    assert [(rung.due_at, rung.fired_at) for rung in world.rungs] == [(start + s(10), start + s(1000))]
    assert await names(world) == []


async def test_a_pause_survives_restarts_and_a_cron_text_that_is_registered_again(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, cron="*/1 * * * *"))
    await world.silo.reminders.pause(B, "ring", note="off")
    await world.do("b", lambda bell: bell.schedule(bell.ring, cron="*/1 * * * *"))
    await world.stop()
    async with world.up():
        await asyncio.sleep(300)
        assert world.rungs == []
        assert (await status(world)).note == "off"


async def test_a_second_pause_keeps_the_note_unless_it_has_its_own(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    for note, stands in (("why", "why"), (None, "why"), ("because", "because")):
        await world.silo.reminders.pause(B, "ring", note=note)
        assert (await status(world)).note == stands


@pytest.mark.parametrize(
    ("note", "says"),
    [("x" * 501, "at most 500 characters, not 501"), ("a\x00b", "NUL")],
)
async def test_a_note_that_no_store_or_reply_could_hold_is_refused(
    virtual: VirtualClock, note: str, says: str
) -> None:
    world = World(virtual)
    async with world.up() as silo:
        await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
        for verb in (
            silo.reminders.pause(B, "ring", note),
            silo.reminders.resume(B, "ring", note),
            silo.reminders.pause_all(ReminderQuery(), note),
            silo.reminders.resume_all(ReminderQuery(), note),
        ):
            with pytest.raises(InvalidPayload, match=says):
                await verb
        assert (await status(world)).status == "scheduled"


async def test_resuming_what_is_scheduled_and_repairing_what_is_sound_commits_nothing(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    before = world.store.calls["commit"]
    await world.silo.reminders.resume(B, "ring")
    await world.silo.reminders.repair(B, "ring")
    assert world.store.calls["commit"] == before


async def test_a_resumed_reminder_whose_grid_has_ended_is_gone(world: World) -> None:
    until = world.clock.at() + s(250)
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100), until=until))
    await world.silo.reminders.pause(B, "ring")
    await asyncio.sleep(300)
    await world.silo.reminders.resume(B, "ring")
    assert await names(world) == []


async def test_a_failed_one_shot_is_revived_by_a_resume(world: World) -> None:
    def handler(bell: Any) -> None:
        if broken:
            raise RuntimeError("cracked")

    world.handler, broken = handler, True
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await asyncio.sleep(100)
    failed = await status(world)
    assert (failed.status, failed.attempts) == ("failed", 5)
    assert failed.note is not None and "cracked" in failed.note
    broken = False
    await world.silo.reminders.resume(B, "ring")
    await asyncio.sleep(1)
    assert await names(world) == []
    assert await world.rung("b") == 1


async def test_a_reminder_resumed_while_a_page_is_on_its_way_fires_on_time(world: World) -> None:
    """That page was read before the resume and does not show it; the next one comes too late."""
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(70)))
    await world.silo.reminders.pause(B, "ring")
    await asyncio.sleep(55)
    world.store.delay("poll", 0.0, answer=5.0)
    await asyncio.sleep(6)
    await world.silo.reminders.resume(B, "ring")
    world.store.delay("poll", 0.0)
    await asyncio.sleep(15)
    assert world.fired_at() == [start + s(70)]
