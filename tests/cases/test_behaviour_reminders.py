"""Public cases about reminders while a silo runs: grid, moving, cancelling, order, overload, bad rows.

Ids and facts: tests/cases/data/behaviour.jsonl.  Where the design decides otherwise, the test says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import FrozenInstanceError, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from farro.client.errors import GrainCallFailed
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.silo.grains.grain import Grain
from farro.silo.options import OptionsError, ReminderOptions
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import ONE_PERMIT, Bell, World, bell_row, reminder_options, s, stall

CRITICAL, NORMAL, BACKGROUND = ReminderPriority
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    world = World(virtual)
    async with world.up():
        yield world


@pytest.fixture
def start(virtual: VirtualClock) -> datetime:
    return virtual.at()


async def register(world: World, name: str, due: float, period: float | None = None, key: str = "b") -> None:
    await world.do(
        key,
        lambda bell: bell.register_or_update_reminder(name, s(due), None if period is None else s(period)),
    )


# ---- the grid


async def test_REM_007_a_period_of_thirty_seconds_is_accepted(world: World, start: datetime) -> None:
    await register(world, "QuickPing", 30, 30)
    await asyncio.sleep(95)
    assert world.due_at() == [start + s(30), start + s(60), start + s(90)]
    assert ReminderOptions().minimum_period <= s(1)


async def test_REM_008_the_handlers_time_does_not_move_the_grid(world: World, start: datetime) -> None:
    world.handler = lambda bell: asyncio.sleep(7)
    await register(world, "r", 60, 60)
    await asyncio.sleep(190)
    assert world.due_at() == world.fired_at() == [start + s(60), start + s(120), start + s(180)]


async def test_REM_065_the_next_due_is_computed_from_the_due_instant_not_from_now(
    world: World, start: datetime
) -> None:
    world.handler = lambda bell: asyncio.sleep(0.0004)
    await register(world, "r", 60, 60)
    await asyncio.sleep(61)
    status = await world.do("b", lambda bell: bell.get_reminder("r"))
    assert status.next_run_at == start + s(120)
    assert len(world.rungs) == 1


async def test_REM_066_the_status_of_a_tick_tells_the_due_instant(world: World, start: datetime) -> None:
    await register(world, "r", 60, 600)
    await asyncio.sleep(59)
    stall(world.clock, 4)
    await asyncio.sleep(1)
    (rung,) = world.rungs
    assert rung.fired_at == start + s(63)
    assert rung.status is not None
    assert rung.status.current_tick_at == start + s(60)
    assert (rung.status.first_tick_at, rung.status.period) == (start + s(60), s(600))


async def test_REM_001_late_by_less_than_the_grace_is_late_and_not_missed(
    world: World, start: datetime
) -> None:
    await register(world, "r", 60, 600)  # SKIP: the default of this form
    await asyncio.sleep(59)
    stall(world.clock, 6)
    await asyncio.sleep(60)
    (rung,) = world.rungs
    assert (rung.due_at, rung.fired_at) == (start + s(60), start + s(65))
    status = await world.do("b", lambda bell: bell.get_reminder("r"))
    assert status.next_run_at == start + s(660)


async def test_REM_009_a_stopped_process_catches_up_with_one_tick_and_keeps_its_phase(
    world: World, start: datetime
) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(1)))
    await asyncio.sleep(5.5)
    stall(world.clock, 10)
    await asyncio.sleep(3)
    assert [rung.due_at for rung in world.rungs[:6]] == [start + s(each) for each in range(1, 7)]
    assert world.rungs[5].tick.missed_count == 9
    assert [rung.fired_at for rung in world.rungs[5:]] == [start + s(each) for each in (15.5, 16, 17, 18)]


async def test_REM_003_a_reminder_sixty_days_away_fires_once_on_its_day(virtual: VirtualClock) -> None:
    world = World(virtual)
    due_at = virtual.at() + timedelta(days=60)
    async with world.up():
        await world.do("b", lambda bell: bell.schedule(bell.ring, at=due_at, every=timedelta(days=1)))
    virtual.jump(timedelta(days=30))
    async with world.up():
        await asyncio.sleep(3600)
    virtual.jump(due_at - virtual.at() - timedelta(hours=1))
    async with world.up():
        await asyncio.sleep(3599)
        assert world.rungs == []
        await asyncio.sleep(3600)
    assert world.fired_at() == [due_at]


# ---- new, earlier, later


async def test_REM_011_a_reminder_due_before_the_next_poll_does_not_wait_for_it(
    world: World, start: datetime
) -> None:
    await asyncio.sleep(1)
    await register(world, "r", 5)
    await asyncio.sleep(10)
    assert world.fired_at() == [start + s(6)]


async def test_REM_012_a_reminder_moved_earlier_fires_once_at_the_new_time(
    world: World, start: datetime
) -> None:
    await register(world, "r", 240)
    await asyncio.sleep(10)
    await register(world, "r", 50)
    await asyncio.sleep(600)
    assert world.fired_at() == [start + s(60)]


async def test_REM_013_a_reminder_moved_later_does_not_fire_at_the_old_time(
    world: World, start: datetime
) -> None:
    await register(world, "r", 60)
    await asyncio.sleep(30)
    await register(world, "r", 1770)
    await asyncio.sleep(3600)
    assert world.fired_at() == [start + s(1800)]


async def test_REM_029_registering_one_name_again_moves_the_one_row(world: World, start: datetime) -> None:
    for period in (10, 20, 30):
        await register(world, "x", period, period)
    assert len(await world.rows("b")) == 1
    await asyncio.sleep(61)
    await world.do("b", lambda bell: bell.unregister_reminder("x"))
    await asyncio.sleep(60)
    assert world.fired_at() == [start + s(30), start + s(60)]


@dataclass
class WakerState:
    ticks: int = 0


class Waker(Grain[WakerState], name="waker"):
    """Registers in on_activate, as many do."""

    async def on_activate(self) -> None:
        match self.key:
            case "daily":
                self.schedule(self.tock, cron="0 0 0 * * *")
            case "restarts":
                self.schedule(self.tock, every=s(60))
            case "keeps":
                self.schedule(self.tock, every=s(60), if_missing=True)

    async def tock(self) -> None:
        self.state.ticks += 1
        self.deactivate()

    async def wake(self) -> int:
        self.deactivate()
        return self.state.ticks


async def test_REM_030_registering_a_cron_anew_at_each_activation_keeps_its_next_due(
    virtual: VirtualClock,
) -> None:
    world = World(virtual, grains=(Waker, Bell))
    async with world.up() as silo:
        waker = silo.grain(Waker, "daily")
        await asyncio.sleep(300)
        for _ in range(2 * 144):
            await waker.wake()
            await asyncio.sleep(600)
        assert await waker.wake() == 2
        (row,) = await world.store.inner.reminders_of("waker", "daily")
        assert row.occurrence == 3


async def test_REM_031_an_interval_restarts_with_each_registration_unless_if_missing(
    virtual: VirtualClock,
) -> None:
    world = World(virtual, grains=(Waker, Bell))
    async with world.up() as silo:
        for _ in range(21):
            ticks = [await silo.grain(Waker, key).wake() for key in ("restarts", "keeps")]
            await asyncio.sleep(30)
        assert ticks == [0, 10]


# ---- cancelling


async def test_REM_033_a_handler_that_unregisters_itself_does_not_come_back(world: World) -> None:
    world.handler = lambda bell: bell.unregister_reminder("r")
    await register(world, "r", 5, 5)
    await asyncio.sleep(30)
    assert len(world.rungs) == 1
    assert await world.rows("b") == []


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_REM_034_unregistered_reminders_do_not_come_back_after_a_crash(
    virtual: VirtualClock, tmp_path: Path, store: str
) -> None:
    world = World(virtual, None if store == "memory" else f"sqlite:///{tmp_path / 'r.db'}")
    async with world.up():
        keys = [f"k{number}" for number in range(100)]
        await asyncio.gather(*(register(world, "r", 5, 5, key) for key in keys))
        await asyncio.sleep(6)
        assert len(world.rungs) == 100
        await asyncio.gather(*(world.do(key, lambda bell: bell.unregister_reminder("r")) for key in keys))
        await world.crash()
    async with world.up():
        await asyncio.sleep(15)
        assert len(world.rungs) == 100
        assert [await world.rows(key) for key in keys] == [[]] * 100


async def test_REM_037_unregister_then_register_in_one_turn_leaves_one_row(
    world: World, start: datetime
) -> None:
    async def both(bell: Bell) -> None:
        await bell.unregister_reminder("x")
        await bell.register_or_update_reminder("x", s(3600))

    await register(world, "x", 60)
    await world.do("b", both)
    (row,) = await world.rows("b")
    status = await world.do("b", lambda bell: bell.get_reminder("x"))
    assert (row.name, status.next_run_at) == ("x", start + s(3600))


async def test_REM_038_a_claimed_occurrence_may_still_run_when_its_cancel_commits(world: World) -> None:
    world.handler = lambda bell: asyncio.sleep(1)
    await register(world, "r", 60, 60)
    await asyncio.sleep(60.5)
    await world.do("b", lambda bell: bell.unregister_reminder("r"))
    await asyncio.sleep(600)
    assert len(world.rungs) == 1
    assert await world.rows("b") == []


async def test_REM_042_register_and_unregister_are_staged_and_roll_back_with_their_turn(
    world: World,
) -> None:
    """The design's answer: staged, both of them."""

    async def both_and_raise(bell: Bell) -> None:
        await bell.unregister_reminder("x")
        await bell.register_or_update_reminder("y", s(60))
        raise RuntimeError("no")

    await register(world, "x", 60)
    with pytest.raises(GrainCallFailed):
        await world.do("b", both_and_raise)
    assert [row.name for row in await world.rows("b")] == ["x"]


