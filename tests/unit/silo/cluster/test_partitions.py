"""Taking partitions from a store that answers late."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from farro.providers.memory import MemoryProvider
from farro.silo.cluster.partitions import Partitions
from farro.silo.options import ClusterOptions
from farro.silo.ownership import Ownership
from farro.silo.testing.virtual_time import VirtualClock

SLOW_S = 5.0


class AnswersLate(MemoryProvider):
    async def take(self, *asked: Any) -> Any:
        taken = await super().take(*asked)
        await asyncio.sleep(SLOW_S)
        return taken


async def test_an_ownership_begins_when_the_store_is_asked_not_when_it_answers(virtual: VirtualClock) -> None:
    """What falls due in between has an owner: it is late, by the store's fault, and not missed."""
    store = AnswersLate()
    await store.open(virtual.now())
    silo = await store.join("127.0.0.1:1", virtual.now())
    ownership = Ownership(64)
    partitions = Partitions(store, ownership, cast(Any, None), virtual, ClusterOptions(), silo.number)
    asked_at = virtual.now()
    assert await partitions.take([3, 4], [0] * 64) == 2
    assert virtual.now() >= asked_at + SLOW_S * 1e6
    began = {owned.began_at for each in (3, 4) if (owned := ownership.owned(each)) is not None}
    assert began == {asked_at}
