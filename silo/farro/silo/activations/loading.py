"""Reads grain rows for activations that start together in one trip to the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from farro.client.errors import FarroError, StorageUnavailable
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import GrainRow
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.silo")

BATCH_MAX = 256  # rows per read; a thousand cold grains take four trips, and none waits for a thousand

ROWS_IN_A_ROW = 64  # told of before the event loop has its turn: waking a grain may run its first turn

Done = Callable[[GrainRow | None, FarroError | None], None]
Waiting = tuple[tuple[str, str], Done]


class Loader:
    """Natural batching of loads: while one read is out, the next ones queue."""

    def __init__(self, provider: Provider, tasks: TaskOwner) -> None:
        self._provider = provider
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._queue: list[Waiting] = []
        self._running = False
        self.failures_in_a_row = 0  # reads the store did not answer since it last answered one

    @property
    def healthy(self) -> bool:
        """The store answered the last read."""
        return not self.failures_in_a_row

    def read(self, grain_type: str, grain_key: str, done: Done) -> None:
        """Tell ``done`` the grain's row as committed, or :class:`StorageUnavailable`; once."""
        self._queue.append(((grain_type, grain_key), done))
        if not self._running:
            self._running = True
            self._tasks.start(self._drain(), "load")

    async def load(self, grain_type: str, grain_key: str) -> GrainRow | None:
        """:meth:`read` for those who wait.  Raises :class:`StorageUnavailable`."""
        future: asyncio.Future[GrainRow | None] = self._loop.create_future()
        self.read(grain_type, grain_key, partial(_resolve, future))
        return await future

    async def answer_to(self, grain_type: str, grain_key: str, request_id: str) -> bytes | None:
        """What the grain has answered to a request.  Raises :class:`StorageUnavailable`."""
        try:
            return await self._provider.answer_to(grain_type, grain_key, request_id)
        except StoreError as error:
            raise StorageUnavailable(f"the answer to a request could not be read: {error}") from error

    async def _drain(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
                await self._one_batch(batch)
        except BaseException:  # the silo ends: nobody reads for those that wait
            waiting, self._queue = self._queue, []
            self._fail(waiting, "the read was interrupted")
            raise
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
        except BaseException:
            self._fail(batch, "the read was interrupted")
            raise
        else:
            self.failures_in_a_row = 0
            await self._answer(answers)

    async def _answer(self, answers: list[tuple[Waiting, GrainRow | None]]) -> None:
        told = 0
        try:
            for (_, done), row in answers:
                told += 1
                _tell(done, row, None)
                if not told % ROWS_IN_A_ROW or told == len(answers):
                    await asyncio.sleep(0)  # a store in memory answers without giving the loop its turn
        except BaseException:
            self._fail([waiting for waiting, _ in answers[told:]], "the read was interrupted")
            raise

    def _fail(self, batch: list[Waiting], reason: str) -> None:
        self.failures_in_a_row += 1
        for _, done in batch:
            _tell(done, None, StorageUnavailable(f"the grain's state could not be read: {reason}"))


def _tell(done: Done, row: GrainRow | None, error: FarroError | None) -> None:
    """The fault of one is its own: the others are answered all the same."""
    try:
        done(row, error)
    except Exception:
        log.exception("a grain that was read could not be woken")


def _resolve(future: asyncio.Future[GrainRow | None], row: GrainRow | None, error: FarroError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(row)
    else:
        future.set_exception(error)