async def test_REM_043_a_status_is_a_frozen_value_and_absence_is_none(world: World, start: datetime) -> None:
    await world.do(
        "b", lambda bell: bell.register_or_update_reminder("x", cron="0 0 5 * * *", timezone="Europe/Berlin")
    )
    status = await world.do("b", lambda bell: bell.get_reminder("x"))
    assert (status.name, status.cron, status.timezone) == ("x", "0 0 5 * * *", "Europe/Berlin")
    assert (status.priority, status.action) == (NORMAL, MissedReminderAction.SKIP)
    assert status.next_run_at == start + timedelta(hours=4)
    assert status.last_fired_at is None
    for name in ("next_run_at", "priority", "name"):
        with pytest.raises(FrozenInstanceError):
            setattr(status, name, None)
    assert await world.do("b", lambda bell: bell.get_reminder("absent")) is None


# ---- order and overload


async def test_REM_014_a_handler_that_blocks_ten_minutes_collects_no_ticks(
    world: World, start: datetime
) -> None:
    world.handler = lambda bell: asyncio.sleep(600 if len(world.rungs) == 1 else 0)
    await world.do("b", lambda bell: bell.schedule(bell.ring, cron="*/10 * * * * *"))
    await asyncio.sleep(629)
    assert [(rung.fired_at - start).total_seconds() for rung in world.rungs] == [10, 610, 620]
    assert world.rungs[1].tick.missed_count == 59
    assert world.rungs[1].tick.first_missed_at == start + s(30)


