"""The connections for reads: a bounded pool in which nobody waits without end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from farro.providers.errors import StoreError, Unavailable
from farro.providers.postgres.connecting import ANSWER_S, CLOSE_S, Connection, Connector
from farro.providers.postgres.failures import TROUBLE, is_refused, not_taken, unknown

if TYPE_CHECKING:
    Pool = asyncpg.Pool[asyncpg.Record]
else:
    Pool = asyncpg.Pool

Result = TypeVar("Result")

LOCK_TIMEOUT_MS = 5_000
ACQUIRE_S = 5.0
IDLE_S = 300.0
TRIES_MAX = 2  # a connection that died while idle is noticed when it is used


class ReadPool:
    """At most ``size`` connections, made when needed, ended when idle for five minutes."""

    def __init__(self, connector: Connector, size: int, acquire_s: float = ACQUIRE_S) -> None:
        self._connector = connector
        self._size = size
        self._acquire_s = acquire_s
        self._pool: Pool = asyncpg.create_pool(
            min_size=0,
            max_size=size,
            connect=self._connect,
            reset=_nothing_to_reset,
            max_inactive_connection_lifetime=IDLE_S,
        )

    async def open(self) -> None:
        await self._pool

    async def read(self, job: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run a job that may run twice.  Unavailable when it got no connection or no answer in time."""
        for attempt in range(1, TRIES_MAX + 1):
            connection = await self._acquire()
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await job(connection)
            except TROUBLE as error:
                if is_refused(error) or isinstance(error, TimeoutError) or attempt == TRIES_MAX:
                    raise not_taken(error, self._connector.url) from error
            finally:
                await self._pool.release(connection)
        raise AssertionError("the last attempt answers or raises")

    async def change(self, job: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run a job once that changes something.  OutcomeUnknown when its answer was lost."""
        connection = await self._acquire()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await job(connection)
        except TROUBLE as error:
            if is_refused(error):
                raise not_taken(error, self._connector.url) from error
            raise unknown(error, self._connector.url) from error
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        """Waits for what is under way, within reason."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._pool.close()
        except TROUBLE:
            self._pool.terminate()

    async def _acquire(self) -> Any:
        self._connector.check_unchanged()
        try:
            return await self._pool.acquire(timeout=self._acquire_s)
        except TimeoutError as error:
            raise Unavailable(
                f"{self._connector.url}: no connection became free within {self._acquire_s:g} s (pool size"
                f" {self._size}): raise ?pool=, or look why the server is slow"
            ) from error
        except StoreError:
            raise
        except TROUBLE as error:
            raise not_taken(error, self._connector.url) from error

    async def _connect(self, *_: Any, **__: Any) -> Connection:
        """The pool's own arguments are left aside: the connector knows better."""
        return (await self._connector.connect(LOCK_TIMEOUT_MS)).connection


async def _nothing_to_reset(_: Any) -> None:
    """No job changes the session, so giving a connection back needs no round trip."""
