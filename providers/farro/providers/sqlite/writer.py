"""The connection that writes to a file which other processes write to as well."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from farro.providers.errors import StoreChanged, Unavailable
from farro.providers.sqlite.checkpointing import Checkpointer
from farro.providers.sqlite.failures import translated
from farro.providers.sqlite.locking import StoreLock
from farro.providers.sqlite.opened import leave_one_file
from farro.providers.sqlite.worker import Worker, connect, open_file
from farro.providers.sqlite.write_lock import WriteLock

Result = TypeVar("Result")

_log = logging.getLogger("farro.providers.sqlite")


class Writer:
    """One connection in a thread of its own, and what it shares the file by: see StoreLock and WriteLock."""

    def __init__(self, database: Path, url: str, busy_timeout_s: float) -> None:
        self._database = database
        self._name = str(database)  # a path object takes its time, and this is looked at with every batch
        self._url = url
        self._busy_timeout_s = busy_timeout_s
        self._write_lock = WriteLock(database, busy_timeout_s)
        self._store_lock = StoreLock(database)
        self._checkpointer = Checkpointer(database, busy_timeout_s)
        self._worker: Worker | None = None
        self._opened: os.stat_result | None = None  # the file that the connection has open

    async def open(self, mode: str, prepare: Callable[[sqlite3.Connection], None]) -> None:
        """Connect (``mode`` rw, or rwc to create the file) and ``prepare``, while no other process writes."""
        with translated(self._url):
            try:
                self._worker = await connect(lambda: self._connect(mode, prepare))
            except BaseException:
                self._let_go()
                raise

    def _connect(self, mode: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        self._write_lock.open()
        self._write_lock.acquire()
        try:
            self._store_lock.acquire()
            connection = open_file(f"{self._database.as_uri()}?mode={mode}", self._busy_timeout_s)
            try:
                self._store_lock.settle()
                prepare(connection)
                self._checkpointer.prepare(connection)
                self._opened = self._database.stat()
            except BaseException:
                connection.close()
                raise
            return connection
        finally:
            self._write_lock.release()

    async def run(self, job: Callable[[sqlite3.Connection], Result], *, look_again: bool = False) -> Result:
        """Run ``job``, which writes, after all that was begun before, while no other process writes.

        StoreChanged: the file or its lock was removed or replaced; the job did not run.
        """

        def job_and_log(connection: sqlite3.Connection) -> Result:
            self._write_lock.acquire()
            try:
                self._check_file()
                result = job(connection)
                self._checkpointer.after_write(connection, again=look_again)
                return result
            finally:
                self._write_lock.release()

        return await self._run(job_and_log)

    async def look(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run ``job``, which only reads, after all that was begun before."""

        def checked(connection: sqlite3.Connection) -> Result:
            self._check_file()
            return job(connection)

        return await self._run(checked)

    async def _run(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        if self._worker is None:
            raise Unavailable(f"{self._url} is not open")
        with translated(self._url):
            return await self._worker.run(job)

    async def close(self) -> None:
        """Repeatable.  The last one to close leaves the database as one file."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        with translated(self._url):
            try:
                await worker.run(self._leave)
            finally:
                await worker.close()
                self._let_go()

    def _let_go(self) -> None:
        self._store_lock.release()
        self._write_lock.close()

    def _leave(self, connection: sqlite3.Connection) -> None:
        self._checkpointer.stop()
        try:
            self._write_lock.acquire()
        except Unavailable as error:
            _log.warning("%s keeps its log, which is as durable: %s", self._database, error)
            return
        try:
            self._leave_one_file(connection)
        finally:
            self._write_lock.release()

    def _leave_one_file(self, connection: sqlite3.Connection) -> None:
        # The log goes by its name.  Without file and lock it may be that of a silo on another file; with the
        # lock it is this one's, and left beside a file put in place meanwhile it would be replayed into that.
        file_is_ours = self._file_is_ours()
        if (file_is_ours or self._store_lock.still_named()) and self._store_lock.is_alone():
            try:
                leave_one_file(connection)
            except sqlite3.OperationalError:
                if file_is_ours:
                    raise  # else SQLite refuses only the last step: to write to a file that has no name

    def _check_file(self) -> None:
        """StoreChanged unless the open file and the lock still are what a reader of the path would find."""
        try:
            file_is_ours, lock_is_ours = self._file_is_ours(), self._store_lock.still_named()
        except OSError as error:
            raise Unavailable(f"{self._database} cannot be looked at: {error.strerror}") from error
        if not file_is_ours:
            raise StoreChanged(
                f"{self._database} was removed or replaced while this silo had it open, and what it wrote now"
                " would be lost: stop the silo, put the right file in place and start again"
            )
        if not lock_is_ours:
            raise StoreChanged(
                f"the lock file {self._store_lock.path} was removed or replaced while this silo held it, so"
                " that a silo may open another file of this name: stop this silo and start again; leave the"
                " lock file alone"
            )

    def _file_is_ours(self) -> bool:
        try:
            return self._opened is not None and os.path.samestat(os.stat(self._name), self._opened)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False