async def test_REM_015_a_handler_longer_than_its_period_does_not_overlap_itself(
    world: World, start: datetime
) -> None:
    world.handler = lambda bell: asyncio.sleep(35)
    await register(world, "r", 0, 10)
    await asyncio.sleep(119)
    assert [(rung.fired_at - start).total_seconds() for rung in world.rungs] == [0, 40, 80]
    assert [rung.tick.missed_count for rung in world.rungs] == [0, 3, 3]


async def test_REM_052_a_backlog_larger_than_the_bucket_is_delivered_at_once(
    world: World, start: datetime
) -> None:
    await world.write(*(bell_row(f"k{number}", start + MINUTE) for number in range(5000)))
    await asyncio.sleep(65)
    assert len({rung.key for rung in world.rungs}) == len(world.rungs) == 5000


async def test_REM_053_priority_orders_only_what_is_due(virtual: VirtualClock) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(permits_per_cpu=1.0))
    world.handler = lambda bell: asyncio.sleep(0.5)
    async with world.up():
        far = [bell_row(f"c{number}", start + 4 * MINUTE, priority=0) for number in range(50)]
        near = [bell_row(f"n{number}", start) for number in range(10)]
        await world.write(*far, *near)
        await asyncio.sleep(35)
        assert Counter(rung.key[0] for rung in world.rungs) == {"n": 10}


