"""Reminders of a type or operation that a silo does not serve wait, and are freed by code that does."""

from __future__ import annotations

import asyncio

import pytest

from farro.silo.grains.decorators import operation
from farro.silo.grains.grain import Grain
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.kit import Bell, World, bell_row, s


class Other(Grain, name="other"):
    pass


def _renamed(rung: list[str]) -> tuple[type[Grain[None]], type[Grain[None]]]:
    class Gong(Grain, name="bell"):
        async def sound(self) -> None:
            rung.append("by accident")

    class Renamed(Grain, name="bell"):
        @operation("ring")
        async def sound(self) -> None:
            rung.append(self.key)

    return Gong, Renamed


def test_a_reminder_that_bad_code_put_off_fires_as_soon_as_good_code_starts() -> None:
    async def scenario(clock: VirtualClock) -> None:
        start = clock.at()
        world = World(clock)
        world.grains = (Other,)
        async with world.up() as silo:
            rows = [bell_row(f"k{n}", start + s(n % 3 + 1), jitter_us=n % 2 * 500_000) for n in range(50)]
            await world.write(*rows)
            assert silo.rooms.reminders is not None
            silo.rooms.reminders.poll_soon()
            await asyncio.sleep(20)
            assert not world.rungs
        world.grains = (Bell,)
        async with world.up():
            await asyncio.sleep(1)
            assert sorted(rung.key for rung in world.rungs) == sorted(row.grain_key for row in rows)
            await asyncio.sleep(700)
            assert len(world.rungs) == len(rows)

    run_virtual(scenario)


def test_a_renamed_operation_is_freed_by_its_former_name(caplog: pytest.LogCaptureFixture) -> None:
    rung: list[str] = []
    bad, good = _renamed(rung)

    async def scenario(clock: VirtualClock) -> None:
        world = World(clock, grains=(bad,))
        async with world.up() as silo:
            await world.write(bell_row("a", clock.at() + s(1)))
            assert silo.rooms.reminders is not None
            silo.rooms.reminders.poll_soon()
            await asyncio.sleep(5)
        world.grains = (good,)
        async with world.up():
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert rung == ["a"]
    assert '@operation("ring")' in caplog.text and "bell.ring" in caplog.text


def test_a_reminder_that_waits_to_be_tried_again_is_not_freed_early() -> None:
    async def scenario(clock: VirtualClock) -> None:
        start = clock.at()
        world = World(clock)
        async with world.up() as silo:
            soon = bell_row("a", start - s(10), attempts=2)
            assert soon.wake_at is not None
            await world.write(bell_row("a", start - s(10), attempts=2, wake_at=soon.wake_at + 70_000_000))
            assert silo.rooms.reminders is not None
            silo.rooms.reminders.poll_soon()
            await asyncio.sleep(50)
            assert not world.rungs
            await asyncio.sleep(20)
            assert len(world.rungs) == 1

    run_virtual(scenario)
