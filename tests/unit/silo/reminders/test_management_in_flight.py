"""What operators do to reminders whose ticks wait, run or back off: nothing is replayed, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.client.errors import CallTimeout, CommitOutcomeUnknown, InvalidSchedule
from farro.client.identity import GrainId
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderStatus
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import ONE_PERMIT, World, bell_row, reminder_options, s

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


class Long:
    """Ticks run for ten minutes; one that is told to fail does so at its end."""

    def __init__(self, world: World) -> None:
        self.fails = False
        world.handler = self._handle

    async def _handle(self, bell: Any) -> None:
        await asyncio.sleep(600)
        if self.fails:
            raise RuntimeError("cracked")


async def status(world: World, name: str = "ring", key: str = "b") -> ReminderStatus:
    found = await world.silo.reminders.get(GrainId("bell", key), name)
    assert found is not None
    return found


async def names(world: World, key: str = "b") -> list[str]:
    return [row.name for row in await world.rows(key)]


# ---- while a tick waits or runs


async def test_a_pause_holds_while_a_handler_runs_for_ten_minutes_and_a_resume_replays_nothing(
    world: World,
) -> None:
    start = world.clock.at()
    Long(world)
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    await asyncio.sleep(150)
    await world.silo.reminders.pause(B, "ring", note="stop it")
    assert world.clock.at() == start + s(150), "it waits for no handler"
    await asyncio.sleep(1000)
    assert world.due_at() == [start + s(100)]
    held = await status(world)
    assert (held.status, held.note, held.last_fired_at) == ("paused", "stop it", start + s(100))
    await world.silo.reminders.resume(B, "ring")
    await asyncio.sleep(100)
    assert world.due_at() == [start + s(100), start + s(1200)]


@pytest.mark.parametrize(
    "verbs", [("pause", "resume"), ("repair",), ("pause", "repair", "resume"), ("resume",)]
)
async def test_a_one_shot_that_runs_is_not_replayed_by_any_of(world: World, verbs: tuple[str, ...]) -> None:
    Long(world)
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(100)))
    await asyncio.sleep(150)
    for verb in verbs:
        await getattr(world.silo.reminders, verb)(B, "ring")
        await asyncio.sleep(10)
    await asyncio.sleep(2000)
    assert len(world.rungs) == 1
    assert await names(world) == []


async def test_a_one_shot_triggered_paused_and_resumed_while_it_runs_is_consumed_once(world: World) -> None:
    Long(world)
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(5000)))
    await world.silo.reminders.trigger_now(B, "ring")
    await asyncio.sleep(10)
    await world.silo.reminders.pause(B, "ring")
    await world.silo.reminders.resume(B, "ring")
    await asyncio.sleep(6000)
    assert len(world.rungs) == 1
    assert await names(world) == []


async def test_a_tick_that_waits_behind_a_long_turn_is_dropped_by_pause_and_by_delete(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    await world.do("b", lambda bell: bell.schedule(bell.toll, after=s(100)))
    busy = asyncio.ensure_future(world.do("b", lambda bell: asyncio.sleep(600)))
    await asyncio.sleep(150)
    await world.silo.reminders.pause(B, "ring")
    await world.silo.reminders.delete(B, "toll")
    assert world.clock.at() == start + s(150)
    with pytest.raises(CallTimeout):  # its caller gave up; the turn goes on
        await busy
    await asyncio.sleep(500)
    await asyncio.sleep(1000)
    assert world.rungs == []
    assert await names(world) == ["ring"]


async def test_an_edit_reaches_a_tick_that_waits_behind_a_long_turn(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100), missed=FIRE))
    busy = asyncio.ensure_future(world.do("b", lambda bell: asyncio.sleep(505)))
    await asyncio.sleep(150)
    await world.silo.reminders.set_priority(B, "ring", CRITICAL)
    await world.silo.reminders.set_action(B, "ring", ALL)
    with pytest.raises(CallTimeout):  # its caller gave up; the turn goes on
        await busy
    await asyncio.sleep(500)
    await asyncio.sleep(10)
    assert [rung.tick.occurrence for rung in world.rungs] == [1, 2, 3, 4, 5, 6], "each instant that passed"
    assert (await status(world)).priority == CRITICAL


async def test_a_delete_while_a_tick_runs_lets_it_finish_and_leaves_nothing(world: World) -> None:
    Long(world)
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    await asyncio.sleep(150)
    await world.silo.reminders.delete(B, "ring")
    assert await names(world) == []
    await asyncio.sleep(2000)
    assert len(world.rungs) == 1
    assert await world.rung("b") == 1


async def test_a_tick_that_fails_after_its_pause_leaves_it_paused(world: World) -> None:
    Long(world).fails = True
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10_000)))
    await asyncio.sleep(10_100)
    await world.silo.reminders.pause(B, "ring", note="off")
    await asyncio.sleep(3_000)
    assert len(world.rungs) == 1
    stands = await status(world)
    assert (stands.status, stands.note) == ("paused", "off")


# ---- trigger


async def test_a_triggered_interval_fires_now_and_keeps_its_grid(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100)))
    await asyncio.sleep(30)
    await world.silo.reminders.trigger_now(B, "ring")
    await asyncio.sleep(180)
    assert world.fired_at() == [start + s(30), start + s(100), start + s(200)]
    assert [rung.tick.missed_count for rung in world.rungs] == [0, 0, 0]


async def test_a_triggered_cron_fires_now_and_keeps_its_grid(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, cron="0 */5 * * * *"))
    await asyncio.sleep(30)
    await world.silo.reminders.trigger_now(B, "ring")
    await asyncio.sleep(400)
    assert world.fired_at() == [start + s(30), start + s(300)]


async def test_a_triggered_one_shot_is_consumed(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=timedelta(hours=1)))
    await world.silo.reminders.trigger_now(B, "ring")
    await asyncio.sleep(7_200)
    assert world.fired_at() == [start]
    assert await names(world) == []


async def test_a_failed_reminder_is_triggered_and_a_paused_one_is_not(world: World) -> None:
    def handler(bell: Any) -> None:
        if broken:
            raise RuntimeError("cracked")

    world.handler, broken = handler, True
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await world.do("p", lambda bell: bell.schedule(bell.ring, every=s(10_000)))
    await asyncio.sleep(100)
    assert (await status(world)).status == "failed"
    broken = False
    await world.silo.reminders.trigger_now(B, "ring")
    await asyncio.sleep(1)
    assert await names(world) == []
    await world.silo.reminders.pause("bell/p", "ring")
    with pytest.raises(InvalidSchedule, match="'ring' of bell/p is paused; resume it first"):
        await world.silo.reminders.trigger_now("bell/p", "ring")


async def test_a_trigger_while_a_tick_runs_fires_once_more_after_it(world: World) -> None:
    start = world.clock.at()
    Long(world)
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10_000)))
    await asyncio.sleep(10_100)
    await world.silo.reminders.trigger_now(B, "ring")
    await asyncio.sleep(5_000)
    assert [rung.fired_at - start for rung in world.rungs] == [s(10_000), s(10_600)]
    assert (await status(world)).next_run_at == start + s(20_000)


async def test_a_trigger_while_a_tick_of_fire_all_runs_loses_no_instant_that_passed(world: World) -> None:
    start = world.clock.at()

    async def handler(bell: Any) -> None:
        if len(world.rungs) == 1:
            await asyncio.sleep(350)

    world.handler = handler
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(100), missed=ALL))
    await asyncio.sleep(340)  # 200 and 300 have passed behind the tick of 100
    await world.silo.reminders.trigger_now(B, "ring")
    await asyncio.sleep(200)
    assert [due - start for due in world.due_at()] == [s(100), s(200), s(300), s(400), s(500)]


async def test_a_trigger_of_what_is_overdue_and_waits_is_that_tick(virtual: VirtualClock) -> None:
    world = World(virtual, options=reminder_options(**ONE_PERMIT, permit_hold_max=s(1000)))
    world.handler = lambda bell: asyncio.sleep(500) if bell.key == "first" else None
    async with world.up() as silo:
        due = virtual.at() + s(31)
        await world.write(bell_row("first", due), bell_row("b", due + s(1), period=s(100), action=3))
        await asyncio.sleep(250)
        await silo.reminders.trigger_now(B, "ring")
        await asyncio.sleep(300)
        ticks = [rung.due_at - due for rung in world.rungs if rung.key == "b"]
        assert ticks == [s(1), s(101), s(201), s(301), s(401), s(501)]


async def test_a_trigger_ends_a_back_off(world: World) -> None:
    start = world.clock.at()

    def handler(bell: Any) -> None:
        if len(world.rungs) < 4:
            raise RuntimeError("not yet")

    world.handler = handler
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10_000)))
    await asyncio.sleep(10_000.1)
    assert len(world.rungs) == 1
    for _ in range(3):
        await world.silo.reminders.trigger_now(B, "ring")
        await asyncio.sleep(0.01)
    assert len(world.rungs) == 4
    assert await world.rung("b") == 1
    assert {rung.due_at - start for rung in world.rungs} == {s(10_000)}


# ---- repair


async def test_a_repair_puts_a_reminder_that_backs_off_onto_its_next_instant(world: World) -> None:
    def handler(bell: Any) -> None:
        raise RuntimeError("cracked")

    world.handler = handler
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10_000)))
    await asyncio.sleep(10_000.1)
    assert (await status(world)).attempts == 1
    await world.silo.reminders.repair(B, "ring")
    stands = await status(world)
    assert (stands.attempts, stands.next_run_at, stands.note) == (0, start + s(20_000), None)
    await asyncio.sleep(1000)
    assert len(world.rungs) == 1


async def test_a_repair_gives_back_what_a_row_owes_and_keeps_a_pause(world: World) -> None:
    start = world.clock.at()
    await world.write(
        bell_row("a", start + s(100), period=s(100), next_due_at=None, wake_at=None, status="failed"),
        bell_row(
            "p", start + s(100), period=s(100), next_due_at=None, wake_at=None, status="paused", note="n"
        ),
    )
    await world.silo.reminders.repair("bell/a", "ring")
    await world.silo.reminders.repair("bell/p", "ring")
    stands = await status(world, key="a")
    assert (stands.status, stands.next_run_at) == ("scheduled", start + s(100))
    held = await status(world, key="p")
    assert (held.status, held.next_run_at, held.note) == ("paused", None, "n")
    assert (await world.row("p", "ring")).next_due_at is not None


async def test_a_schedule_that_cannot_be_read_is_an_error_of_the_verb_that_needs_it(world: World) -> None:
    start = world.clock.at()
    await world.write(bell_row("b", start + s(9), cron="no cron", status="failed", wake_at=None))
    for verb in ("repair", "resume"):
        with pytest.raises(InvalidSchedule):
            await getattr(world.silo.reminders, verb)(B, "ring")
    await world.silo.reminders.pause(B, "ring")
    await world.silo.reminders.delete(B, "ring")


async def test_an_edit_whose_row_is_read_while_the_tick_settles_counts_from_the_next_tick_on(
    world: World,
) -> None:
    gate = asyncio.Event()
    world.handler = lambda bell: gate.wait()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(1)))
    await asyncio.sleep(1.5)
    world.store.delay("reminder", 0.0, answer=0.5)  # it is read before the tick settles and told after
    await world.store.inner.load([])
    edit = asyncio.ensure_future(world.silo.reminders.set_action(B, "ring", SKIP))
    await asyncio.sleep(0.75)
    gate.set()
    await edit
    world.store.delay("reminder", 0.0)
    await asyncio.sleep(3)
    assert world.silo.rooms.reminders is not None
    entry = world.silo.rooms.reminders.held.queue.get(("bell", "b", "ring"))
    assert entry is not None and entry.row.action == SKIP


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE])
async def test_a_tick_that_waits_behind_a_change_of_unknown_outcome_begins_only_if_its_row_still_stands(
    world: World, fault: Fault
) -> None:
    gate = asyncio.Event()
    await world.do("b", lambda bell: bell.schedule(bell.ring, "old", after=s(5)))

    async def cancels(bell: Any) -> None:
        await gate.wait()
        bell.unschedule(bell.ring)

    cancel = asyncio.ensure_future(world.do("b", cancels))
    await asyncio.sleep(6)  # the tick is due, and waits for the turn to end
    world.store.fail("commit", fault)
    gate.set()
    with pytest.raises(CommitOutcomeUnknown):
        await cancel
    await asyncio.sleep(5)
    assert [rung.args for rung in world.rungs] == ([] if fault is Fault.LOST_AFTER else [("old",)])


# ---- while a row is read again


@pytest.mark.parametrize("change", ["another edit", "a cancel of another operation"])
async def test_what_changes_while_a_row_is_read_again_does_not_lose_its_tick(
    world: World, change: str
) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(100), missed=SKIP))
    await world.do("b", lambda bell: bell.schedule(bell.toll, after=s(5000)))
    await asyncio.sleep(98)
    world.store.delay("load", 0.0, answer=5.0)
    await world.silo.reminders.set_priority(B, "ring", BACKGROUND)
    await asyncio.sleep(4)
    assert world.rungs == [], "it is due, and its row is being read"
    if change == "another edit":
        await world.silo.reminders.set_action(B, "ring", FIRE)
    else:
        await world.do("b", lambda bell: bell.unschedule_all(bell.toll))
    world.store.delay("load", 0.0)
    await asyncio.sleep(60)
    assert [rung.operation for rung in world.rungs] == ["ring"]
    assert await names(world) == ([] if change != "another edit" else ["toll"])