async def mixed(world: World, due_at: datetime) -> None:
    rows = [
        bell_row(f"{number:02}", due_at, priority=number % 3, registration=100 - number)
        for number in range(30)
    ]
    await world.write(*rows)


async def test_REM_054_at_one_instant_by_priority_then_registration(virtual: VirtualClock) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(**ONE_PERMIT))
    async with world.up():
        await mixed(world, start + MINUTE)
        await asyncio.sleep(90)
    order = [int(rung.key) for rung in world.rungs]
    assert order == sorted(range(30), key=lambda number: (number % 3, 100 - number))


async def test_REM_056_without_priority_by_due_time_alone(virtual: VirtualClock) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(**ONE_PERMIT, enable_priority=False))
    async with world.up():
        await world.write(bell_row("critical", start + s(61), priority=0))
        await world.write(bell_row("background", start + s(60), priority=2))
        await asyncio.sleep(58)
        stall(virtual, 5)  # both are due when the service looks
        await asyncio.sleep(5)
    assert [rung.key for rung in world.rungs] == ["background", "critical"]


async def test_REM_055_background_is_not_starved_by_steady_critical_load(virtual: VirtualClock) -> None:
    """The bound: overdue by more than ``background_wait_max``, one start in eight is for what waits."""
    start = virtual.at()
    world = World(virtual, options=reminder_options(**ONE_PERMIT))
    world.handler = lambda bell: asyncio.sleep(0.5)
    async with world.up():
        load = [bell_row(f"c{number}", start + s(number / 2.2), priority=0) for number in range(660)]
        slow = [bell_row(f"b{number}", start + s(0.1), priority=2) for number in range(10)]
        await world.write(*load, *slow)
        await asyncio.sleep(300)
    waits = [(rung.fired_at - rung.due_at).total_seconds() for rung in world.rungs if rung.key[0] == "b"]
    assert len(waits) == 10
    assert max(waits) < 60 + 60
    critical = [rung for rung in world.rungs if rung.key[0] == "c"]
    assert len(critical) > 500, "nothing floods: critical ticks keep seven starts of eight"


async def test_REM_057_ten_thousand_reminders_at_midnight_are_delivered_once_each(
    world: World, start: datetime
) -> None:
    midnight = start + timedelta(days=1)
    world.clock.jump(timedelta(days=1) - MINUTE)
    await world.write(*(bell_row(f"k{n}", midnight, period=timedelta(days=1)) for n in range(10_000)))
    await asyncio.sleep(120)
    assert Counter(Counter(rung.key for rung in world.rungs).values()) == {1: 10_000}
    assert {rung.due_at for rung in world.rungs} == {midnight}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"look_ahead_window": s(10)}, ["look_ahead_window", "poll_interval"]),
        ({"poll_interval": s(0)}, ["poll_interval"]),
        ({"base_bucket_size": -1}, ["base_bucket_size"]),
    ],
    ids=str,
)
async def test_REM_059_options_that_cannot_work_are_refused_at_start_by_name(
    virtual: VirtualClock, options: dict[str, object], named: list[str]
) -> None:
    world = World(virtual, options=reminder_options(**options))
    with pytest.raises(OptionsError) as raised:
        await world.start()
    assert all(name in str(raised.value) for name in named)


# ---- bad rows, bad handlers


