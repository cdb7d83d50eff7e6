"""Reads grain rows for activations that start together in one trip to the store."""

from __future__ import annotations

import asyncio
import logging

from farro.client.errors import StorageUnavailable
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import GrainRow
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.silo")

BATCH_MAX = 256  # rows per read; a thousand cold grains take four trips, and none waits for a thousand

Waiting = tuple[tuple[str, str], "asyncio.Future[GrainRow | None]"]


class Loader:
    """Natural batching of loads: while one read is out, the next ones queue."""

    def __init__(self, provider: Provider, tasks: TaskOwner) -> None:
        self._provider = provider
        self._tasks = tasks
        self._queue: list[Waiting] = []
        self._running = False
        self.failures_in_a_row = 0  # reads the store did not answer since it last answered one

    @property
    def healthy(self) -> bool:
        """The store answered the last read."""
        return not self.failures_in_a_row

    async def load(self, grain_type: str, grain_key: str) -> GrainRow | None:
        """The grain's row as committed.  Raises :class:`StorageUnavailable`."""
        future: asyncio.Future[GrainRow | None] = asyncio.get_running_loop().create_future()
        self._queue.append(((grain_type, grain_key), future))
        if not self._running:
            self._running = True
            self._tasks.start(self._drain(), "load")
        return await future

    async def _drain(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
                await self._one_batch(batch)
        finally:
            self._running = False

    async def _one_batch(self, batch: list[Waiting]) -> None:
        try:
            rows = await self._provider.load([key for key, _ in batch])
            answers = list(zip(batch, rows, strict=True))
        except StoreError as error:
            self._fail(batch, str(error))
        except Exception as error:
            log.exception("the provider failed at a load; the next ones go on")
            self._fail(batch, repr(error))
        except BaseException:  # the silo ends: nobody reads for those that wait
            waiting, self._queue = self._queue, []
            self._fail([*batch, *waiting], "the read was interrupted")
            raise
        else:
            self.failures_in_a_row = 0
            for (_, future), row in answers:
                if not future.done():
                    future.set_result(row)

    def _fail(self, batch: list[Waiting], reason: str) -> None:
        self.failures_in_a_row += 1
        for _, future in batch:
            if not future.done():
                future.set_exception(StorageUnavailable(f"the grain's state could not be read: {reason}"))
