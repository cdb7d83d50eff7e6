"""Clients of a small cluster on real sockets: straight to the owner, through restarts, crashes and joins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from farro.client.client import Client
from farro.client.errors import SiloUnavailable, StorageUnavailable
from tests.unit.silo.cluster.cluster_kit import Count, Town, town, until


class Load:
    """Callers that add one again and again, each to a count of its own."""

    def __init__(self, client: Client, callers: int = 24) -> None:
        self._client = client
        self._keys = [f"caller-{number}" for number in range(callers)]
        self._done = False
        self.answered = dict.fromkeys(self._keys, 0)
        self.failed: list[Exception] = []

    @property
    def calls(self) -> int:
        return sum(self.answered.values())

    async def _call_on(self, key: str) -> None:
        count = self._client.grain(Count, key)
        while not self._done:
            try:
                await count.add(1)
                self.answered[key] += 1
            except Exception as error:
                self.failed.append(error)
                await asyncio.sleep(0.01)

    async def some_more(self) -> None:
        """Wait until every caller has been answered a few times more."""
        goal = {key: count + 3 for key, count in self.answered.items()}
        await until(lambda: all(self.answered[key] >= goal[key] for key in goal), "every caller is answered")

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for key in self._keys:
                group.create_task(self._call_on(key))
            try:
                yield
            finally:
                self._done = True


def forwarded(made: Town) -> int:
    return sum(silo.cluster._router.figures().forwarded for silo in made.silos)


async def test_a_client_calls_each_owner_on_a_connection_of_its_own() -> None:
    async with town(3) as made, Client(made.silos[0].address or "", timeout=20) as client:
        load = Load(client)
        async with load.going_on():
            await load.some_more()
            await until(lambda: client.statistics().connections == 3, "a connection to each silo")
            await load.some_more()
            before = forwarded(made)
            await load.some_more()
            assert forwarded(made) == before, "nothing is forwarded any more"
        assert load.failed == []
        views = {silo.cluster.figures().view for silo in made.silos}
        assert client.statistics().view in views


async def test_silos_come_and_go_one_by_one_and_no_call_fails() -> None:
    async with town(2) as made:
        addresses = [silo.address or "" for silo in made.silos]
        async with Client(*addresses, timeout=20) as client:
            load = Load(client)
            async with load.going_on():
                await load.some_more()
                await made.join()
                await load.some_more()
                for _ in range(2):
                    await made.leave(made.silos[0])
                    await load.some_more()
                await made.join()
                await made.balanced()
                await load.some_more()
            assert load.failed == []
            for key, count in load.answered.items():
                assert await client.call("count", key, "add", 0) == count, "each call counted once"


async def test_a_crash_fails_only_what_was_out_and_the_rest_goes_on() -> None:
    async with town(3) as made:
        addresses = [silo.address or "" for silo in made.silos]
        async with Client(*addresses, timeout=20) as client:
            load = Load(client)
            async with load.going_on():
                await load.some_more()
                await made.crash(made.silos[1])
                await load.some_more()
            # the silo in its last moment: its store is out of reach, then its sockets are
            assert {type(error) for error in load.failed} <= {SiloUnavailable, StorageUnavailable}
            assert len(load.failed) <= 24, "each caller had one call out at most"
            for key, count in load.answered.items():
                total = await client.call("count", key, "add", 0)
                assert count <= total <= count + 1
