"""The client of a command: what is wrong with ``--silo``, said once, with the way out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from farro.client.client import Client
from farro.client.errors import SiloUnavailable
from farro.silo.cli.failing import BadUsage, Failed, one_line

CONNECT_TIMEOUT_S = 4.0
CALL_TIMEOUT_S = 30.0


@asynccontextmanager
async def connected(
    *urls: str, connect_timeout_s: float = CONNECT_TIMEOUT_S, timeout_s: float = CALL_TIMEOUT_S
) -> AsyncIterator[Client]:
    """A client of whichever of the addresses answers.  Raises :class:`BadUsage` and :class:`Failed`."""
    try:
        client = Client(*urls, connect_timeout=connect_timeout_s, timeout=timeout_s)
    except ValueError as error:
        raise BadUsage(f"--silo: {one_line(str(error))}") from None
    try:
        await client.open()
    except SiloUnavailable as error:
        raise Failed(
            f"{one_line(str(error))}; --silo names a silo that runs: start one with farro silo, or give the "
            "address that it said it is ready at"
        ) from None
    try:
        yield client
    finally:
        await client.close()
