"""The provider on one SQLite file: which verb goes to which connection.

Two threads, each with a connection: the writer (commits, membership, and loads, which must follow every
commit begun before them) and the reader (polls and listings, which need not wait for an fsync).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from farro.providers.errors import StoreChanged, Unavailable
from farro.providers.members import PartitionRow, SiloRow
from farro.providers.rows import (
    Commit,
    EventRow,
    GrainRow,
    OutboxRow,
    PollQuery,
    ReminderCount,
    ReminderFilter,
    ReminderRow,
    StoreInfo,
    Verdict,
)
from farro.providers.sqlite import membership, reading
from farro.providers.sqlite.checkpointing import Checkpointer
from farro.providers.sqlite.committing import commit_batch, trim_events
from farro.providers.sqlite.failures import translated
from farro.providers.sqlite.locking import StoreLock, refuse_network_file_system
from farro.providers.sqlite.opened import (
    check_for_reading,
    check_path,
    leave_one_file,
    names_of_pending,
    prepare_reader,
    prepare_writer,
)
from farro.providers.sqlite.worker import Worker, connect

Result = TypeVar("Result")

SYNCHRONOUS = ("normal", "full", "extra")
BUSY_TIMEOUT_S = 5.0  # how long another program's transaction is waited for


class SqliteProvider:
    """A store in the file ``path``.

    ``synchronous`` is SQLite's: "full" makes every commit durable before it is acknowledged; "normal" may
    lose the last commits when the machine (not the process) dies; "extra" also syncs the folder.  Opened for
    writing it holds the lock file beside the database: one silo per file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        service_id: str = "default",
        synchronous: str = "full",
        read_only: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        if synchronous not in SYNCHRONOUS:
            raise ValueError(f"synchronous must be one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        # the file itself: a link to it would lead to another lock and another log
        self._path = Path(os.path.realpath(path))
        self._name = str(self._path)  # a path object takes its time, and this is looked at with every batch
        self._url = f"sqlite:///{self._path}"
        self._service_id = service_id
        self._synchronous = synchronous.upper()
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._checkpointer: Checkpointer | None = None
        self._lock = StoreLock(self._path)
        self._opened: os.stat_result | None = None  # the file that the writer has open
        self._closing = AsyncExitStack()
        self._info: StoreInfo | None = None

    @property
    def service_id(self) -> str:
        return self._service_id

    async def open(self, now: int) -> StoreInfo:
        if self._info is not None:
            return self._info
        with translated(self._url):
            async with AsyncExitStack() as closing:
                version, partitions = await self._connect(closing, now)
                self._closing = closing.pop_all()
        self._info = StoreInfo(url=self._url, schema_version=version, partitions=partitions)
        return self._info

    async def pending_migrations(self) -> list[str]:
        """What opening for writing would apply, such as ``0002_commit``, in order.  Changes nothing.

        Asked of a store that is open, closed, or in use by a silo.  StoreMissing: there is no file;
        SchemaMismatch: a newer farro's, tampered with, or not farro's.
        """
        check_path(self._path, read_only=True)
        with translated(self._url):
            async with AsyncExitStack() as closing:
                reader = await self._connection(closing, "ro")
                return await reader.run(lambda connection: names_of_pending(connection, self._url))

    async def _connect(self, closing: AsyncExitStack, now: int) -> tuple[int, int]:
        check_path(self._path, read_only=self._read_only)
        if self._read_only:
            reader = await self._connection(closing, "ro")
            await reader.run(prepare_reader)
            found = await reader.run(lambda connection: check_for_reading(connection, self._url))
            self._reader = reader
            return found
        refuse_network_file_system(self._path)
        self._lock.acquire()
        closing.callback(self._lock.release)
        writer = await self._connection(closing, "rwc")
        checkpointer = Checkpointer(self._path, self._busy_timeout_s)
        found = await writer.run(
            lambda connection: prepare_writer(connection, self._url, self._service_id, self._synchronous, now)
        )
        self._opened = self._path.stat()
        await writer.run(checkpointer.prepare)
        closing.push_async_callback(writer.run, self._leave_one_file)
        closing.push_async_callback(writer.run, lambda _: checkpointer.stop())
        reader = await self._connection(closing, "rw")
        await reader.run(prepare_reader)
        self._writer, self._reader, self._checkpointer = writer, reader, checkpointer
        return found

    def _check_file(self) -> None:
        """StoreChanged unless the open file and the lock still are what a reader of the path would find."""
        try:
            file_is_ours, lock_is_ours = self._file_is_ours(), self._lock.still_named()
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be looked at: {error.strerror}") from error
        if not file_is_ours:
            raise StoreChanged(
                f"{self._path} was removed or replaced while this silo had it open, and what it wrote now"
                " would be lost: stop the silo, put the right file in place and start again"
            )
        if not lock_is_ours:
            raise StoreChanged(
                f"the lock file {self._lock.path} was removed or replaced while this silo held it, so that"
                " a second silo can open the store: stop this silo and start again; leave the lock file alone"
            )

    def _file_is_ours(self) -> bool:
        try:
            return self._opened is not None and os.path.samestat(os.stat(self._name), self._opened)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _leave_one_file(self, connection: sqlite3.Connection) -> None:
        # the log goes by its name: without file and lock it may be a second silo's; with the lock it is this
        # one's, and left beside a file put in place meanwhile it would be replayed into that
        file_is_ours = self._file_is_ours()
        if file_is_ours or self._lock.still_named():
            try:
                leave_one_file(connection)
            except sqlite3.OperationalError:
                if file_is_ours:
                    raise  # else SQLite refuses only the last step: to write to a file that has no name

    async def _connection(self, closing: AsyncExitStack, mode: str) -> Worker:
        worker = await connect(f"{self._path.as_uri()}?mode={mode}", self._busy_timeout_s)
        closing.push_async_callback(worker.close)
        return worker

    async def close(self) -> None:
        self._info = self._writer = self._reader = self._checkpointer = None
        closing = self._closing.pop_all()
        with translated(self._url):
            await closing.aclose()

    async def _read(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        if self._reader is None:
            raise Unavailable(f"{self._url} is not open")
        with translated(self._url):
            return await self._reader.run(job)

    async def run_in_writer(
        self, job: Callable[[sqlite3.Connection], Result], *, look_again: bool = False
    ) -> Result:
        """Run ``job`` in the writer's thread, after all that was begun before.

        StoreChanged: the file or its lock was removed or replaced; the job did not run.
        """
        checkpointer = self._checkpointer
        if self._writer is None or checkpointer is None:
            raise Unavailable(f"{self._url} is {'opened for reading only' if self._reader else 'not open'}")

        def job_and_log(connection: sqlite3.Connection) -> Result:
            self._check_file()
            result = job(connection)
            checkpointer.after_write(connection, again=look_again)
            return result

        with translated(self._url):
            return await self._writer.run(job_and_log)

    async def join(self, address: str, now: int) -> SiloRow:
        return await self.run_in_writer(
            lambda connection: membership.join(connection, self._url, self._service_id, address, now)
        )

    async def renew(self, number: int, now: int) -> bool:
        return await self.run_in_writer(
            lambda connection: membership.renew(
                connection, self._url, self._service_id, number, now, self._synchronous
            ),
            look_again=True,
        )

    async def leave(self, number: int, now: int) -> None:
        await self.run_in_writer(
            lambda connection: membership.leave(connection, self._url, self._service_id, number, now)
        )

    async def take(self, number: int, partitions: Sequence[int], now: int) -> list[PartitionRow]:
        return await self.run_in_writer(
            lambda connection: membership.take(
                connection, self._url, self._service_id, number, partitions, now
            )
        )

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        run = self._read if self._read_only else self.run_in_writer
        return await run(lambda connection: reading.load(connection, self._service_id, grains))

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        if not batch:
            return []
        return await self.run_in_writer(
            lambda connection: commit_batch(connection, self._url, self._service_id, batch, owner, now)
        )

    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None:
        return await self._read(
            lambda connection: reading.reminder(connection, self._service_id, grain_type, grain_key, name)
        )

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]:
        return await self._read(
            lambda connection: reading.reminders_of(connection, self._service_id, grain_type, grain_key)
        )

    async def poll(self, queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
        return await self._read(lambda connection: reading.poll(connection, self._service_id, queries))

    async def list_reminders(
        self, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None = None
    ) -> list[ReminderRow]:
        return await self._read(
            lambda connection: reading.list_reminders(connection, self._service_id, where, limit, after)
        )

    async def count_reminders(self, where: ReminderFilter) -> list[ReminderCount]:
        return await self._read(
            lambda connection: reading.count_reminders(connection, self._service_id, where)
        )

    async def events(self, partition: int, stream: str, after: int, limit: int) -> list[tuple[int, EventRow]]:
        return await self._read(
            lambda connection: reading.events(connection, self._service_id, partition, stream, after, limit)
        )

    async def outbox(self, partition: int, after: int, limit: int) -> list[tuple[int, OutboxRow]]:
        return await self._read(
            lambda connection: reading.outbox(connection, self._service_id, partition, after, limit)
        )

    async def stream_heads(self, stream: str) -> list[tuple[int, int]]:
        return await self._read(lambda connection: reading.stream_heads(connection, self._service_id, stream))

    async def trim_events(self, stream: str, partition: int, until: int) -> int:
        return await self.run_in_writer(
            lambda connection: trim_events(connection, self._url, self._service_id, stream, partition, until)
        )

    async def watermarks(self, grain_type: str, grain_key: str) -> dict[str, int]:
        return await self._read(
            lambda connection: reading.watermarks(connection, self._service_id, grain_type, grain_key)
        )

    async def unpollable(self, limit: int) -> list[ReminderRow]:
        return await self._read(lambda connection: reading.unpollable(connection, self._service_id, limit))

    async def silos(self) -> list[SiloRow]:
        return await self._read(lambda connection: reading.silos(connection, self._service_id))
