"""The provider on one SQLite file: which verb goes to which connection.

Two threads, each with a connection: the writer (commits, membership, and loads, which must follow every
commit begun before them) and the reader (polls and listings, which need not wait for an fsync).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from farro.providers.errors import Unavailable
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
from farro.providers.sqlite import packed, reading
from farro.providers.sqlite.committing import commit_batch, forget_requests, trim_events
from farro.providers.sqlite.failures import translated
from farro.providers.sqlite.locking import refuse_network_file_system
from farro.providers.sqlite.members import MemberVerbs, SqliteMembers
from farro.providers.sqlite.membership import Service
from farro.providers.sqlite.opened import (
    check_for_reading,
    check_path,
    names_of_pending,
    prepare_reader,
    prepare_writer,
)
from farro.providers.sqlite.planning import Planner
from farro.providers.sqlite.worker import Worker, connect, open_file
from farro.providers.sqlite.writer import Writer

Result = TypeVar("Result")

SYNCHRONOUS = ("normal", "full", "extra")
BUSY_TIMEOUT_S = 5.0  # how long another program's transaction is waited for


class SqliteProvider(MemberVerbs):
    """A store in the file ``path``.

    ``synchronous`` is SQLite's: "full" makes every commit durable before it is acknowledged; "normal" may
    lose the last commits when the machine (not the process) dies; "extra" also syncs the folder.  Several
    processes of one machine may have the file open, and write in turns (on Windows one process alone).
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
        self._url = f"sqlite:///{self._path}"
        self._service_id = service_id
        self._planner = Planner(service_id)
        super().__init__(self._path, Service(self._url, service_id, synchronous.upper()))
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._writer: Writer | None = None
        self._reader: Worker | None = None
        self._info: StoreInfo | None = None

    @property
    def service_id(self) -> str:
        return self._service_id

    async def open(self, now: int) -> StoreInfo:
        if self._info is not None:
            return self._info
        try:
            with translated(self._url):
                version, partitions = await self._connect(now)
        except BaseException:
            await self.close()
            raise
        self._info = StoreInfo(url=self._url, schema_version=version, partitions=partitions)
        return self._info

    async def pending_migrations(self) -> list[str]:
        """What opening for writing would apply, such as ``0002_commit``, in order.  Changes nothing.

        Asked of a store that is open, closed, or in use by a silo.  StoreMissing: there is no file;
        SchemaMismatch: a newer farro's, tampered with, or not farro's.
        """
        check_path(self._path, read_only=True)
        with translated(self._url):
            reader = await self._connection("ro")
            try:
                return await reader.run(lambda connection: names_of_pending(connection, self._url))
            finally:
                await reader.close()

    async def _connect(self, now: int) -> tuple[int, int]:
        check_path(self._path, read_only=self._read_only)
        if self._read_only:
            self._reader = await self._connection("ro")
            return await self._reader.run(lambda connection: check_for_reading(connection, self._url))
        refuse_network_file_system(self._path)
        found: list[tuple[int, int]] = []
        writer = Writer(self._path, self._url, self._busy_timeout_s)
        await writer.open(
            "rwc", lambda connection: found.append(prepare_writer(connection, self._service, now))
        )
        self._writer = writer
        self._reader = await self._connection("rw")
        return found[0]

    async def _connection(self, mode: str) -> Worker:
        worker = await connect(lambda: open_file(f"{self._path.as_uri()}?mode={mode}", self._busy_timeout_s))
        try:
            await worker.run(prepare_reader)
        except BaseException:
            await worker.close()
            raise
        return worker

    async def close(self) -> None:
        self._info = None
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        try:
            with translated(self._url):
                if reader is not None:
                    await reader.close()
        finally:
            try:
                if writer is not None:
                    await writer.close()
            finally:
                self._silo_locks.close()

    def members(self) -> SqliteMembers:
        if self._info is None:
            raise Unavailable(f"{self._url} is not open")
        if self._read_only:
            raise Unavailable(f"{self._url} is opened for reading only")
        return SqliteMembers(self._path, self._service, self._busy_timeout_s)

    @property
    def lanes(self) -> int:
        return 1

    @property
    def lane_depth(self) -> int:
        return 2  # the second is taken up without a trip to the event loop

    def lane_of(self, partition: int) -> int:
        return 0

    async def look(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        if self._reader is None:
            raise Unavailable(f"{self._url} is not open")
        with translated(self._url):
            return await self._reader.run(job)

    async def run_in_writer(
        self, job: Callable[[sqlite3.Connection], Result], *, look_again: bool = False
    ) -> Result:
        return await self._to_write().run(job, look_again=look_again)

    async def look_in_writer(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        return await self._to_write().look(job)

    def _to_write(self) -> Writer:
        if self._writer is None:
            raise Unavailable(f"{self._url} is {'opened for reading only' if self._reader else 'not open'}")
        return self._writer

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        run = self.look if self._read_only else self.look_in_writer
        texts = await run(lambda connection: packed.load(connection, self._service_id, grains))
        if texts is None:
            return await run(lambda connection: reading.load(connection, self._service_id, grains))
        rows, left_out = packed.grain_rows(texts, len(grains))
        if left_out:
            others = [grains[at] for at in left_out]
            found = await run(lambda connection: reading.load(connection, self._service_id, others))
            for at, row in zip(left_out, found, strict=True):
                rows[at] = row
        return rows

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        if not batch:
            return []
        url, service_id = self._url, self._service_id
        plan = self._planner.plan(batch, owner, now)
        verdicts = await self.run_in_writer(
            lambda connection: commit_batch(connection, url, service_id, batch, owner, now, plan)
        )
        if plan is None or plan.signs:
            self._planner.signed(owner, now)
        return verdicts

    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None:
        return await self.look(
            lambda connection: reading.reminder(connection, self._service_id, grain_type, grain_key, name)
        )

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]:
        return await self.look(
            lambda connection: reading.reminders_of(connection, self._service_id, grain_type, grain_key)
        )

    async def poll(self, queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
        pages = await self.look(lambda connection: packed.poll(connection, self._service_id, queries))
        if pages is None:
            return await self.look(lambda connection: reading.poll(connection, self._service_id, queries))
        return [await packed.reminder_rows(texts) for texts in pages]

    async def list_reminders(
        self, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None = None
    ) -> list[ReminderRow]:
        return await self.look(
            lambda connection: reading.list_reminders(connection, self._service_id, where, limit, after)
        )

    async def count_reminders(self, where: ReminderFilter) -> list[ReminderCount]:
        return await self.look(
            lambda connection: reading.count_reminders(connection, self._service_id, where)
        )

    async def events(self, partition: int, stream: str, after: int, limit: int) -> list[tuple[int, EventRow]]:
        return await self.look(
            lambda connection: reading.events(connection, self._service_id, partition, stream, after, limit)
        )

    async def outbox(self, partition: int, after: int, limit: int) -> list[tuple[int, OutboxRow]]:
        return await self.look(
            lambda connection: reading.outbox(connection, self._service_id, partition, after, limit)
        )

    async def stream_heads(self, stream: str) -> list[tuple[int, int]]:
        return await self.look(lambda connection: reading.stream_heads(connection, self._service_id, stream))

    async def trim_events(self, stream: str, partition: int, until: int) -> int:
        return await self.run_in_writer(
            lambda connection: trim_events(connection, self._url, self._service_id, stream, partition, until)
        )

    async def watermarks(self, grain_type: str, grain_key: str) -> dict[str, int]:
        return await self.look(
            lambda connection: reading.watermarks(connection, self._service_id, grain_type, grain_key)
        )

    async def unpollable(self, limit: int) -> list[ReminderRow]:
        return await self.look(lambda connection: reading.unpollable(connection, self._service_id, limit))

    async def answer_to(self, grain_type: str, grain_key: str, request_id: str) -> bytes | None:
        return await self.look(
            lambda connection: reading.answer_to(
                connection, self._service_id, grain_type, grain_key, request_id
            )
        )

    async def forget_requests(self, before: int, limit: int) -> int:
        return await self.run_in_writer(
            lambda connection: forget_requests(connection, self._url, self._service_id, before, limit)
        )
