"""``@register_reminder``: what a class declares exists whenever a silo serves it (REM-032)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from farro.client.clock import from_us
from farro.client.errors import InvalidPayload, InvalidSchedule
from farro.client.identity import GrainId
from farro.client.reminders import MissedReminderAction, ReminderPriority, TickStatus
from farro.providers.rows import ReminderRow
from farro.silo import Grain, register_reminder
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World, s

CRITICAL, NORMAL, BACKGROUND = ReminderPriority


@dataclass
class StatsState:
    ticks: int = 0


@register_reminder("MonthlyReport", cron="0 0 0 1 * *", priority=CRITICAL)
@register_reminder("QuickPing", 30, 30)
@register_reminder("QuickPing", 45, 60, grain_key="second")
class Stats(Grain[StatsState], name="stats"):
    seen: ClassVar[list[tuple[str, str]]] = []

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        self.state.ticks += 1
        self.seen.append((self.key, name))


class QuietStats(Stats, name="quiet-stats"):
    pass


def declared(**declaration: Any) -> type[Grain[Any]]:
    """A class named "dec" with one declaration: another release of the same program."""

    @register_reminder("r", **declaration)
    class Dec(Grain, name="dec"):
        async def receive_reminder(self, name: str, status: TickStatus) -> None:
            pass

    return Dec


@pytest.fixture(params=["memory", "sqlite"])
async def world(
    request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path
) -> AsyncGenerator[World]:
    Stats.seen.clear()
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'declared.db'}"
    yield World(virtual, url, grains=(Stats, QuietStats))


async def rows_of(world: World, *keys: str, grain_type: str = "stats") -> dict[tuple[str, str], ReminderRow]:
    found = [row for key in keys for row in await world.store.inner.reminders_of(grain_type, key)]
    return {(row.grain_key, row.name): row for row in found}


async def test_declared_reminders_exist_after_start_and_no_grain_is_awake(
    world: World, virtual: VirtualClock
) -> None:
    start = virtual.at()
    async with world.up() as silo:
        assert silo.active_grains == 0
        rows = await rows_of(world, "default", "second")
        assert set(rows) == {
            ("default", "MonthlyReport"),
            ("default", "QuickPing"),
            ("second", "QuickPing"),
        }
        monthly = rows["default", "MonthlyReport"]
        assert (monthly.cron, monthly.priority, monthly.action) == ("0 0 0 1 * *", CRITICAL, 1)
        assert from_us(rows["second", "QuickPing"].next_due_at or 0) == start + s(45)
        await asyncio.sleep(100)
        pings = [key for key, name in Stats.seen if name == "QuickPing"]
        assert pings == ["default", "second", "default", "default"]


async def test_a_declaration_is_not_inherited(world: World) -> None:
    async with world.up():
        assert await rows_of(world, "default", "second", grain_type="quiet-stats") == {}


async def test_REM_032_an_operators_edit_survives_every_restart(world: World) -> None:
    async with world.up() as silo:
        await silo.reminders.set_priority(GrainId("stats", "default"), "MonthlyReport", BACKGROUND)
        before = await rows_of(world, "default", "second")
    for _ in range(3):
        async with world.up() as silo:
            assert silo.active_grains == 0
    async with world.up():
        after = await rows_of(world, "default", "second")
    assert after["default", "MonthlyReport"].priority == BACKGROUND
    registrations = {key: row.registration for key, row in before.items()}
    assert {key: row.registration for key, row in after.items()} == registrations


async def test_a_restart_keeps_the_grid(world: World, virtual: VirtualClock) -> None:
    start = virtual.at()
    async with world.up():
        await asyncio.sleep(10)
    async with world.up():
        rows = await rows_of(world, "default")
        assert from_us(rows["default", "QuickPing"].next_due_at or 0) == start + s(30)


async def test_a_deleted_declared_reminder_comes_back_and_a_paused_one_stays_off(world: World) -> None:
    async with world.up() as silo:
        await silo.reminders.delete(GrainId("stats", "default"), "QuickPing")
        await silo.reminders.pause(GrainId("stats", "second"), "QuickPing", note="not now")
        assert ("default", "QuickPing") not in await rows_of(world, "default")
    async with world.up():
        rows = await rows_of(world, "default", "second")
        assert rows["default", "QuickPing"].status == "scheduled"
        assert (rows["second", "QuickPing"].status, rows["second", "QuickPing"].note) == ("paused", "not now")
        await asyncio.sleep(200)
    assert {key for key, name in Stats.seen if name == "QuickPing"} == {"default"}


async def test_a_crash_while_the_rows_are_written_leaves_each_of_them_once(world: World) -> None:
    async with world.up():
        await world.crash()
    async with world.up():
        assert len(await rows_of(world, "default", "second")) == 3


# ---- another release declares it differently


async def released(world: World, **declaration: Any) -> ReminderRow:
    world.grains = (declared(**declaration),)
    async with world.up():
        return (await rows_of(world, "default", grain_type="dec"))["default", "r"]


async def test_a_changed_declaration_changes_nothing_unless_it_says_replace(world: World) -> None:
    first = await released(world, due_s=30, period_s=30)
    assert await released(world, due_s=60, period_s=60) == first
    replaced = await released(world, due_s=60, period_s=60, on_change="replace")
    assert replaced.period_us == 60_000_000
    assert replaced.registration != first.registration


async def test_replace_writes_nothing_when_nothing_differs(world: World) -> None:
    first = await released(world, due_s=30, period_s=30, on_change="replace")
    world.clock.jump(s(10))
    assert await released(world, due_s=30, period_s=30, on_change="replace") == first


async def test_replace_of_a_priority_keeps_the_progress_of_a_cron(world: World) -> None:
    first = await released(world, cron="0 0 5 * * *", on_change="replace")
    second = await released(world, cron="0 0 5 * * *", priority=BACKGROUND, on_change="replace")
    assert (second.priority, second.registration) == (BACKGROUND, first.registration)
    third = await released(world, cron="0 0 6 * * *", on_change="replace")
    assert third.registration != first.registration
    assert from_us(third.next_due_at or 0).hour == 6


async def test_replace_of_an_action(world: World) -> None:
    await released(world, due_s=5, period_s=30, on_change="replace")
    notify = MissedReminderAction.NOTIFY
    row = await released(world, due_s=5, period_s=30, action=notify, on_change="replace")
    assert row.action == notify


async def test_a_silo_without_reminder_service_creates_none(virtual: VirtualClock) -> None:
    from farro.silo import SiloOptions

    world = World(virtual, grains=(Stats,), options=SiloOptions(reminders=None))
    async with world.up():
        assert await rows_of(world, "default", "second") == {}


# ---- mistakes are told when the class is made


class Deaf(Grain, name="deaf"):
    pass


def test_a_class_without_receive_reminder_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="receive_reminder"):
        register_reminder("r", 30, 30)(Deaf)


def test_only_grain_classes_can_declare() -> None:
    with pytest.raises(TypeError, match="Grain"):
        register_reminder("r", 30, 30)(dict)


def test_one_name_of_one_grain_is_declared_once() -> None:
    with pytest.raises(TypeError, match="twice"):
        register_reminder("QuickPing", 10, 10)(Stats)


@pytest.mark.parametrize(
    ("declaration", "error"),
    [
        ({}, InvalidSchedule),
        ({"due_s": 30, "cron": "0 0 * * * *"}, InvalidSchedule),
        ({"period_s": 30, "cron": "0 0 * * * *"}, InvalidSchedule),
        ({"cron": "garbage"}, InvalidSchedule),
        ({"cron": "0 0 0 30 2 *"}, InvalidSchedule),
        ({"cron": "0 0 5 * * *", "timezone": "Mars/X"}, InvalidSchedule),
        ({"due_s": -1}, InvalidSchedule),
        ({"due_s": 30, "period_s": 0}, InvalidSchedule),
        ({"due_s": 30, "period_s": -5}, InvalidSchedule),
        ({"due_s": float("nan")}, ValueError),
        ({"due_s": 1e300}, (ValueError, OverflowError)),
        ({"due_s": 30, "priority": 99}, ValueError),
        ({"due_s": 30, "action": 99}, ValueError),
        ({"due_s": 30, "on_change": "overwrite"}, ValueError),
        ({"due_s": 30, "grain_key": ""}, InvalidPayload),
    ],
    ids=str,
)
def test_a_declaration_that_cannot_work_is_refused_where_it_stands(
    declaration: dict[str, Any], error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    with pytest.raises(error):
        register_reminder("r", **declaration)(Stats)


def test_a_schedule_that_cannot_be_made_names_class_and_file() -> None:
    with pytest.raises(InvalidSchedule, match=r"Stats \(.*test_declared_reminders\.py:\d+\).*'r'.*garbage"):
        register_reminder("r", cron="garbage")(Stats)


@pytest.mark.parametrize("name", ["", "x" * 513, "a\0b"])
def test_a_bad_name_is_refused_where_it_stands(name: str) -> None:
    with pytest.raises(InvalidPayload):
        register_reminder(name, 30, 30)


async def test_a_period_below_the_silos_minimum_stops_its_start_with_one_clear_error(
    virtual: VirtualClock,
) -> None:
    world = World(virtual, grains=(declared(due_s=1, period_s=0.25),))
    with pytest.raises(InvalidSchedule, match="minimum"):
        await world.start()


async def test_a_declared_one_shot_is_made_once_and_comes_back_at_the_next_start(
    virtual: VirtualClock,
) -> None:
    """A finished one-shot is deleted, and what is missing at start is created: the declaration says so."""
    world = World(virtual, grains=(declared(due_s=5),))
    async with world.up():
        await asyncio.sleep(60)
        assert await rows_of(world, "default", grain_type="dec") == {}
    async with world.up():
        rows = await rows_of(world, "default", grain_type="dec")
        assert from_us(rows["default", "r"].next_due_at or 0) == virtual.at() + timedelta(seconds=5)
