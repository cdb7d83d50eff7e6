"""Three silo processes on one PostgreSQL and a client that follows their grains, to measure faults on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from farro.client.client import Client
from farro.client.errors import FarroError
from tests.cluster.chaos_grains import Ledger
from tests.cluster.evidence import create_store
from tests.cluster.stage import Place, Stage, stage
from tests.support import servers

SILOS = 3
GRAINS = 48
TRY_S = 1.0  # of one try of a call; it is tried again until it is answered
SERVED_MAX_S = 60.0  # beyond it the benchmark is wrong


@dataclass
class Cluster:
    """The silos, and a client that finds out where grains live."""

    stage: Stage
    server: servers.Server
    url: str
    client: Client
    keys: list[str]
    chance: Random
    calls: int = 0

    async def homes(self) -> dict[str, int]:
        """Which process each grain lives in."""
        return dict(zip(self.keys, await asyncio.gather(*map(self._home, self.keys)), strict=True))

    async def _home(self, key: str) -> int:
        return await until_answered(self.client.grain(Ledger, key, timeout=TRY_S).process)

    async def victims(self, place: Place) -> list[str]:
        """The grains that live there, at least one; waits until partitions have moved there."""
        async with asyncio.timeout(SERVED_MAX_S):
            while True:
                homes = await self.homes()
                if found := [key for key, pid in homes.items() if pid == place.serving.pid]:
                    return found
                await asyncio.sleep(0.1)

    async def add(self, key: str) -> int:
        self.calls += 1
        return await self.client.grain(Ledger, key, timeout=TRY_S).add(self.calls, 1)


async def until_answered(call: Callable[[], Awaitable[int]]) -> int:
    async with asyncio.timeout(SERVED_MAX_S):
        while True:
            try:
                return await call()
            except FarroError:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def cluster_of_three(folder: Path) -> AsyncGenerator[Cluster]:
    with servers.postgres(fsync="on") as server:
        url = f"postgresql://farro@127.0.0.1:{server.port}/postgres"
        await create_store(url)

        def store_url(place: Place, process: int) -> str:
            assert place.store is not None
            return f"postgresql://farro@{place.store.address}/postgres"

        database = ("127.0.0.1", server.port)
        async with stage(folder, SILOS, store_url, database=database, direct=True) as built:
            await built.start_all()
            async with Client(*built.addresses, connect_timeout=1.0, heartbeat=2.0) as client:
                keys = [f"k{number}" for number in range(GRAINS)]
                yield Cluster(built, server, url, client, keys, Random(1))
