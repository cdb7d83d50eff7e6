"""Where the cluster commands look: a silo, or a store's rows without any silo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import click

from farro.client.client import Client
from farro.client.clock import SystemClock
from farro.client.errors import FarroError
from farro.providers.members import ClusterRows, Members, SiloRow
from farro.providers.opening import open_provider
from farro.silo.cli import options as given
from farro.silo.cli.connecting import connected
from farro.silo.cli.failing import EXAMPLE_SILO, Failed, one_line
from farro.silo.cli.reminders_source import prefers_store, store
from farro.silo.cluster.silo_grain import ClusterLook, SiloFacts
from farro.silo.system_grains import SiloGrain

Command = TypeVar("Command", bound=Callable[..., Any])

ASK_WITHIN_S = 3.0  # a silo that stands still does not hold the others' answers up for longer
ASKED_AT_A_TIME = 16

_connect = click.option(
    "--silo",
    "--connect",
    "silo_url",
    metavar="URL",
    envvar="FARRO_SILO",
    default=EXAMPLE_SILO,
    show_default=True,
    help="The address of a silo, any of the cluster.",
)


def looking(command: Command) -> Command:
    """The options that say where a command looks; it passes its context to :func:`source`."""
    return _connect(store(given.service_id(command)))


class Source(Protocol):
    """Tells silos and partitions as they stand now."""

    async def rows(self) -> ClusterRows: ...


class OfSilos:
    """Asks whichever of some silos answers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def rows(self) -> ClusterRows:
        return await self._client.grain(ClusterLook, "any").rows()


class OfStore:
    """Reads the rows themselves.  A service that no silo has ever joined is misspelt, not empty."""

    def __init__(self, members: Members, service_id: str) -> None:
        self._members = members
        self._service_id = service_id

    async def rows(self) -> ClusterRows:
        rows = await self._members.cluster()
        if not rows.view and not rows.silos:
            raise Failed(
                f"--service-id: no silo has ever served {one_line(self._service_id)!r} on this store; give "
                "the name that its silos were started with"
            )
        return rows


@asynccontextmanager
async def source(
    context: click.Context, silo_url: str, store: str | None, service_id: str
) -> AsyncIterator[Source]:
    """The silo or the store that the command line and the environment mean."""
    if store is None or not prefers_store(context):
        async with of_silos([silo_url]) as silos:
            yield silos
        return
    clock = SystemClock()
    provider = open_provider(store, service_id=service_id, read_only=True)
    if store.lower().startswith("memory:"):
        raise Failed(f"--store: {one_line(store)} lives inside its silo; ask that silo with --silo")
    await provider.open(clock.now())
    try:
        yield OfStore(provider, service_id)
    finally:
        await provider.close()


@asynccontextmanager
async def of_silos(urls: Iterable[str]) -> AsyncIterator[OfSilos]:
    """Several addresses: whoever of them answers."""
    async with connected(*urls, timeout_s=ASK_WITHIN_S) as client:
        yield OfSilos(client)


@asynccontextmanager
async def of_silo(row: SiloRow) -> AsyncIterator[SiloGrain]:
    """That very silo, at its own address."""
    url = f"http://{row.address}"
    async with Client(url, connect_timeout=ASK_WITHIN_S, timeout=ASK_WITHIN_S) as client:
        yield client.grain(SiloGrain, row.number)


async def facts_of(silos: Iterable[SiloRow]) -> dict[int, SiloFacts | str]:
    """What each silo says of itself, by number; a text says why it does not."""
    turnstile = asyncio.Semaphore(ASKED_AT_A_TIME)

    async def ask(row: SiloRow) -> SiloFacts | str:
        if not row.address:
            return "it has no address"
        try:
            async with turnstile, of_silo(row) as silo:
                return await silo.facts()
        except FarroError as error:
            return one_line(str(error))

    rows = list(silos)
    return dict(zip((row.number for row in rows), await asyncio.gather(*map(ask, rows)), strict=True))
