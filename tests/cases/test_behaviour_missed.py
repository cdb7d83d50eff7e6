"""Public cases about absence: what becomes of occurrences that nobody was there to deliver.

Real restarts of a silo, in memory and on an SQLite file, on virtual time.  Ids: data/behaviour.jsonl.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.client.clock import from_us
from farro.client.reminders import MissedReminderAction
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World, bell_row, s, set_clock

FIRE, SKIP, NOTIFY, ALL = MissedReminderAction
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)  # a Monday


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path) -> World:
    set_clock(virtual, NOON)
    return World(virtual, None if request.param == "memory" else f"sqlite:///{tmp_path / 'missed.db'}")


async def plan(world: World, **when: Any) -> None:
    """A silo that lives just long enough to schedule the bell."""
    async with world.up():
        await world.do("b", lambda bell: bell.schedule(bell.ring, **when))


async def back(world: World, at: datetime, stay: timedelta) -> None:
    """The silo comes back at ``at`` and lives for ``stay``."""
    set_clock(world.clock, at)
    async with world.up():
        await asyncio.sleep(stay.total_seconds())


async def reported(world: World) -> list[dict[str, Any]]:
    """What NOTIFY said, read from the store."""
    async with world.up() as silo:
        found = []
        for partition in range(64):
            for _, event in await world.store.inner.events(partition, "farro.reminders.missed", 0, 100):
                found.append(silo.rooms.codec.unpack(event.payload)["value"])
        return found


async def row(world: World) -> Any:
    async with world.up():
        return await world.row("b", "ring")


def clock_times(world: World) -> list[str]:
    return [f"{rung.fired_at:%a %H:%M:%S}" for rung in world.rungs]


# ---- REM-016: due 12:05, every hour, down from 12:00 to 12:30


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (FIRE, ["Mon 12:30:00", "Mon 13:05:00"]),
        (SKIP, ["Mon 13:05:00"]),
        (NOTIFY, ["Mon 13:05:00"]),
        (ALL, ["Mon 12:30:00", "Mon 13:05:00"]),
    ],
    ids=lambda value: value.name if isinstance(value, MissedReminderAction) else "",
)
async def test_REM_016_a_reminder_that_fell_due_while_the_silo_was_down_goes_on(
    world: World, action: MissedReminderAction, expected: list[str]
) -> None:
    await plan(world, at=NOON + 5 * MINUTE, every=HOUR, missed=action)
    await back(world, NOON + 30 * MINUTE, 40 * MINUTE)
    assert clock_times(world) == expected
    events = await reported(world)
    assert len(events) == (1 if action is NOTIFY else 0)


# ---- REM-017: daily at eight, FIRE_IMMEDIATELY, down for a week


async def test_REM_017_a_week_of_absence_is_one_tick_that_says_what_was_missed(world: World) -> None:
    monday = NOON.replace(hour=7)
    set_clock(world.clock, monday)
    await plan(world, cron="0 0 8 * * *", missed=FIRE)
    await back(world, monday + timedelta(days=6, hours=2), MINUTE)
    await back(world, monday + timedelta(days=7, minutes=59), 2 * MINUTE)
    assert clock_times(world) == ["Sun 09:00:00", "Mon 08:00:00"]
    first, second = (rung.tick for rung in world.rungs)
    assert (first.missed_count, first.first_missed_at) == (7, monday + HOUR)
    assert (second.missed_count, second.first_missed_at) == (0, None)


# ---- REM-018, REM-019: every five minutes, down from 12:01 to 13:02


async def test_REM_018_skip_delivers_nothing_stores_the_next_due_and_counts(world: World) -> None:
    set_clock(world.clock, NOON + MINUTE)
    await plan(world, cron="0 */5 * * * *", missed=SKIP)
    await back(world, NOON + timedelta(minutes=62), 2 * MINUTE)
    assert world.rungs == []
    stored = await row(world)
    assert from_us(stored.next_due_at) == NOON + timedelta(minutes=65)
    assert (stored.missed_count, stored.last_fire_at) == (12, None)
    await back(world, NOON + timedelta(minutes=64, seconds=30), MINUTE)
    assert clock_times(world) == ["Mon 13:05:00"]
    assert world.rungs[0].tick.missed_count == 12


async def test_REM_019_notify_publishes_one_event_and_delivers_nothing(world: World) -> None:
    set_clock(world.clock, NOON + MINUTE)
    await plan(world, cron="0 */5 * * * *", missed=NOTIFY)
    await back(world, NOON + timedelta(minutes=62), 2 * MINUTE)
    assert world.rungs == []
    (event,) = await reported(world)
    assert (event["grain_type"], event["grain_key"], event["name"]) == ("bell", "b", "ring")
    assert (event["first_due_at"], event["count"]) == (NOON + 5 * MINUTE, 12)
    assert event["detected_at"] == NOON + timedelta(minutes=62)
    assert from_us((await row(world)).next_due_at) == NOON + timedelta(minutes=65)


async def test_fire_all_delivers_each_missed_occurrence_in_order_one_at_a_time(world: World) -> None:
    set_clock(world.clock, NOON + MINUTE)
    await plan(world, cron="0 */5 * * * *", missed=ALL)
    await back(world, NOON + timedelta(minutes=62), 4 * MINUTE)
    dues = [rung.due_at for rung in world.rungs]
    assert dues == [NOON + timedelta(minutes=each) for each in range(5, 66, 5)]
    assert len({rung.tick.id for rung in world.rungs}) == len(dues)


async def test_fire_all_is_bounded_per_outage_and_a_crash_does_not_renew_the_bound(world: World) -> None:
    await plan(world, at=NOON + MINUTE, every=s(10), missed=ALL)
    set_clock(world.clock, NOON + timedelta(hours=1))
    world.handler = lambda bell: asyncio.sleep(0.02)
    await world.start()
    await asyncio.sleep(1.0)
    before = len(world.rungs)
    assert 20 < before < 70
    await world.crash()
    async with world.up():
        await asyncio.sleep(4)
        delivered = len({rung.tick.id for rung in world.rungs})
        assert delivered == 100
        assert (await world.row("b", "ring")).missed_count == 255


# ---- who was there: lateness is no absence


@pytest.mark.parametrize("action", list(MissedReminderAction), ids=lambda action: action.name)
async def test_what_fell_due_while_an_owner_lived_is_delivered_under_every_action(
    world: World, action: MissedReminderAction
) -> None:
    """Claimed, its silo dies in the middle, the next silo comes an hour later."""

    async def begin_and_hang(_: object) -> None:
        await asyncio.sleep(1000)

    await world.start()
    await world.do(
        "b", lambda bell: bell.schedule(bell.ring, at=NOON + MINUTE, every=24 * HOUR, missed=action)
    )
    world.handler = begin_and_hang
    await asyncio.sleep(75)
    assert len(world.rungs) == 1
    await world.crash()
    world.handler = None
    await back(world, NOON + HOUR, MINUTE)
    assert [rung.due_at for rung in world.rungs] == [NOON + MINUTE] * 2
    assert world.rungs[0].tick.id == world.rungs[1].tick.id


@pytest.mark.parametrize("action", list(MissedReminderAction), ids=lambda action: action.name)
async def test_an_absence_within_the_grace_is_only_late(world: World, action: MissedReminderAction) -> None:
    await plan(world, at=NOON + s(10), every=HOUR, missed=action)
    await back(world, NOON + s(35), s(5))
    assert clock_times(world) == ["Mon 12:00:35"]
    assert world.rungs[0].tick.missed_count == 0


async def test_a_one_shot_is_never_lost_unless_skip_was_asked_for(world: World) -> None:
    async with world.up():
        await world.do("b", lambda bell: bell.schedule(bell.ring, after=MINUTE))
        await world.do("c", lambda bell: bell.register_or_update_reminder("x", MINUTE))
        await world.do("d", lambda bell: bell.schedule(bell.ring, after=MINUTE, missed=SKIP))
    await back(world, NOON + timedelta(days=400), MINUTE)
    assert sorted(rung.key for rung in world.rungs) == ["b", "c"]
    async with world.up():
        assert await world.rows("d") == []


@pytest.mark.parametrize("action", list(MissedReminderAction), ids=lambda action: action.name)
async def test_a_crash_between_two_restarts_counts_no_missed_occurrence_twice(
    world: World, action: MissedReminderAction
) -> None:
    """355 instants of one absence: delivered or counted, each once, whatever the action."""
    await plan(world, at=NOON + MINUTE, every=s(10), missed=action)
    set_clock(world.clock, NOON + HOUR)
    for _ in range(3):
        await world.start()
        await asyncio.sleep(0.5)
        await world.crash()
    async with world.up():
        await asyncio.sleep(5)
        stored = await world.row("b", "ring")
        assert stored.next_due_at is not None
        assert from_us(stored.next_due_at) == NOON + HOUR + s(10)
    delivered = {rung.tick.id: rung for rung in world.rungs}
    # FIRE_IMMEDIATELY: one tick stands for all of them; the others leave the count on the row
    carried = sum(rung.tick.missed_count for rung in delivered.values())
    if action is FIRE:
        assert (len(delivered), carried, stored.missed_count) == (1, 355, 0)
    else:
        assert len(delivered) + stored.missed_count == 355


# ---- clocks that jump


async def test_REM_027_after_the_machine_slept_the_slots_in_between_are_skipped_and_counted_once(
    world: World,
) -> None:
    async with world.up():
        first = NOON + s(40)
        await world.do("b", lambda bell: bell.schedule(bell.ring, at=first, every=MINUTE, missed=SKIP))
        await asyncio.sleep(105)
        world.clock.suspend(30 * MINUTE)
        await asyncio.sleep(30)  # one poll
        assert (await world.row("b", "ring")).missed_count == 30
        await asyncio.sleep(60)
    assert clock_times(world) == ["Mon 12:00:40", "Mon 12:01:40", "Mon 12:32:40"]
    assert world.rungs[-1].tick.missed_count == 30


@pytest.mark.parametrize(
    ("action", "expected"),
    [(FIRE, 1), (SKIP, 0), (ALL, 1)],
    ids=lambda value: value.name if isinstance(value, MissedReminderAction) else "",
)
async def test_REM_028_a_wall_clock_set_forward_is_noticed_within_one_poll(
    world: World, action: MissedReminderAction, expected: int
) -> None:
    async with world.up():
        await world.do(
            "b", lambda bell: bell.schedule(bell.ring, at=NOON + 4 * MINUTE, every=24 * HOUR, missed=action)
        )
        await asyncio.sleep(60)
        world.clock.jump(timedelta(hours=1, minutes=59))
        await asyncio.sleep(30.5)
        assert len(world.rungs) == expected
        stored = await world.row("b", "ring")
        assert stored.next_due_at is not None
        assert from_us(stored.next_due_at) == NOON + 24 * HOUR + 4 * MINUTE
        await asyncio.sleep(300)
        assert len(world.rungs) == expected


async def test_a_wall_clock_set_back_repeats_nothing(world: World) -> None:
    async with world.up():
        await world.do("b", lambda bell: bell.schedule(bell.ring, every=MINUTE))
        await asyncio.sleep(301)
        assert len(world.rungs) == 5
        world.clock.jump(-3 * MINUTE)
        await asyncio.sleep(230)
        assert len(world.rungs) == 5
        await asyncio.sleep(15)
    assert [rung.tick.occurrence for rung in world.rungs] == [1, 2, 3, 4, 5, 6]
    assert world.due_at() == [NOON + number * MINUTE for number in range(1, 7)]


# ---- REM-023: a row that owes nothing, with an old last fire


async def test_REM_023_a_null_next_due_is_computed_anew_from_now_not_from_an_old_last_fire(
    world: World,
) -> None:
    friday = NOON + timedelta(days=4)
    set_clock(world.clock, friday)
    async with world.up():
        old = bell_row(
            "b",
            friday - timedelta(days=21),
            cron="0 0 0 ? * SUN",
            last_fire_at=0,
            next_due_at=None,
            wake_at=None,
            action=1,
        )
        await world.write(old)
        await asyncio.sleep(120)
        stored = await world.row("b", "ring")
        assert stored.next_due_at is not None
        assert from_us(stored.next_due_at) == datetime(2030, 1, 13, tzinfo=UTC)
        assert world.rungs == []
    await back(world, datetime(2030, 1, 12, 23, 59, tzinfo=UTC), 2 * MINUTE)
    assert clock_times(world) == ["Sun 00:00:00"]
