"""The bucket when more is due than it holds: who keeps a place, who gives way, when the table is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from farro.client.identity import GrainId
from farro.client.reminders import ReminderPriority
from farro.providers.rows import PollQuery, ReminderRow
from farro.silo.reminders.due_queue import Entry
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import ONE_PERMIT, Bell, World, bell_row, reminder_options, s

CRITICAL, NORMAL, BACKGROUND = ReminderPriority
SMALL = {"base_bucket_size": 8}


def lateness(world: World, prefix: str) -> list[float]:
    return [
        (rung.fired_at - rung.due_at).total_seconds() for rung in world.rungs if rung.key.startswith(prefix)
    ]


async def full_of_background(world: World, rows: int) -> None:
    start = world.clock.at()
    await world.write(*(bell_row(f"b{number}", start, priority=BACKGROUND) for number in range(rows)))
    world.silo.rooms.reminders.poll_soon()  # type: ignore[union-attr]
    while not world.rungs:  # noqa: ASYNC110 - the first tick is the fact that is awaited
        await asyncio.sleep(0.01)


async def test_a_critical_reminder_takes_its_place_in_a_bucket_full_of_background(
    virtual: VirtualClock,
) -> None:
    world = World(virtual, options=reminder_options(**SMALL, **ONE_PERMIT))
    world.handler = lambda bell: asyncio.sleep(0.9)
    async with world.up():
        await full_of_background(world, 200)
        await world.do("c", lambda bell: bell.schedule(bell.ring, after=s(5), priority=CRITICAL))
        await asyncio.sleep(10)
        assert lateness(world, "c") == [pytest.approx(0, abs=1.0)]
        assert world.silo.statistics().reminders.bucket.held_peak <= 8  # type: ignore[union-attr]


async def test_critical_reminders_of_the_table_keep_their_time_under_a_background_backlog(
    virtual: VirtualClock,
) -> None:
    """They fall due again and again while the bucket is full of ticks that wait for a permit."""
    world = World(virtual, options=reminder_options(**SMALL, **ONE_PERMIT))
    world.handler = lambda bell: asyncio.sleep(0.5)
    async with world.up():
        due = virtual.at() + s(3)
        await world.write(*(bell_row(f"c{n}", due + s(2 * n), period=s(10), priority=0) for n in range(4)))
        await full_of_background(world, 1000)
        await asyncio.sleep(120)
        late = lateness(world, "c")
        assert len(late) >= 45
        # behind the one that runs and, once in eight, one that has waited for a minute: half a second each
        assert max(late) <= 1.0
        assert sum(each > 0.5 for each in late) <= len(late) / 8
        assert len(lateness(world, "b")) > 150, "what is left of the time goes to Background"


async def test_background_gets_a_share_of_the_page_when_more_critical_is_due_than_the_bucket_holds(
    virtual: VirtualClock,
) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(**SMALL, **ONE_PERMIT))
    world.handler = lambda bell: asyncio.sleep(0.5)
    async with world.up():
        await world.write(*(bell_row(f"c{n}", start, priority=CRITICAL) for n in range(2000)))
        await world.write(*(bell_row(f"b{n}", start + s(1), priority=BACKGROUND) for n in range(10)))
        await asyncio.sleep(180)
    waits = lateness(world, "b")
    assert len(waits) == 10
    assert min(waits) >= 59, "before the bound, priority orders"
    assert max(waits) < 60 + 60
    assert len(lateness(world, "c")) > 250, "nothing floods: critical ticks keep seven starts of eight"


async def test_an_operators_priority_moves_a_tick_that_waits_for_a_permit(virtual: VirtualClock) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(**ONE_PERMIT))
    world.handler = lambda bell: asyncio.sleep(0.5)
    async with world.up() as silo:
        await world.write(*(bell_row(f"k{number}", start, registration=number) for number in range(40)))
        silo.rooms.reminders.poll_soon()  # type: ignore[union-attr]
        await asyncio.sleep(1.1)
        await silo.reminders.set_priority(GrainId("bell", "k39"), "ring", CRITICAL)
        await asyncio.sleep(1.0)
        assert "k39" in [rung.key for rung in world.rungs][:5]


# ---- when the table is asked


async def test_a_backlog_of_short_periods_does_not_wait_for_the_next_poll(virtual: VirtualClock) -> None:
    """What was delivered waits for its next instant and fills the bucket: it gives way to what is due."""
    start = virtual.at()
    world = World(virtual, options=reminder_options(**SMALL))
    async with world.up() as silo:
        await world.write(*(bell_row(f"k{number}", start, period=s(120)) for number in range(100)))
        silo.rooms.reminders.poll_soon()  # type: ignore[union-attr]
        await asyncio.sleep(10)
        assert Counter(rung.key for rung in world.rungs) == Counter(f"k{number}" for number in range(100))


async def test_reminders_beyond_the_bucket_fire_on_time_between_two_polls(virtual: VirtualClock) -> None:
    """A hundred a minute, a bucket of eight, a poll each thirty seconds: nobody is late, on any round."""
    start = virtual.at()
    world = World(virtual, options=reminder_options(**SMALL))
    async with world.up():
        rows = [bell_row(f"k{n}", start + s(40 + n * 0.6), period=s(60)) for n in range(100)]
        await world.write(*rows)
        await asyncio.sleep(40 + 180 - 0.5)
        assert len(world.rungs) == 300
        assert max(lateness(world, "k")) == 0


async def test_a_store_that_answers_no_poll_is_not_asked_in_a_hot_loop(virtual: VirtualClock) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(**SMALL))
    async with world.up():
        await world.write(*(bell_row(f"k{number}", start) for number in range(100)))
        world.store.fail("poll", *[Fault.UNAVAILABLE] * 100)
        before = world.store.calls["poll"]
        await asyncio.sleep(30 + 60)
        assert 2 <= world.store.calls["poll"] - before <= 20
        assert not world.silo.healthy


async def test_hung_handlers_that_fill_half_of_the_bucket_do_not_leave_the_rest_to_the_poll_interval(
    virtual: VirtualClock,
) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(**SMALL))
    never = asyncio.Event()

    def hang(bell: Bell) -> object:
        return never.wait() if bell.key.startswith("hung") else None

    world.handler = hang
    async with world.up() as silo:
        await world.write(*(bell_row(f"hung{number}", start, priority=CRITICAL) for number in range(6)))
        await world.write(*(bell_row(f"k{number}", start) for number in range(60)))
        silo.rooms.reminders.poll_soon()  # type: ignore[union-attr]
        await asyncio.sleep(60)
        assert len(lateness(world, "k")) > 40
        never.set()


async def test_waits_are_bounded_however_large_the_backlog(virtual: VirtualClock) -> None:
    """What is held never exceeds the bucket, parked ticks included, while rows come in from three sides."""
    start = virtual.at()
    world = World(virtual, options=reminder_options(base_bucket_size=32, permits_per_cpu=1.0))
    world.handler = lambda bell: asyncio.sleep(0.01)
    async with world.up() as silo:
        await world.write(*(bell_row(f"b{n}", start, priority=n % 3) for n in range(600)))
        for number in range(100):
            await world.do(
                f"s{number}", lambda bell: bell.schedule(bell.ring, after=timedelta(0), priority=CRITICAL)
            )
        await asyncio.sleep(60)
        figures = silo.statistics().reminders
        assert figures is not None
        assert (figures.delivered, figures.bucket.held) == (700, 0)
        assert figures.bucket.held_peak <= 32


async def test_a_large_bucket_that_falls_due_at_once_leaves_the_loop_to_others(
    virtual: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand ticks of one instant, few begin their way in one round of the loop."""
    due_at = virtual.at() + s(40)
    world = World(virtual, options=reminder_options(base_bucket_size=20_000))
    loop = asyncio.get_running_loop()
    in_this_round, most = 0, 0
    async with world.up() as silo:
        service = silo.rooms.reminders
        assert service is not None
        deliver = service.firing.deliver

        def next_round() -> None:
            nonlocal in_this_round
            in_this_round = 0

        def counting(entry: Entry) -> None:
            nonlocal in_this_round, most
            if not in_this_round:
                loop.call_soon(next_round)
            in_this_round += 1
            most = max(most, in_this_round)
            deliver(entry)

        monkeypatch.setattr(service.firing, "deliver", counting)
        await world.write(*(bell_row(f"k{number}", due_at) for number in range(10_000)))
        await asyncio.sleep(100)
    assert len(world.rungs) == 10_000
    assert 0 < most <= 128


async def test_only_the_priority_that_presses_is_read_while_the_bucket_is_full_of_lower_ones(
    virtual: VirtualClock,
) -> None:
    start = virtual.at()
    world = World(virtual, options=reminder_options(**SMALL, **ONE_PERMIT, poll_interval=s(300)))
    world.handler = lambda bell: asyncio.sleep(20)
    async with world.up():
        await full_of_background(world, 100)
        asked: list[list[int]] = []
        poll = world.store.poll

        async def listening(queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
            asked.append([query.priority for query in queries])
            return await poll(queries)

        world.store.poll = listening  # type: ignore[method-assign]
        await world.do(
            "c", lambda bell: bell.schedule(bell.ring, at=start + s(5), every=s(60), priority=CRITICAL)
        )
        await asyncio.sleep(25)
    assert [CRITICAL] in asked
    assert [rung.key for rung in world.rungs][:8].count("c") == 1
