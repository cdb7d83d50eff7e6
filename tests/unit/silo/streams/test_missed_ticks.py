"""NOTIFY, end to end: missed ticks become one event, for subscribed grains and for readers outside."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farro.client.identity import GrainId
from farro.client.reminders import MissedReminderAction
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, set_clock
from tests.unit.silo.streams.stream_kit import MISSED, Alarm, Listening, a_world, heard, until


def at(hour: int, minute: int, second: int = 0) -> datetime:
    return datetime(2030, 1, 1, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_ticks_missed_across_a_restart_are_one_event_REM_019(
    virtual: VirtualClock, tmp_path: Path, store: str
) -> None:
    world = a_world(virtual, Alarm, url=None if store == "memory" else f"sqlite:///{tmp_path / 'missed.db'}")
    set_clock(virtual, at(11, 58))

    def schedule(bell: Bell) -> None:
        bell.schedule(bell.ring, cron="0 */5 * * * *", missed=MissedReminderAction.NOTIFY)

    async with world.up() as silo:
        async with silo.stream(MISSED, consumer="operator") as events:
            assert events.gaps == 0
        await world.do("b", schedule)
        await virtual.sleep_until(at(12, 1))
        assert await world.rung("b") == 1
    await virtual.sleep_until(at(13, 2))
    async with world.up() as silo:
        await until(virtual, lambda: bool(Listening.begun))
        async with silo.stream(MISSED, consumer="operator") as events:
            event = await anext(events)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await anext(events)
        assert (event.stream, event.publisher) == (MISSED, GrainId("bell", "b"))
        detected_at = event.value.pop("detected_at")
        assert event.value == {
            "grain_type": "bell",
            "grain_key": "b",
            "name": "ring",
            "first_due_at": at(12, 5),
            "count": 12,
        }
        assert timedelta(0) <= detected_at - at(13, 2) <= timedelta(seconds=5)
        assert event.published_at == detected_at
        assert len(await heard(world, Alarm)) == 1 and len(Listening.begun) == 1
        assert (await world.row("b", "ring")).next_due_at == (at(13, 5) - at(0, 0)) // timedelta(
            microseconds=1
        ) + int(at(0, 0).timestamp()) * 1_000_000
        assert await world.rung("b") == 1, "NOTIFY also fired"
        await virtual.sleep_until(at(13, 5, 1))
        assert await world.rung("b") == 2
