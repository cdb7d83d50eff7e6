"""Operators and ticks race for hundreds of reminders: no occurrence takes effect twice, none is lost.

Replayable: a failure names its seed; ``FARRO_SEED=n`` runs that seed alone.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from farro.client.clock import to_us
from farro.client.errors import InvalidSchedule, ReminderNotFound
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderQuery
from farro.silo.host import Silo
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.kit import World, reminder_options, s

SEEDS = [int(os.environ["FARRO_SEED"])] if "FARRO_SEED" in os.environ else list(range(12))
BELLS = 12
PERIOD_S = 7
EDITS = 60


async def edit(silo: Silo, key: str, chance: Random) -> None:
    """One edit that neither takes an instant away nor adds one."""
    manage, grain = silo.reminders, f"bell/{key}"
    match chance.randrange(3):
        case 0:
            await manage.set_priority(grain, "ring", chance.choice(list(ReminderPriority)))
        case 1:
            await manage.resume(grain, "ring", note=f"edit {chance.randrange(100)}")
        case _:
            await manage.set_action(grain, "ring", MissedReminderAction.FIRE_ALL)


def world_of(clock: VirtualClock, chance: Random) -> World:
    world = World(clock, options=reminder_options(permits_per_cpu=0.5), seed=chance.randrange(1 << 30))

    async def slow(bell: Any) -> None:
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice([0, 0.01, 3]))

    world.handler = slow
    return world


async def committed_ticks(world: World) -> dict[str, int]:
    return {f"k{number}": await world.rung(f"k{number}") for number in range(BELLS)}


@pytest.mark.parametrize("seed", SEEDS)
def test_edits_of_reminders_that_tick_meanwhile_cost_no_tick_and_double_none(seed: int) -> None:
    async def race(clock: VirtualClock) -> None:
        chance = Random(seed)
        world = world_of(clock, chance)
        start = clock.at()
        async with world.up() as silo:
            for verb in ("poll", "reminder", "commit"):
                world.store.delay(verb, chance.choice([0.0, 0.02]), answer=chance.choice([0.0, 0.05, 0.5]))
            for number in range(BELLS):
                await world.do(
                    f"k{number}",
                    lambda bell: bell.schedule(
                        bell.ring, at=start + s(30), every=s(PERIOD_S), missed=MissedReminderAction.FIRE_ALL
                    ),
                )
            for _ in range(EDITS):
                await asyncio.sleep(chance.choice([0, 0, 0.05, 1, PERIOD_S]))
                await edit(silo, f"k{chance.randrange(BELLS)}", chance)
            await silo.reminders.pause_all(ReminderQuery())
            await asyncio.sleep(60)  # whatever ran has committed
            stands = {each.grain_key: each.status async for each in silo.reminders.list()}
            for key, count in (await committed_ticks(world)).items():
                last = stands[key].last_fired_at
                assert last is not None, f"seed {seed}"
                expected = (to_us(last) - to_us(start + s(30))) // (PERIOD_S * 1_000_000) + 1
                assert count == expected, f"seed {seed}: {key} ticked {count} times until {last}"
            seen = Counter((rung.key, rung.due_at) for rung in world.rungs)
            assert max(seen.values()) == 1, f"seed {seed}: {seen.most_common(3)}"

    run_virtual(race)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_shots_under_pause_resume_repair_and_trigger_take_effect_once(seed: int) -> None:
    async def race(clock: VirtualClock) -> None:
        chance = Random(seed)
        world = world_of(clock, chance)
        async with world.up() as silo:
            for verb in ("poll", "reminder", "commit"):
                world.store.delay(verb, chance.choice([0.0, 0.02]), answer=chance.choice([0.0, 0.05, 0.5]))
            for number in range(BELLS):
                after = s(chance.uniform(5, 60))
                await world.do(f"k{number}", lambda bell: bell.schedule(bell.ring, after=after))  # noqa: B023 - it runs at once
            triggers: Counter[str] = Counter()
            for _ in range(EDITS):
                await asyncio.sleep(chance.choice([0, 0.01, 0.3, 2]))
                key = f"k{chance.randrange(BELLS)}"
                verb = chance.choice(["pause", "resume", "resume", "repair", "set_priority", "trigger_now"])
                words = (ReminderPriority.CRITICAL,) if verb == "set_priority" else ()
                try:
                    await getattr(silo.reminders, verb)(f"bell/{key}", "ring", *words)
                except (ReminderNotFound, InvalidSchedule):
                    continue  # it has fired, or is paused
                triggers[key] += verb == "trigger_now"
            await silo.reminders.resume_all(ReminderQuery())
            await asyncio.sleep(120)
            assert (await silo.reminders.count_all()).total == 0, f"seed {seed}: something is left"
            for key, count in (await committed_ticks(world)).items():
                assert 1 <= count <= 1 + triggers[key], f"seed {seed}: {key} took effect {count} times"

    run_virtual(race)
