"""Pause, resume and delete by filter: many reminders, few transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest

from farro.client.errors import ReminderNotFound
from farro.client.identity import GrainId
from farro.client.reminders import ReminderPriority, ReminderQuery, ReminderStatus
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World, bell_row, s

CRITICAL, NORMAL, BACKGROUND = ReminderPriority
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


async def test_ten_thousand_are_paused_and_resumed_in_few_transactions(virtual: VirtualClock) -> None:
    world = World(virtual)
    async with world.up() as silo:
        due = virtual.at() + timedelta(hours=1)
        rows = [
            bell_row(f"k{number:05}", due, period=s(3600), registration=number) for number in range(10_000)
        ]
        await world.write(*rows, bell_row("other", due, priority=0))
        normal = ReminderQuery(priority=NORMAL)
        before = world.store.calls["commit"]
        assert await silo.reminders.pause_all(normal, note="storm") == 10_000
        assert world.store.calls["commit"] - before < 1_000
        assert await silo.reminders.pause_all(normal, note="storm") == 0
        assert (await silo.reminders.count_all(ReminderQuery(status="paused"))).total == 10_000
        assert silo.active_grains == 0
        await asyncio.sleep(3700)
        assert [rung.key for rung in world.rungs] == ["other"]
        assert await silo.reminders.resume_all(normal) == 10_000
        assert (await silo.reminders.count_all(ReminderQuery(status="scheduled"))).total == 10_000
        assert await silo.reminders.delete_all(ReminderQuery()) == 10_000
        assert (await silo.reminders.count_all()).total == 0


async def test_a_bulk_resume_revives_failed_ones_and_passes_over_what_cannot_be_read(world: World) -> None:
    start = world.clock.at() + s(500)
    await world.write(
        bell_row("a", start, period=s(100), status="paused", wake_at=None),
        bell_row("b", start, cron="no cron", status="failed", wake_at=None, note="unreadable"),
        bell_row("c", start, status="failed", wake_at=None),
        bell_row("d", start),
    )
    assert await world.silo.reminders.resume_all(ReminderQuery(grain_type="bell")) == 2
    assert [(await status(world, key=key)).status for key in "abcd"] == [
        "scheduled",
        "failed",
        "scheduled",
        "scheduled",
    ]
    assert await world.silo.reminders.resume_all(ReminderQuery(status="failed")) == 0
    assert await world.silo.reminders.pause_all(ReminderQuery(status="failed")) == 0


async def test_a_bulk_pause_gets_the_better_of_ticks_that_move_the_rows_meanwhile(world: World) -> None:
    """The ticks commit between the read of the page and the pauses."""
    start = world.clock.at()
    for number in range(30):
        await world.do(f"k{number}", lambda bell: bell.schedule(bell.ring, at=start + s(61), every=s(100)))
    await world.do("gone", lambda bell: bell.schedule(bell.ring, at=start + s(61)))
    await asyncio.sleep(55)
    world.store.delay("list_reminders", 0.0, answer=10.0)
    assert await world.silo.reminders.pause_all(ReminderQuery()) == 30
    world.store.delay("list_reminders", 0.0)
    assert len(world.rungs) == 31
    await asyncio.sleep(1000)
    assert len(world.rungs) == 31
    assert (await world.silo.reminders.count_all(ReminderQuery(status="paused"))).total == 30


async def test_an_edit_that_loses_its_row_between_look_and_commit_says_so(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, at=start + s(61)))
    await asyncio.sleep(55)
    world.store.delay("reminder", 0.0, answer=10.0)
    with pytest.raises(ReminderNotFound):
        await world.silo.reminders.pause(B, "ring")
    assert len(world.rungs) == 1
