"""Small clusters in one process: several silos on one store in memory, on real sockets and real time.

Leases are short, so that a test waits for facts and not for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from farro.providers.memory import MemoryProvider, MemoryStore
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.options import ClusterOptions, SiloOptions
from farro.silo.testing.faulty_provider import FaultyProvider, crash

LOOK_S = 0.005
LATE_S = 0.5
WAIT_S = 15.0  # for a fact; on a crowded machine everything takes its time

QUICK = SiloOptions(
    cluster=ClusterOptions(
        lease=timedelta(seconds=1.2), renew_interval=timedelta(seconds=0.2), settle=timedelta(seconds=0.1)
    )
)


async def until(fact: Callable[[], Any], what: str) -> Any:
    """Wait for something that becomes true by the work of others."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not (found := fact()):
        assert asyncio.get_running_loop().time() < deadline, f"still not: {what}"
        await asyncio.sleep(LOOK_S)
    return found


@dataclass
class CountState:
    count: int = 0
    silos: list[str] = field(default_factory=list)


class Count(Grain[CountState], name="count"):
    """Counts; knows whether its memory is the one it had."""

    def __init__(self) -> None:
        self.memory = object()

    async def add(self, amount: int) -> int:
        self.state.count += amount
        return self.state.count

    async def add_late(self, amount: int) -> int:
        await asyncio.sleep(LATE_S)
        return await self.add(amount)

    async def ask_late(self, other: str, amount: int) -> int:
        return await self.grain(Count, other).add_late(amount)

    async def late_ask(self, other: str, amount: int) -> int:
        await asyncio.sleep(LATE_S)
        return await self.ask(other, amount)

    async def ask(self, other: str, amount: int) -> int:
        """Have another count, which may live on another silo, add something."""
        return await self.grain(Count, other).add(amount)

    async def back_and_forth(self, other: str) -> int:
        return await self.grain(Count, other).call_back(self.key)

    async def call_back(self, first: str) -> int:
        return await self.grain(Count, first).add(1)

    async def here(self) -> int:
        """Which memory this is."""
        return id(self.memory)


class Town:
    """The silos on one store."""

    def __init__(self, options: SiloOptions) -> None:
        self.memory = MemoryStore()
        self.options = options
        self.silos: list[Silo] = []
        self.stores: dict[Silo, FaultyProvider] = {}

    async def join(self, listen: str | None = "127.0.0.1:0", **given: Any) -> Silo:
        store = FaultyProvider(MemoryProvider(self.memory))
        silo = Silo([Count], store, listen, options=self.options, **given)
        await silo.start()
        self.silos.append(silo)
        self.stores[silo] = store
        return silo

    async def leave(self, silo: Silo) -> None:
        self.silos.remove(silo)
        await silo.stop()

    async def crash(self, silo: Silo) -> None:
        self.silos.remove(silo)
        await crash(silo)

    async def balanced(self) -> None:
        """Wait until each has its share of all partitions, and knows it."""
        fair = 64 / len(self.silos)

        def is_balanced() -> bool:
            counts = [silo.cluster.figures().partitions for silo in self.silos]
            return sum(counts) == 64 and max(counts) <= 1.1 * fair + 1

        await until(is_balanced, "balanced")

    def key_of(self, silo: Silo) -> str:
        """A key of a count that lives on that silo."""
        return self.keys_of(silo, 1)[0]

    def keys_of(self, silo: Silo, how_many: int) -> list[str]:
        """Keys of counts that live on that silo, each in a partition of its own."""
        owned = silo.rooms.core.ownership
        keys = {owned.partition_of("count", str(i)): str(i) for i in range(10_000)}
        return [key for partition, key in keys.items() if owned.serves(partition)][:how_many]


@asynccontextmanager
async def town(silos: int = 0, options: SiloOptions = QUICK) -> AsyncGenerator[Town]:
    made = Town(options)
    try:
        for _ in range(silos):
            await made.join()
        if silos > 1:
            await made.balanced()
        yield made
    finally:
        for silo in made.silos:
            await silo.stop()
