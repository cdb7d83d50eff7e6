"""What management shows: upcoming, lists, counts, history; what it says of things that are not there."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.client.codec import Codec
from farro.client.errors import InvalidPayload, InvalidSchedule, ReminderNotFound, StorageUnavailable
from farro.client.identity import GrainId
from farro.client.protocol import MESSAGE_BYTES_MAX
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderQuery
from farro.silo.reminders.management_reading import PAGE_MAX
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World, bell_row, reminder_options, s

CRITICAL, NORMAL, BACKGROUND = ReminderPriority
BELL = GrainId("bell", "b")


@pytest.fixture(params=["memory", "sqlite"])
async def world(
    request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path
) -> AsyncGenerator[World]:
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'managed.db'}"
    world = World(virtual, url)
    async with world.up():
        yield world


@pytest.fixture
async def in_memory(virtual: VirtualClock) -> AsyncGenerator[World]:
    world = World(virtual)
    async with world.up():
        yield world


# ---- upcoming


async def test_REM_069_upcoming_gives_what_is_due_within_the_horizon_overdue_first_and_marked(
    virtual: VirtualClock,
) -> None:
    world = World(virtual, options=reminder_options(permits_per_cpu=0.25, permit_hold_max=s(1000)))
    hold = asyncio.Event()
    world.handler = lambda bell: hold.wait()
    async with world.up() as silo:
        now = virtual.at()
        await world.write(bell_row("holds the only permit", now, priority=0))
        await asyncio.sleep(31)
        now = virtual.at()
        await world.write(
            bell_row("late", now - s(1)),
            bell_row("now", now, priority=2),
            bell_row("soon", now + s(60), priority=0),
            bell_row("later", now + s(60.001)),
        )
        found = [
            listing async for listing in silo.reminders.upcoming(s(60)) if "permit" not in listing.grain_key
        ]
        assert [listing.grain_key for listing in found] == ["late", "now", "soon"]
        assert [listing.overdue for listing in found] == [True, False, False]
        assert [listing.status.next_run_at for listing in found] == [now - s(1), now, now + s(60)]
        assert (await silo.reminders.count_all()).total == 5
        hold.set()


async def test_REM_044_an_old_row_written_behind_the_services_back_is_shown_overdue_and_soon_delivered(
    world: World,
) -> None:
    now = world.clock.at()
    await asyncio.sleep(1)
    await world.write(bell_row("old", now - timedelta(days=2), action=0))
    (listing,) = [each async for each in world.silo.reminders.upcoming(s(0))]
    assert (listing.grain_key, listing.overdue) == ("old", True)
    assert [each.overdue async for each in world.silo.reminders.list()] == [True]
    await asyncio.sleep(90)
    assert [(rung.key, rung.due_at) for rung in world.rungs] == [("old", now - timedelta(days=2))]


async def test_the_horizon_of_upcoming_stays_where_the_first_page_put_it(world: World) -> None:
    """While pages are read time passes: what comes into the horizon meanwhile is not waited for."""
    now = world.clock.at()
    await world.write(*(bell_row(f"k{number:04}", now + s(1000 + number)) for number in range(600)))
    seen = 0
    async for _ in world.silo.reminders.upcoming(s(1000 + 399)):
        seen += 1
        if seen % 100 == 0:
            await asyncio.sleep(50)
    assert seen == 400


async def test_upcoming_of_paused_and_failed_reminders_is_nothing(world: World) -> None:
    now = world.clock.at()
    await world.write(
        bell_row("p", now + s(5), status="paused", wake_at=None),
        bell_row("f", now + s(5), status="failed", wake_at=None),
    )
    assert [each async for each in world.silo.reminders.upcoming(s(60))] == []
    assert [each.status.next_run_at async for each in world.silo.reminders.list()] == [None, None]


async def test_a_horizon_may_be_as_long_as_a_timedelta_and_not_negative(world: World) -> None:
    await world.write(bell_row("b", world.clock.at() + timedelta(days=300_000)))
    assert len([each async for each in world.silo.reminders.upcoming(timedelta.max)]) == 1
    with pytest.raises(InvalidSchedule, match="horizon must not be negative"):
        await anext(world.silo.reminders.upcoming(s(-1)))


# ---- lists


async def test_a_list_takes_every_filter_alone_and_together(world: World) -> None:
    now = world.clock.at()
    await world.write(
        bell_row("a", now + s(100), priority=0),
        bell_row("a", now + s(200), name="toll", operation="toll", action=1),
        bell_row("b", now + s(300), priority=0, status="paused", wake_at=None),
    )
    await world.do("c", lambda bell: bell.schedule("ring", after=s(400), priority=CRITICAL))

    async def listed(**words: Any) -> list[str]:
        query = ReminderQuery(**words)
        found = [each async for each in world.silo.reminders.list(query)]
        assert (await world.silo.reminders.count_all(query)).total == len(found)
        return [f"{each.grain_key} {each.status.name}" for each in found]

    assert await listed() == ["a ring", "a toll", "b ring", "c ring"]
    assert await listed(grain_type="bell") == await listed()
    assert await listed(grain_type="other") == []
    assert await listed(grain_key="a") == ["a ring", "a toll"]
    assert await listed(operation="toll") == ["a toll"]
    assert await listed(priority=CRITICAL) == ["a ring", "b ring", "c ring"]
    assert await listed(action=MissedReminderAction.SKIP) == ["a toll"]
    assert await listed(status="paused") == ["b ring"]
    assert await listed(due_before=now + s(300)) == ["a ring", "a toll", "b ring"]
    assert await listed(priority=CRITICAL, status="scheduled", due_before=now + s(400)) == [
        "a ring",
        "c ring",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"status": "asleep"}, "status must be scheduled, paused or failed, not 'asleep'"),
        ({"grain_type": ""}, "grain_type must not be empty"),
        ({"grain_key": "a\x00b"}, "grain_key .* NUL"),
        ({"operation": "x" * 600}, "operation is 600 bytes long"),
    ],
)
async def test_a_query_that_cannot_be_meant_is_refused_by_every_verb_that_takes_one(
    in_memory: World, words: dict[str, Any], says: str
) -> None:
    manage, query = in_memory.silo.reminders, ReminderQuery(**words)
    for verb in (
        lambda: anext(manage.list(query)),
        lambda: manage.count_all(query),
        lambda: manage.pause_all(query),
        lambda: manage.resume_all(query),
        lambda: manage.delete_all(query),
    ):
        with pytest.raises(InvalidPayload, match=says):
            await verb()


async def test_REM_072_very_many_rows_come_in_pages_that_fit_a_frame(
    virtual: VirtualClock, tmp_path: Path
) -> None:
    world = World(virtual, f"sqlite:///{tmp_path / 'crowded.db'}?synchronous=normal")
    async with world.up() as silo:
        start = virtual.at() + timedelta(days=1)
        names = [f"ring:{number:06}" for number in range(20_000)]
        await world.write(
            *(
                bell_row("crowded", start, name=name, key=name[5:], registration=number)
                for number, name in enumerate(names)
            )
        )
        assert [each.name for each in await silo.reminders.list_for_grain("bell/crowded")] == names
        seen = [each.status.name async for each in silo.reminders.upcoming(timedelta(days=2))]
        assert sorted(seen) == names
        page = await silo.call("farro.reminders", "x", "list_page", {}, 1_000_000, None)
        assert len(page["reminders"]) == PAGE_MAX
        assert len(Codec(None).pack_wire(page)) < MESSAGE_BYTES_MAX
        with pytest.raises(InvalidPayload, match=r"more than 200 reminders.*page by page"):
            await silo.call("farro.reminders", "x", "list_for_grain", "bell", "crowded")


async def test_a_page_of_the_longest_names_and_notes_fits_a_frame(in_memory: World) -> None:
    """Every text as long as it may be, of characters that take the most bytes."""
    now = in_memory.clock.at()
    rows = [
        bell_row(
            "\U0001f514" * 126 + f"{number:08}",
            now + timedelta(days=1),
            name="\U0001f514" * 128,
            operation="\U0001f514" * 64,
            key="\U0001f514" * 63,
            timezone="Europe/Amsterdam",
            cron="0 " * 100,
            note="\U0001f514" * 500,
            status="paused",
            wake_at=None,
        )
        for number in range(PAGE_MAX)
    ]
    await in_memory.write(*rows)
    page = await in_memory.silo.call("farro.reminders", "x", "list_page", {}, PAGE_MAX, None)
    assert len(page["reminders"]) == PAGE_MAX
    assert len(Codec(None).pack_wire(page)) < MESSAGE_BYTES_MAX


@pytest.mark.parametrize("page", [["x"], [1, 2, 3], ["a", "b", "c", "d"], [1 << 70, 1, 1, "a", "b", "c"]])
async def test_a_page_nobody_gave_is_refused(in_memory: World, page: list[Any]) -> None:
    for verb, first in (("list_page", {}), ("upcoming", s(60))):
        with pytest.raises(InvalidPayload, match="what the page before gave"):
            await in_memory.silo.call("farro.reminders", "x", verb, first, 10, page)


async def test_a_limit_below_one_is_refused(in_memory: World) -> None:
    with pytest.raises(InvalidPayload, match="limit must be at least 1, not 0"):
        await in_memory.silo.reminders.history(limit=0)
    with pytest.raises(InvalidPayload, match="limit must be at least 1, not -3"):
        await in_memory.silo.call("farro.reminders", "x", "list_page", {}, -3, None)


# ---- counts, statuses, history


async def test_counts_are_by_priority_and_status(world: World) -> None:
    now = world.clock.at() + s(500)
    await world.write(
        *(bell_row(f"n{number}", now) for number in range(3)),
        *(bell_row(f"c{number}", now, priority=0) for number in range(2)),
        bell_row("p", now, priority=0, status="paused", wake_at=None),
    )
    counts = await world.silo.reminders.count_all()
    assert counts.total == 6
    assert {(each.priority, each.status): each.count for each in counts.groups} == {
        (CRITICAL, "scheduled"): 2,
        (CRITICAL, "paused"): 1,
        (NORMAL, "scheduled"): 3,
    }


async def test_REM_043_what_is_read_is_frozen_and_absent_is_none(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, cron="0 9 * * *", timezone="Europe/Paris"))
    status = await world.silo.reminders.get(BELL, "ring")
    assert status is not None
    assert (status.name, status.cron, status.timezone) == ("ring", "0 9 * * *", "Europe/Paris")
    assert (status.priority, status.action, status.last_fired_at) == (NORMAL, status.missed_policy, None)
    for field in dataclasses.fields(status):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(status, field.name, None)
    assert await world.silo.reminders.get(BELL, "other") is None
    assert await world.silo.reminders.get("bell/nobody", "ring") is None
    assert await world.silo.reminders.get("nothing/b", "ring") is None


async def test_a_list_read_while_a_reminder_fires_shows_it_before_or_after(world: World) -> None:
    start = world.clock.at()
    world.handler = lambda bell: asyncio.sleep(5)
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(60)))
    seen = set()
    for _ in range(140):
        await asyncio.sleep(1)
        (status,) = await world.silo.reminders.list_for_grain(BELL)
        seen.add((status.occurrence, status.next_run_at))
    assert seen == {(1, start + s(60)), (2, start + s(120)), (3, start + s(180))}


async def test_history_gives_the_last_ticks_newest_first_of_all_a_grain_or_a_reminder(world: World) -> None:
    start = world.clock.at()

    def handler(bell: Any) -> None:
        if bell.key == "bad":
            raise RuntimeError("cracked\n" + "x" * 3_000)

    world.handler = handler
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    await world.do("b", lambda bell: bell.schedule(bell.toll, after=s(25)))
    await world.do("bad", lambda bell: bell.schedule(bell.ring, after=s(5)))
    await asyncio.sleep(29)
    history = (await world.silo.reminders.history(BELL)).ticks
    assert [(each.name, each.due_at - start, each.outcome) for each in history] == [
        ("toll", s(25), "delivered"),
        ("ring", s(20), "delivered"),
        ("ring", s(10), "delivered"),
    ]
    assert [each.occurrence for each in (await world.silo.reminders.history(BELL, "ring")).ticks] == [2, 1]
    assert [each.name for each in (await world.silo.reminders.history(limit=1)).ticks] == [history[0].name]
    failed = (await world.silo.reminders.history("bell/bad")).ticks
    assert [each.attempt for each in failed] == [5, 4, 3, 2, 1]
    assert {each.outcome for each in failed} == {"failed"}
    assert all("cracked" in each.detail and len(each.detail) <= 500 for each in failed)
    assert (await world.silo.reminders.history("bell/nobody")).ticks == []


# ---- not there


async def test_REM_070_a_verb_on_what_is_not_there_says_so_and_delete_does_not_mind(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(100)))
    manage = world.silo.reminders
    for grain, name in (("bell/b", "nothing"), ("bell/nobody", "ring"), ("nobody/b", "ring")):
        for verb in (
            manage.set_priority(grain, name, CRITICAL),
            manage.set_action(grain, name, MissedReminderAction.SKIP),
            manage.repair(grain, name),
            manage.pause(grain, name),
            manage.resume(grain, name),
            manage.trigger_now(grain, name),
        ):
            with pytest.raises(ReminderNotFound, match=f"{grain} has no reminder '{name}'"):
                await verb
        await manage.delete(grain, name)
        await manage.unregister(grain, name)
    assert [row.name for row in await world.rows("b")] == ["ring"]
    assert (await world.silo.reminders.count_all()).total == 1


async def test_a_store_that_does_not_answer_is_an_error_of_the_verb_and_not_an_empty_answer(
    world: World,
) -> None:
    for verb, ask in (
        ("list_reminders", lambda: anext(world.silo.reminders.list())),
        ("count_reminders", lambda: world.silo.reminders.count_all()),
        ("reminder", lambda: world.silo.reminders.get(BELL, "ring")),
        ("reminder", lambda: world.silo.reminders.pause(BELL, "ring")),
    ):
        world.store.fail(verb, Fault.UNAVAILABLE)
        with pytest.raises(StorageUnavailable, match="could not be read"):
            await ask()
