"""Keeps the write-ahead log short without making commits wait for it.

Copying the log into the database inside a commit costs that commit tens of milliseconds.  So a thread of its
own copies from a second connection while commits go on (PASSIVE); when it is done, the writer, between two
commits, copies the little that came meanwhile, and the next commit starts the log over (RESTART).  The file
keeps its length: to write within it costs a third less than to append.  It grows again when the log has
come to its end again, and that is when the next copying starts.  Only a writer that outruns the copying waits
for it.  A long reader of another program keeps the log from being started over; it is tried again as the log
grows and with each renewal, so that the log shrinks soon after that reader ends.

Every process that writes to the file does so, and what makes others wait happens under the write lock.  The
copying itself holds up nobody and runs without it; of two at a time SQLite turns one away.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

LOG_BYTES_START = 4 << 20  # SQLite's own default of 1,000 pages: copying starts
LOG_BYTES_WAIT = 32 << 20  # half of what the log may reach: commits wait for the copying
LOG_BYTES_KEPT = 8 << 20  # what a log that is started over keeps of its file
START_OVER_WAIT_MS = 100  # for readers in the way of a log that has become long; a short one grows instead
LOG_BYTES_RETRY = 1 << 20  # how much a log that a reader holds grows until it is tried again

_log = logging.getLogger("farro.providers.sqlite")


def passive(uri: str) -> None:
    """Copy what no reader still needs, holding up nobody."""
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


class Checkpointer:
    """Lives in the writer's thread, except for the copying itself."""

    def __init__(self, database: Path, busy_timeout_s: float) -> None:
        self._log_file = database.with_name(database.name + "-wal")
        self._log_file_name = str(self._log_file)
        self._uri = f"{database.as_uri()}?mode=rw"
        self._busy_timeout_ms = round(busy_timeout_s * 1000)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="farro-sqlite-checkpoint")
        self._copying: Future[None] | None = None
        self._start_at = LOG_BYTES_START
        self._seen = 0  # the size of the log after the last write
        self._held_up = False  # by a reader, the last time

    def prepare(self, writer: sqlite3.Connection) -> None:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}")

    def after_write(self, writer: sqlite3.Connection, *, again: bool = False) -> None:
        """Look at the log and do the next step, if one is due.  ``again``: do not wait for it to grow first.

        What was committed is durable whatever happens here, so trouble is logged and tried again later.
        """
        size, before = self._size(), self._seen
        self._seen = size
        if size < before:
            self._look_from(size)  # another process has had it started over
        if self._copying is not None:
            if self._copying.done() or size >= LOG_BYTES_WAIT:
                self._finish(writer, self._copying)
                self._copying = None
        elif size >= self._start_at or (again and self._held_up):
            self._copying = self._thread.submit(passive, self._uri)

    def stop(self) -> None:
        """Wait for the copying under way and end its thread."""
        self._thread.shutdown(wait=True)

    def _size(self) -> int:
        try:
            return os.stat(self._log_file_name).st_size  # noqa: PTH116 - with every batch
        except FileNotFoundError:
            return 0

    def _finish(self, writer: sqlite3.Connection, copying: Future[None]) -> None:
        try:
            copying.result()
            # readers that come now read the database itself: only those that are there are waited for
            patience_ms = START_OVER_WAIT_MS if self._size() >= LOG_BYTES_WAIT else 0
            self._held_up = not self._start_over(writer, patience_ms)
        except sqlite3.Error as error:
            _log.warning("%s could not be copied into its database, trying again: %s", self._log_file, error)
            self._held_up = True
        if self._held_up:
            self._start_at = self._size() + LOG_BYTES_RETRY
        else:
            self._look_from(self._size())

    def _look_from(self, size: int) -> None:
        """The log was started over in a file of that size."""
        self._start_at = max(LOG_BYTES_START, min(size, LOG_BYTES_KEPT)) + 1
        self._held_up = False

    def _start_over(self, writer: sqlite3.Connection, patience_ms: int) -> bool:
        """Have the next commit write at the beginning of the log; False when a reader still needs its end."""
        writer.execute(f"PRAGMA busy_timeout = {patience_ms}")
        try:
            (busy, _, _) = writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            return not busy
        finally:
            writer.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
