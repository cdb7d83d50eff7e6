"""A turn commits under the epoch its activation lives under, whatever its silo owns by then."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from farro.client.errors import Fenced
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.ownership import Owned
from farro.silo.testing.virtual_time import VirtualClock


@dataclass
class Count:
    value: int = 0


class Slow(Grain[Count], name="slow_counter"):
    async def add(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        self.state.value += 1
        return self.state.value


async def test_a_turn_that_outlives_its_ownership_is_fenced_under_the_next_one(virtual: VirtualClock) -> None:
    """Else the next activation, which has loaded meanwhile, goes on with memory that is not the store's."""
    async with Silo([Slow], clock=virtual) as silo:
        counter = silo.grain(Slow, "a")
        running = asyncio.ensure_future(counter.add(5.0))
        await asyncio.sleep(1.0)
        ownership = silo.rooms.core.ownership
        partition = ownership.partition_of("slow_counter", "a")
        ownership.drop([partition])
        silo.rooms.catalog.drop(frozenset([partition]))
        (row,) = await silo.provider.take(silo.number, [partition], virtual.now())
        ownership.take(partition, Owned(row.epoch, virtual.now(), None))
        next_one = asyncio.ensure_future(counter.add(8.0))
        with pytest.raises(Fenced):
            await running
        assert await next_one == 1
