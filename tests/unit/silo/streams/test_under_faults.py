"""Lost answers, refusals and crashes at random: what was published is consumed once each, in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from farro.client.errors import FarroError
from farro.silo.grains.grain import Grain
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World
from tests.unit.silo.streams.stream_kit import Account, Billing, Listening, a_world, heard

PUBLISHERS = ("a", "b", "c")
STEPS = 60


@dataclass
class Published:
    values: list[list[str]] = field(default_factory=list)


class Ledger(Grain[Published], name="ledger"):
    """Writes down what it publishes in the same commit: the truth to compare with."""

    async def publish_one(self, number: str) -> None:
        value = [self.key, number]
        self.state.values.append(value)
        self.publish("orders", value)

    async def values(self) -> list[list[str]]:
        return self.state.values


def trouble(chance: Random, share: float, verb: str) -> Fault | None:
    if chance.random() >= share:
        return None
    if verb == "commit":
        return chance.choice(list(Fault))
    return Fault.UNAVAILABLE if verb in ("events", "watermarks", "load", "stream_heads") else None


async def one_life(world: World, chance: Random, life: int) -> None:
    """A silo that meets trouble and, but for the last one, dies of it."""
    silo = await world.start()
    world.store.policy = lambda verb: trouble(chance, 0.08, verb)
    for step in range(STEPS):
        key = chance.choice(PUBLISHERS)
        try:
            await silo.grain(Ledger, key).publish_one(f"{life}.{step}")
        except FarroError:
            await asyncio.sleep(chance.random())
    await asyncio.sleep(chance.random() * 2)
    await world.crash()


@pytest.mark.parametrize(
    ("store", "seed"), [*(("memory", seed) for seed in range(8)), ("sqlite", 3), ("sqlite", 5)]
)
async def test_every_committed_event_takes_effect_once_and_in_order(
    virtual: VirtualClock, tmp_path: Path, store: str, seed: int
) -> None:
    chance = Random(seed)
    url = None if store == "memory" else f"sqlite:///{tmp_path / 'faults.db'}"
    world = a_world(virtual, Ledger, Billing, Account, url=url, batch=5, in_flight_max=2)
    for life in range(3):
        await one_life(world, chance, life)
    assert Listening.begun, "nothing was delivered before the last crash"
    async with world.up() as silo:
        await asyncio.sleep(60)
        bills = await heard(world, Billing)
        for key in PUBLISHERS:
            truth = await silo.grain(Ledger, key).values()
            assert len(truth) > 10
            assert [value for value in bills if value[0] == key] == truth
            assert await heard(world, Account, key) == truth
        assert silo.rooms.streams.statistics.passed_over == 0