async def test_REM_060_a_handler_that_raises_is_retried_with_back_off_and_the_next_slot_comes(
    world: World, start: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(bell: Bell) -> None:
        raise OSError("printer on fire")

    world.handler = fail
    await register(world, "r", 60, 60)
    with caplog.at_level(logging.WARNING, "farro.reminders"):
        await asyncio.sleep(60 * 10)
    per_minute = Counter(int((rung.fired_at - start).total_seconds() // 60) for rung in world.rungs)
    assert max(per_minute.values()) <= 5
    dues = sorted({rung.due_at for rung in world.rungs})
    assert len(dues) >= 9
    attempts = [rung.tick.attempt for rung in world.rungs if rung.due_at == dues[0]]
    assert attempts == [1, 2, 3, 4, 5]
    failures = [each.getMessage() for each in caplog.records if "tick failed" in each.getMessage()]
    assert "grain=bell/b" in failures[0]
    assert "name=r" in failures[0]
    assert await world.rung("b") == 0


async def test_REM_061_a_bad_row_is_marked_once_and_stops_nobody_else(
    world: World, start: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [
        bell_row("garbage", start, cron="garbage"),
        bell_row("mars", start, cron="0 0 5 * * *", timezone="Mars/X"),
        bell_row("priority", start, priority=99),
        bell_row("null", start, period=MINUTE, next_due_at=None),
    ]
    good = [bell_row(f"k{number}", start) for number in range(1000)]
    with caplog.at_level(logging.ERROR, "farro.reminders"):
        await world.write(*bad, *good)
        await asyncio.sleep(200)
    assert len({rung.key for rung in world.rungs if rung.key.startswith("k")}) == 1000
    for key in ("garbage", "mars", "priority"):
        row = await world.row(key, "ring")
        assert (row.status, row.wake_at) == ("failed", None), key
        assert row.note is not None
    assert (await world.row("null", "ring")).next_due_at is not None
    for key in ("garbage", "mars"):
        assert sum(f"grain=bell/{key}" in each.getMessage() for each in caplog.records) == 1


async def test_REM_062_rows_of_a_class_that_is_gone_wait_and_are_never_deleted(
    world: World, start: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [bell_row(f"k{number}", start, grain_type="removed") for number in range(20)]
    with caplog.at_level(logging.WARNING, "farro.reminders"):
        await world.write(*rows)
        await asyncio.sleep(3600)
    warnings = [each.getMessage() for each in caplog.records if "removed" in each.getMessage()]
    assert len(warnings) == 1
    for number in range(20):
        kept = await world.store.inner.reminder("removed", f"k{number}", "ring")
        assert kept is not None
        assert (kept.status, kept.next_due_at) == ("scheduled", rows[number].next_due_at)


async def test_REM_044_a_row_written_with_a_past_due_is_picked_up(world: World, start: datetime) -> None:
    await asyncio.sleep(7)
    await world.write(bell_row("b", start - timedelta(days=2)))
    await asyncio.sleep(90)
    assert world.due_at() == [start - timedelta(days=2)]


async def test_REM_063_no_tick_before_the_silo_is_ready_and_none_begins_once_it_stops(
    virtual: VirtualClock,
) -> None:
    start = virtual.at()
    world = World(virtual)
    async with world.up():
        await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(5)))
    virtual.jump(s(60))
    slow = world.provider()
    slow.delay("take", 10.0)
    world.provider = lambda: slow  # type: ignore[method-assign]
    async with world.up():
        assert world.rungs == []
        await asyncio.sleep(1)
        assert [rung.fired_at for rung in world.rungs] == [start + s(70)]


@pytest.mark.parametrize(
    ("case", "cpus", "memory_load", "grains", "base", "expected"),
    [
        ("REM-047", 16, 0.60, 40_000, 1024, 1638),
        ("REM-048", 8, 0.90, 200_000, 1024, 128),
        ("REM-049", 2, 0.10, 0, 1024, 921),
        ("REM-050", 6, 0.0, 1, 1024, 1536),
        ("REM-051", 1, 1.30, 1_000_000_000, 1, 1),
    ],
)
def test_the_bucket_size_of_each_case(
    case: str, cpus: float, memory_load: float, grains: int, base: int, expected: int
) -> None:
    options = ReminderOptions(base_bucket_size=base)
    assert options.bucket_size(cpus=cpus, memory_load=memory_load, active_grains=grains) == expected
