"""Where the reminders commands look: a silo, or a store's rows without any silo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from farro.client.clock import SystemClock
from farro.client.errors import FarroError, InvalidPayload
from farro.client.identity import GrainId
from farro.client.management import Reminders
from farro.client.reminders import (
    ReminderCounts,
    ReminderListing,
    ReminderPage,
    ReminderQuery,
    ReminderStatus,
)
from farro.providers.errors import BadStoreUrl, StoreError
from farro.providers.opening import open_provider
from farro.silo.cli import options as given
from farro.silo.cli.connecting import connected
from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.grains.reminder_rows import checked_name
from farro.silo.reminders.management_reading import PAGE_MAX, PageKey, ReminderReader

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

store = click.option(
    "--store",
    metavar="URL",
    envvar="FARRO_STORE",
    show_default="ask the silo",
    help="Read this store instead; nothing is written, a missing store is not made.",
)


def readable(command: Command) -> Command:
    """The options that say where a command looks; it passes its context to :func:`source`."""
    return given.silo_url(store(given.service_id(command)))


class Source(Protocol):
    """What :class:`Reminders` of a client and :class:`StoredReminders` both answer."""

    def list(self, query: ReminderQuery | None = None) -> AsyncGenerator[ReminderListing]: ...

    def upcoming(self, horizon: timedelta) -> AsyncGenerator[ReminderListing]: ...

    async def count_all(self, query: ReminderQuery | None = None) -> ReminderCounts: ...

    async def get(self, grain: GrainId, name: str) -> ReminderStatus | None: ...


class StoredReminders:
    """The reading verbs on a store that is open for reading."""

    def __init__(self, reader: ReminderReader) -> None:
        self._reader = reader

    def list(self, query: ReminderQuery | None = None) -> AsyncGenerator[ReminderListing]:
        return _pages(lambda page: self._reader.list_page(query or ReminderQuery(), PAGE_MAX, page))

    def upcoming(self, horizon: timedelta) -> AsyncGenerator[ReminderListing]:
        return _pages(lambda page: self._reader.upcoming(horizon, PAGE_MAX, page))

    async def count_all(self, query: ReminderQuery | None = None) -> ReminderCounts:
        return await self._reader.count(query or ReminderQuery())

    async def get(self, grain: GrainId, name: str) -> ReminderStatus | None:
        return await self._reader.get(grain, name)


async def _pages(read: Callable[[PageKey], Awaitable[ReminderPage]]) -> AsyncGenerator[ReminderListing]:
    page: PageKey = None
    while True:
        answer = await read(page)
        for listing in answer.reminders:
            yield listing
        page = answer.next_page
        if page is None:
            return


def source(
    context: click.Context, silo_url: str, store: str | None, service_id: str
) -> AbstractAsyncContextManager[Source]:
    """The silo or the store that the command line and the environment mean."""
    if store is not None and prefers_store(context):
        return of_store(store, service_id)
    return of_silo(silo_url)


def prefers_store(context: click.Context) -> bool:
    """A flag beats the environment, the environment beats the default; between equals the silo."""
    order = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT)
    silo = context.get_parameter_source("silo_url") or ParameterSource.DEFAULT
    store = context.get_parameter_source("store") or ParameterSource.DEFAULT
    return order.index(store) < order.index(silo)


@asynccontextmanager
async def of_silo(silo_url: str) -> AsyncIterator[Reminders]:
    """The management verbs of a silo, by a client of its own."""
    async with connected(silo_url) as client:
        yield client.reminders


@asynccontextmanager
async def of_store(url: str, service_id: str) -> AsyncIterator[StoredReminders]:
    """The reading verbs on the rows themselves."""
    clock = SystemClock()
    provider = open_provider(url, service_id=service_id, read_only=True)
    if url.lower().startswith("memory:"):
        raise Failed(f"--store: {one_line(url)} lives inside its silo; ask that silo with --silo")
    await provider.open(clock.now())
    try:
        yield StoredReminders(ReminderReader(provider, clock))
    finally:
        await provider.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Carry a command out; whatever goes wrong is one line."""
    try:
        return asyncio.run(work)
    except BadStoreUrl as error:
        raise BadUsage(f"--store: {one_line(str(error))}") from None
    except StoreError as error:
        raise Failed(f"--store: {one_line(str(error))}") from None
    except FarroError as error:
        unknown = " (whether it was done is not known)" if error.turn_ran is None else ""
        raise Failed(f"{one_line(str(error))}{unknown}") from None


# ---- what the arguments name


def grain_of(grain_type: str, grain_key: str) -> GrainId:
    """The grain TYPE/KEY, or bad usage."""
    try:
        return GrainId(grain_type, grain_key)
    except InvalidPayload as error:
        raise BadUsage(one_line(str(error))) from None


def reminder_of(grain_type: str, grain_key: str, name: str) -> tuple[GrainId, str]:
    """The reminder TYPE KEY NAME, or bad usage."""
    try:
        return grain_of(grain_type, grain_key), checked_name(name)
    except InvalidPayload as error:
        raise BadUsage(one_line(str(error))) from None
