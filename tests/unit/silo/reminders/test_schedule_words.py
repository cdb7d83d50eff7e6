"""``until``, ``times``, ``jitter``, ``if_missing`` and ``self.tick`` through turns, commits and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.client.errors import GrainCallFailed
from farro.client.reminders import MissedReminderAction
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World, s

FIRE, SKIP, NOTIFY, ALL = MissedReminderAction


@pytest.fixture
def start(virtual: VirtualClock) -> datetime:
    return virtual.at()


@pytest.fixture(params=["memory", "sqlite"])
async def world(
    request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path
) -> AsyncGenerator[World]:
    yield World(virtual, None if request.param == "memory" else f"sqlite:///{tmp_path / 'words.db'}")


async def schedule(world: World, **when: Any) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, **when))


# ---- until


async def test_until_delivers_the_instant_it_names_and_none_after_it(world: World, start: datetime) -> None:
    async with world.up():
        await schedule(world, every=s(10), until=start + s(30))
        await asyncio.sleep(100)
        assert world.due_at() == [start + s(10), start + s(20), start + s(30)]
        assert await world.rows("b") == []


async def test_until_between_two_instants_ends_with_the_earlier_one(world: World, start: datetime) -> None:
    async with world.up():
        await schedule(world, cron="*/10 * * * * *", until=start + s(25))
        await asyncio.sleep(100)
        assert world.due_at() == [start + s(10), start + s(20)]
        assert await world.rows("b") == []


async def test_until_before_the_first_instant_is_refused(world: World, start: datetime) -> None:
    async with world.up():
        with pytest.raises(GrainCallFailed, match=r"InvalidSchedule: until: .* is before the first tick"):
            await schedule(world, every=s(10), until=start + s(5))
        assert await world.rows("b") == []


@pytest.mark.parametrize("action", [FIRE, SKIP, NOTIFY, ALL], ids=lambda action: action.name)
async def test_a_grid_that_ended_during_an_absence_leaves_no_row(
    world: World, start: datetime, action: MissedReminderAction
) -> None:
    async with world.up():
        await schedule(world, every=s(60), until=start + s(200), missed=action)
    world.clock.jump(timedelta(hours=1))
    async with world.up():
        await asyncio.sleep(10)
        assert await world.rows("b") == []
    dues = world.due_at()
    assert (
        dues
        == {
            FIRE: [start + s(60)],
            SKIP: [],
            NOTIFY: [],
            ALL: [start + s(60), start + s(120), start + s(180)],
        }[action]
    )


# ---- times


async def test_times_counts_delivered_ticks(world: World, start: datetime) -> None:
    async with world.up():
        await schedule(world, every=s(10), times=3)
        await asyncio.sleep(100)
        assert world.due_at() == [start + s(10), start + s(20), start + s(30)]
        assert await world.rows("b") == []
        assert await world.rung("b") == 3


async def test_times_survives_a_crash_and_skipped_occurrences_do_not_count(
    world: World, start: datetime
) -> None:
    async with world.up():
        await schedule(world, every=s(60), times=3, missed=SKIP)
        await asyncio.sleep(65)
        await world.crash()
    world.clock.jump(timedelta(minutes=10))
    async with world.up():
        await asyncio.sleep(400)
        assert await world.rows("b") == []
    assert len(world.rungs) == 3
    assert world.rungs[1].tick.missed_count >= 9


async def test_a_tick_that_raises_does_not_use_up_times(world: World, start: datetime) -> None:
    def fail_once(bell: Bell) -> None:
        if len(world.rungs) == 1:
            raise OSError("once")

    world.handler = fail_once
    async with world.up():
        await schedule(world, every=s(60), times=2)
        await asyncio.sleep(200)
        assert await world.rung("b") == 2
        assert [rung.tick.attempt for rung in world.rungs] == [1, 2, 1]
        assert await world.rows("b") == []


# ---- jitter


async def test_jitter_delays_delivery_and_leaves_the_grid(world: World, start: datetime) -> None:
    async with world.up():
        await schedule(world, every=s(60), jitter=s(20))
        await asyncio.sleep(60 * 10 + 30)
    waits = [(rung.fired_at - rung.due_at).total_seconds() for rung in world.rungs]
    assert world.due_at() == [start + s(60 * number) for number in range(1, 11)]
    assert all(0 <= wait < 20 for wait in waits)
    assert len(set(waits)) > 5, "each occurrence has its own delay"


async def test_jitter_is_the_same_after_a_crash(world: World) -> None:
    async with world.up():
        await schedule(world, every=s(60), jitter=s(20))
        (row,) = await world.rows("b")
        await world.crash()
    async with world.up():
        assert await world.rows("b") == [row]
        await asyncio.sleep(85)
    assert row.wake_at is not None
    assert [round(at.timestamp() * 1e6) for at in world.fired_at()] == [row.wake_at]


async def test_jitter_spreads_a_herd(world: World, start: datetime) -> None:
    async with world.up():
        for number in range(50):
            await world.do(
                f"k{number}", lambda bell: bell.schedule(bell.ring, at=start + s(60), jitter=s(30))
            )
        await asyncio.sleep(120)
    assert len(world.rungs) == 50
    assert len(set(world.fired_at())) > 45


# ---- if_missing


async def test_if_missing_leaves_a_standing_reminder_untouched(world: World, start: datetime) -> None:
    async with world.up():
        await schedule(world, every=s(60))
        before = await world.rows("b")
        await asyncio.sleep(30)
        await schedule(world, every=s(10), if_missing=True)
        assert await world.rows("b") == before
        await asyncio.sleep(31)
        assert world.due_at() == [start + s(60)]


async def test_if_missing_creates_what_is_not_there(world: World, start: datetime) -> None:
    async with world.up():
        await schedule(world, after=s(10), if_missing=True)
        await asyncio.sleep(11)
        await schedule(world, after=s(10), if_missing=True)
        await asyncio.sleep(11)
        assert world.due_at() == [start + s(10), start + s(21)]


async def test_a_one_shot_rearms_itself_in_its_own_tick(world: World, start: datetime) -> None:
    def again(bell: Bell) -> None:
        if bell.state.rung < 3:
            bell.schedule(bell.ring, after=s(5), if_missing=True)

    world.handler = again
    async with world.up():
        await schedule(world, after=s(5))
        await asyncio.sleep(60)
        assert world.due_at() == [start + s(5), start + s(10), start + s(15)]
        assert await world.rows("b") == []


# ---- self.tick


async def test_the_tick_tells_scheduled_and_actual_time_occurrence_and_attempt(
    world: World, start: datetime
) -> None:
    def fail_twice(bell: Bell) -> None:
        if len(world.rungs) in (2, 3):
            raise OSError("not yet")

    world.handler = fail_twice
    async with world.up():
        await schedule(world, every=s(60))
        await asyncio.sleep(185)
    told = [
        (rung.tick.occurrence, rung.tick.attempt, (rung.due_at - start).total_seconds())
        for rung in world.rungs
    ]
    assert told == [(1, 1, 60), (2, 1, 120), (2, 2, 120), (2, 3, 120), (3, 1, 180)]
    assert len({rung.tick.id for rung in world.rungs}) == 3, "one id an occurrence, however often it is tried"
    assert all(rung.fired_at >= rung.due_at for rung in world.rungs)


async def test_outside_a_tick_there_is_none(world: World) -> None:
    async with world.up():
        assert await world.do("b", lambda bell: bell.tick) is None
