"""The one timer of the reminder line, its polls, and what races them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from farro.client.errors import CommitOutcomeUnknown
from farro.providers.errors import Unavailable
from farro.silo.host import Silo
from farro.silo.reminders.service import ReminderService
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World, bell_row, reminder_options, s

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    world = World(virtual)
    async with world.up():
        yield world


def held(silo: Silo) -> int:
    """How many entries are in memory."""
    assert silo.rooms.reminders is not None
    return len(silo.rooms.reminders.held.queue)


async def test_a_poll_that_takes_long_keeps_the_loop_asleep_and_ticks_come_on_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    real_look = ReminderService._look

    def look(self: ReminderService) -> None:
        looks.append(asyncio.get_running_loop().time())
        real_look(self)

    monkeypatch.setattr(ReminderService, "_look", look)
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(50)))
    world.store.freeze("poll")
    await asyncio.sleep(125)
    assert world.fired_at() == [start + s(50), start + s(100)]
    assert len(looks) < 20
    world.store.thaw()
    await asyncio.sleep(100)
    assert len(world.rungs) == 4


async def test_a_poll_that_fails_is_made_again_soon(world: World) -> None:
    world.store.fail("poll", *[Fault.UNAVAILABLE] * 5)
    await asyncio.sleep(31)
    start = world.clock.at()
    await world.write(bell_row("b", start))
    polls = world.store.calls["poll"]
    await asyncio.sleep(29)
    assert 3 <= world.store.calls["poll"] - polls <= 7
    assert [rung.due_at for rung in world.rungs] == [start]


async def test_a_poll_that_raced_a_settle_does_not_deliver_twice(world: World) -> None:
    """The page was read before the tick committed and arrives after it."""
    start = world.clock.at()
    await world.write(bell_row("b", start + s(61), period=s(600)))
    real_poll = world.store.inner.poll

    async def stale_poll(queries: object) -> object:
        page = await real_poll(queries)  # type: ignore[arg-type]
        await asyncio.sleep(10)  # the tick at 61 s falls into this
        return page

    await asyncio.sleep(55)
    world.store.inner.poll = stale_poll  # type: ignore[method-assign, assignment]
    await asyncio.sleep(60)
    assert world.fired_at() == [start + s(61)]
    assert await world.rung("b") == 1


async def test_a_poll_that_raced_a_cancel_does_not_bring_the_reminder_back(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, at=start + s(75)))
    real_poll = world.store.inner.poll

    async def stale_poll(queries: object) -> object:
        page = await real_poll(queries)  # type: ignore[arg-type]
        await asyncio.sleep(10)
        return page

    await asyncio.sleep(55)
    world.store.inner.poll = stale_poll  # type: ignore[method-assign, assignment]
    await asyncio.sleep(8)  # a poll is out since 60 s
    await world.do("b", lambda bell: bell.unschedule("ring"))
    await asyncio.sleep(60)
    assert world.rungs == []


async def test_a_destroy_that_races_a_poll_leaves_no_tick_and_other_reminders_still_come(
    world: World,
) -> None:
    start = world.clock.at()
    await world.write(*(bell_row("gone", start + s(75), name=f"ring:{n}", key=str(n)) for n in range(5)))
    await world.write(bell_row("stays", start + s(75)))
    real_poll = world.store.inner.poll

    async def stale_poll(queries: object) -> object:
        page = await real_poll(queries)  # type: ignore[arg-type]
        await asyncio.sleep(10)
        return page

    world.store.inner.poll = stale_poll  # type: ignore[method-assign, assignment]
    await asyncio.sleep(33)
    await world.do("gone", lambda bell: bell.destroy())
    await asyncio.sleep(120)
    assert [rung.key for rung in world.rungs] == ["stays"]


async def test_what_is_due_beyond_the_bucket_is_fetched_as_room_appears(virtual: VirtualClock) -> None:
    world = World(virtual, options=reminder_options(base_bucket_size=16))
    async with world.up() as silo:
        start = virtual.at()
        await world.write(*(bell_row(f"k{number:03}", start + s(number % 7)) for number in range(500)))
        await asyncio.sleep(60)
        assert len({rung.key for rung in world.rungs}) == len(world.rungs) == 500
        assert held(silo) == 0


async def test_background_beyond_the_bucket_is_not_starved_by_a_critical_backlog(
    virtual: VirtualClock,
) -> None:
    """An eighth of each page is for what waits: it must get into memory before it can be started."""
    world = World(virtual, options=reminder_options(base_bucket_size=16, permits_per_cpu=0.25))
    world.handler = lambda bell: asyncio.sleep(0.5)
    async with world.up():
        start = virtual.at()
        await world.write(*(bell_row(f"c{number}", start, priority=0) for number in range(600)))
        await world.write(*(bell_row(f"b{number}", start, priority=2) for number in range(10)))
        await asyncio.sleep(30 + 60 + 80)
        late = [rung for rung in world.rungs if rung.key[0] == "b"]
        assert len(late) == 10
        assert len(world.rungs) - len(late) > 200


async def test_a_reminder_beyond_the_window_is_not_held(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=timedelta(minutes=6)))
    assert held(world.silo) == 0
    await asyncio.sleep(90)
    assert held(world.silo) == 1


async def test_a_hung_handler_gives_its_permit_to_others_after_the_bound(virtual: VirtualClock) -> None:
    world = World(virtual, options=reminder_options(permits_per_cpu=0.25))
    hangs = asyncio.Event()
    world.handler = lambda bell: hangs.wait() if bell.key == "hangs" else None
    async with world.up():
        start = virtual.at()
        await world.write(bell_row("hangs", start + s(40), priority=0))
        await world.write(*(bell_row(f"k{number}", start + s(40)) for number in range(20)))
        await asyncio.sleep(43)
        assert len(world.rungs) == 21
        assert world.rungs[1].fired_at == start + s(41)
        hangs.set()


async def test_a_tick_that_waits_for_a_permit_holds_up_no_call_of_its_grain(virtual: VirtualClock) -> None:
    world = World(virtual, options=reminder_options(permits_per_cpu=0.25, permit_hold_max=s(1000)))
    world.handler = lambda bell: asyncio.sleep(100)
    async with world.up():
        start = virtual.at()
        await world.write(bell_row("a", start + s(40)), bell_row("b", start + s(41)))
        await asyncio.sleep(45)
        assert [rung.key for rung in world.rungs] == ["a"]
        assert await world.do("b", lambda bell: bell.key) == "b"
        assert virtual.at() == start + s(45)
        await asyncio.sleep(200)
        assert [rung.key for rung in world.rungs] == ["a", "b"]


async def test_one_bad_row_never_delays_another_reminder(world: World) -> None:
    start = world.clock.at()
    broken = bell_row("bad", start + s(40), operation="ring", args=b"\xc1\xc1\xc1")
    await world.write(broken, bell_row("good", start + s(40)))
    await asyncio.sleep(45)
    assert world.fired_at() == [start + s(40)]
    assert world.rungs[0].key == "good"
    assert "payload" in str((await world.row("bad", "ring")).note)


async def test_what_falls_due_while_a_hand_over_is_refused_fires_all_the_same(
    world: World,
) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await asyncio.sleep(9.9)
    partition = world.silo.rooms.core.ownership.partition_of("bell", "b")
    world.store.delay("release", 0.3)
    world.store.fail("release", Fault.UNAVAILABLE)
    with pytest.raises(Unavailable):
        await world.silo.cluster._reconciler.partitions.hand_over([partition])
    await asyncio.sleep(5)
    assert len(world.rungs) == 1
    assert world.fired_at()[0] < start + s(11)


# ---- answers that are lost


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.STRAGGLES], ids=lambda fault: fault.name)
async def test_a_page_older_than_a_commit_whose_answer_was_lost_does_not_deliver_twice(
    world: World, fault: Fault
) -> None:
    """The page is read at 60 s and arrives at 80 s; the tick at 61 s commits and nobody hears of it."""
    start = world.clock.at()
    await world.write(bell_row("b", start + s(61), period=s(600)))
    await asyncio.sleep(55)
    world.store.delay("poll", 0.0, answer=20.0)
    world.store.fail("commit", fault)
    await asyncio.sleep(60)
    assert world.fired_at() == [start + s(61)]
    assert await world.rung("b") == 1


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.STRAGGLES], ids=lambda fault: fault.name)
async def test_a_cancel_whose_answer_was_lost_is_found_out_before_the_tick(
    world: World, fault: Fault
) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    world.store.fail("commit", fault)
    with pytest.raises(CommitOutcomeUnknown):
        await world.do("b", lambda bell: bell.unschedule("ring"))
    await asyncio.sleep(60)
    assert (await world.rows("b"), world.rungs) == ([], [])


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.STRAGGLES], ids=lambda fault: fault.name)
async def test_a_registration_whose_answer_was_lost_fires_on_time_at_its_new_instant(
    world: World, fault: Fault
) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(5)))
    world.store.fail("commit", fault)
    with pytest.raises(CommitOutcomeUnknown):
        await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(12)))
    await asyncio.sleep(20)
    assert world.fired_at() == [start + s(12)]


async def test_a_destroy_whose_answer_was_lost_leaves_no_tick(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(5)))
    world.store.fail("commit", Fault.LOST_AFTER)
    with pytest.raises(CommitOutcomeUnknown):
        await world.do("b", lambda bell: bell.destroy())
    await asyncio.sleep(60)
    assert world.rungs == []
