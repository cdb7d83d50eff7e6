"""``client.reminders`` and its blocking twin against a real gateway."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from farro.client.blocking import BlockingClient, BlockingReminders
from farro.client.client import Client
from farro.client.errors import InvalidGrainId, InvalidPayload, ReminderNotFound, SiloUnavailable
from farro.client.identity import GrainId
from farro.client.management import Reminders
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderQuery, TickStatus
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo

HOUR = timedelta(hours=1)
CHIME = GrainId("chime", "tower")


class Chime(Grain, name="chime"):
    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        rung.append(name)


rung: list[str] = []


@pytest.fixture
async def silo() -> AsyncGenerator[Silo]:
    rung.clear()
    async with Silo([Chime], listen="127.0.0.1:0") as silo:
        yield silo


def address(silo: Silo) -> str:
    assert silo.address is not None
    return silo.address


async def test_every_verb_works_through_a_client(silo: Silo) -> None:
    async with Client(address(silo)) as client:
        manage, tower = client.reminders, client.grain(Chime, "tower")
        await manage.register_or_update(tower, "hourly", HOUR, HOUR, priority=ReminderPriority.CRITICAL)
        await manage.register_or_update("chime/tower", "daily", cron="0 9 * * *", timezone="Europe/Paris")
        assert [each.name for each in await manage.list_for_grain(CHIME)] == ["daily", "hourly"]
        await manage.set_priority(CHIME, "daily", ReminderPriority.BACKGROUND)
        await manage.set_action(CHIME, "daily", MissedReminderAction.NOTIFY)
        await manage.repair(CHIME, "daily")
        daily = await manage.get(CHIME, "daily")
        assert daily is not None
        assert (daily.priority, daily.action) == (ReminderPriority.BACKGROUND, MissedReminderAction.NOTIFY)
        upcoming = [each.status.name async for each in manage.upcoming(2 * HOUR)]
        assert "hourly" in upcoming
        await manage.pause(CHIME, "hourly", note="off")
        assert (await manage.count_all(ReminderQuery(status="paused"))).total == 1
        await manage.resume(CHIME, "hourly")
        await manage.trigger_now(CHIME, "hourly")
        while not (history := (await manage.history(CHIME, "hourly")).ticks):  # noqa: ASYNC110 - in the silo
            await asyncio.sleep(0.01)
        assert [(each.name, each.outcome) for each in history] == [("hourly", "delivered")]
        assert rung == ["hourly"]
        everything = ReminderQuery(grain_type="chime")
        assert await manage.pause_all(everything, note="storm") == 2
        assert await manage.resume_all(everything) == 2
        await manage.unregister(CHIME, "daily")
        assert await manage.delete_all(everything) == 1
        with pytest.raises(ReminderNotFound, match="chime/tower has no reminder 'daily'"):
            await manage.pause(CHIME, "daily")


async def test_the_blocking_twin_has_every_verb_with_plain_values_and_iterators(silo: Silo) -> None:
    def script() -> None:
        with BlockingClient(address(silo)) as client:
            manage, tower = client.reminders, client.grain(Chime, "tower")
            for number in range(450):  # more than two pages
                manage.register_or_update(tower, f"r{number:03}", HOUR, HOUR)
            listing = manage.list()
            assert next(listing).status.name == "r000"
            assert [each.status.name for each in listing] == [f"r{number:03}" for number in range(1, 450)]
            assert len(list(manage.upcoming(2 * HOUR))) == 450
            assert len(manage.list_for_grain(tower)) == 450
            manage.set_priority(CHIME, "r001", ReminderPriority.CRITICAL)
            manage.set_action(CHIME, "r001", MissedReminderAction.FIRE_ALL)
            manage.repair(CHIME, "r001")
            status = manage.get(CHIME, "r001")
            assert status is not None and status.priority is ReminderPriority.CRITICAL
            manage.pause(CHIME, "r002", note="off")
            manage.resume(CHIME, "r002")
            manage.trigger_now(CHIME, "r003")
            assert manage.pause_all(ReminderQuery(priority=ReminderPriority.CRITICAL)) == 1
            assert manage.resume_all(ReminderQuery()) == 1
            assert manage.history(limit=5) is not None
            manage.delete(CHIME, "r004")
            manage.unregister(CHIME, "r004")
            assert manage.count_all().total == 449
            assert manage.delete_all(ReminderQuery(grain_key="tower")) == 449
            with pytest.raises(ReminderNotFound):
                manage.trigger_now(CHIME, "r001")

    await asyncio.to_thread(script)


async def test_an_iterator_that_is_left_half_way_leaves_nothing_open(silo: Silo) -> None:
    def script() -> None:
        with BlockingClient(address(silo)) as client:
            for name in ("a", "b"):
                client.reminders.register_or_update(CHIME, name, HOUR, HOUR)
            listing = client.reminders.list()
            assert next(listing).status.name == "a"
        assert next(listing).status.name == "b", "of the page that had come"
        with pytest.raises(SiloUnavailable):
            next(listing)

    await asyncio.to_thread(script)


def test_the_twin_has_the_verbs_of_the_original() -> None:
    def verbs(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert verbs(BlockingReminders) == verbs(Reminders)


@pytest.mark.parametrize("grain", ["no slash", 5, None, ("chime", "tower")])
async def test_what_is_no_grain_is_refused_by_name(silo: Silo, grain: object) -> None:
    with pytest.raises(InvalidGrainId):
        await silo.reminders.get(grain, "daily")


async def test_a_bad_argument_fails_before_anything_is_sent(silo: Silo) -> None:
    async with Client(address(silo)) as client:
        with pytest.raises(ValueError, match="7"):
            await client.reminders.set_priority(CHIME, "r", 7)  # type: ignore[arg-type]
        with pytest.raises(InvalidPayload):
            await client.reminders.register_or_update(CHIME, "r", "tomorrow")  # type: ignore[arg-type]


async def test_a_client_that_is_closed_as_soon_as_it_is_open_leaves_no_socket(silo: Silo) -> None:
    async with Client(address(silo)):
        pass
    gc.collect()  # a socket left open would warn here, and warnings are errors
