"""Who is buried when, with doors at which nobody answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farro.providers.memory import MemoryProvider, MemoryStore
from farro.silo.cluster.death import KNOCK_S
from farro.silo.cluster.reconciler import Reconciler
from farro.silo.options import ClusterOptions
from farro.silo.ownership import Ownership
from farro.silo.tasks import TaskOwner
from farro.silo.testing.virtual_time import VirtualClock

LEASE_S = 4.0


@pytest.mark.parametrize("silent", [1, 12])
async def test_all_silent_silos_are_knocked_at_together(virtual: VirtualClock, silent: int) -> None:
    """Their locks are free and their addresses gone with them: only the lease tells."""
    loop, memory = asyncio.get_running_loop(), MemoryStore()
    store, others = MemoryProvider(memory), MemoryProvider(memory)
    await store.open(0)
    await others.open(0)
    gone = [(await others.join(f"10.0.0.{number}:1", 0)).number for number in range(silent)]
    await others.close()
    row = await store.join("10.0.1.1:1", 0)

    async def no_answer(address: str) -> bool:
        await asyncio.sleep(KNOCK_S)
        return False

    standing = SimpleNamespace(number=row.number, row=row, lease_s=LEASE_S, healthy=True)
    core = SimpleNamespace(ownership=Ownership(64), loop=loop, catalog=None)
    reconciler = Reconciler(
        provider=store,
        core=cast(Any, core),
        router=cast(Any, SimpleNamespace(held_partitions=frozenset)),
        clock=virtual,
        options=ClusterOptions(),
        standing=cast(Any, standing),
        tasks=TaskOwner("test"),
        tell=lambda rows: None,
        refuses=no_answer,
    )
    looking = asyncio.create_task(reconciler._keep_looking())
    began = loop.time()
    while {each.number for each in await store.silos() if each.status.is_member} & set(gone):
        reconciler.look()  # as every renewal asks
        await asyncio.sleep(1.0)
    took_s = loop.time() - began
    looking.cancel()
    await asyncio.wait([looking])
    assert took_s <= LEASE_S * 1.01 + 2.0 + KNOCK_S, "a look a second, and this one's own second"
