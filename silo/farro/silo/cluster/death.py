"""Proof of death: a silo whose lock is free and whose address refuses connections has ended.

Either alone proves nothing: a lock goes with a connection that broke, and an address is silent when the
network is.  Together they allow to take over at once instead of after a lease.  An observer that listens at
the same address itself knows that nobody else does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farro.providers.members import Members, SiloRow

KNOCK_S = 0.5

Refuses = Callable[[str], Awaitable[bool]]


async def is_proven(silo: SiloRow, members: Members, refuses: Refuses) -> bool:
    """Raises what the store raises."""
    if await members.is_held(silo.number):
        return False
    return not silo.address or await refuses(silo.address)


async def refuses(address: str) -> bool:
    """Does that machine say that nobody listens at ``HOST:PORT``?  Silence is no answer."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
