"""One connection that does one thing at a time, is made anew when lost, and remembers what it left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from farro.providers.errors import StoreError, Unavailable
from farro.providers.postgres.connecting import (
    ANSWER_S,
    CLOSE_S,
    CONNECT_S,
    RECONNECT_S,
    Backend,
    Connection,
    Connector,
    Linked,
)
from farro.providers.postgres.failures import TROUBLE, is_refused, not_taken, unknown
from farro.providers.postgres.sql import queries

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a link waits for what.

    ``patience_s``: how long it tries again to connect.  ``begin_s``: until a job begins, with all that comes
    before it; None: the sum of the others, for each that waits in front.  ``needs_certainty`` False: a
    statement whose answer was lost may land whenever it likes; the link is never in doubt.
    """

    lock_timeout_ms: int
    connect_s: float = CONNECT_S
    patience_s: float = RECONNECT_S
    answer_s: float = ANSWER_S
    begin_s: float | None = None
    needs_certainty: bool = True


STRAGGLER_END_MS = 5_000


class Link:
    """A connection behind a lock: whoever comes first goes first.

    When an answer is lost, the statement may still be on its way or at work in the server.  The link then is
    *in doubt*: before it does anything else it ends the server's process that the lost connection had, and
    waits for every lock that a commit of it may hold.  After that nothing that was begun can land any more.

    ``prepare`` is run before every job, and looks for itself whether there is something to do.
    """

    def __init__(
        self,
        connector: Connector,
        lock_class: int,
        bounds: Bounds,
        prepare: Callable[[Linked], Awaitable[None]] | None = None,
    ) -> None:
        self._connector = connector
        self._lock_class = lock_class
        self._bounds = bounds
        self._prepare = prepare
        self._linked: Linked | None = None
        self._lost: tuple[Backend, Sequence[int]] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def in_doubt(self) -> bool:
        return self._lost is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def open(self) -> Linked:
        """Connect now, with a single try."""
        async with self._turn:
            bounds = self._bounds
            self._linked = linked = await self._connector.connect(bounds.lock_timeout_ms, bounds.connect_s)
            return linked

    async def run(
        self, job: Callable[[Connection], Awaitable[Result]], partitions: Sequence[int] = ()
    ) -> Result:
        """Run ``job`` in its turn.  ``partitions``: whose locks it may hold, ascending.

        Unavailable before it was begun; OutcomeUnknown when its answer was lost; asyncpg's own error when the
        server, or the encoding of a value, refused it and nothing changed.
        """
        begin_s = self._bounds.begin_s
        try:
            async with asyncio.timeout(begin_s):
                await self._turn.acquire()
                try:
                    connection = await self._ready()
                except BaseException:
                    self._turn.release()
                    raise
        except TimeoutError as error:
            raise Unavailable(f"{self._connector.url} did not answer within {begin_s:g} s") from error
        try:
            return await self._run(connection, job, partitions)
        finally:
            self._turn.release()

    async def clear_doubt(self) -> None:
        """Return when no lost statement can land any more.  Unavailable when that cannot be known yet."""
        async with self._turn:
            if self.in_doubt:
                await self._ready()

    async def close(self) -> None:
        """Repeatable.  Waits for what is under way; what still waits for its turn is refused."""
        self._closed = True
        async with self._turn:
            linked, self._linked, self._lost = self._linked, None, None
            if linked is not None:
                await closed(linked.connection)

    async def _run(
        self,
        connection: Connection,
        job: Callable[[Connection], Awaitable[Result]],
        partitions: Sequence[int],
    ) -> Result:
        try:
            async with asyncio.timeout(self._bounds.answer_s):
                return await job(connection)
        except TROUBLE as error:
            if is_refused(error) and not connection.is_closed():
                raise
            self._lose(partitions)
            raise unknown(error, self._connector.url) from error
        except StoreError:
            raise
        except BaseException:  # a cancelled wait: the server goes on with what it has
            self._lose(partitions)
            raise

    def _lose(self, partitions: Sequence[int]) -> None:
        linked, self._linked = self._linked, None
        if linked is not None:
            linked.connection.terminate()
            if self._bounds.needs_certainty:
                self._lost = (linked.backend, partitions)

    async def _ready(self) -> Connection:
        if self._closed:
            raise Unavailable(f"{self._connector.url} is not open")
        self._connector.check_unchanged()
        if self._linked is None or self._linked.connection.is_closed():
            self._linked = None
            self._linked = await self._connector.connect_patiently(
                self._bounds.lock_timeout_ms, self._bounds.connect_s, self._bounds.patience_s
            )
        linked = self._linked
        if self._lost is not None or self._prepare is not None:
            try:
                async with asyncio.timeout(self._bounds.answer_s):
                    if self._lost is not None:
                        await self._end_stragglers(linked.connection, *self._lost)
                        self._lost = None
                    if self._prepare is not None:
                        await self._prepare(linked)
            except (*TROUBLE, asyncio.CancelledError) as error:
                self._linked = None
                linked.connection.terminate()
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise not_taken(error, self._connector.url) from error
        return linked.connection

    async def _end_stragglers(
        self, connection: Connection, backend: Backend, partitions: Sequence[int]
    ) -> None:
        texts = queries(self._connector.address.schema)
        ended = await connection.fetchval(
            texts["end_straggler"], backend.pid, backend.started_at, STRAGGLER_END_MS
        )
        if ended is False:
            raise Unavailable(
                f"{self._connector.url}: the server's process {backend.pid}, whose answer was lost, does not"
                " end"
            )
        if partitions:
            await connection.fetchval(texts["pass_locks"], self._lock_class, list(partitions))


async def closed(connection: Connection) -> None:
    """Close politely, or at once when the server does not answer."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.close()
    except TROUBLE:
        connection.terminate()
