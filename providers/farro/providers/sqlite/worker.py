"""One aiosqlite thread that runs whole functions.

aiosqlite ships each statement to its thread by itself: three thread hops, about 110 µs, for every row.  A
batch goes as one function instead. ``Connection._execute`` is what every public method of aiosqlite is made
of; a test pins its meaning (tests/unit/providers/sqlite/test_worker.py).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiosqlite

Result = TypeVar("Result")

CACHED_STATEMENTS = 256  # all of queries.sql and the shapes of listings stay prepared
FETCH_CHUNK = 64  # aiosqlite's own default; unused, functions fetch for themselves


class Worker(aiosqlite.Connection):
    """A SQLite connection in a thread of its own.  Functions run one at a time, in the order given."""

    async def run(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run ``job`` in the thread.  A cancelled wait does not stop the job; later ones still follow it."""
        execute: Callable[..., Awaitable[Result]] = self._execute  # untyped in aiosqlite
        return await execute(job, self._conn)

    async def thread_ends(self) -> None:
        """Wait for the thread of a connection that could not be opened.

        aiosqlite has told it to stop and does not wait for its answer; given to a loop that is closed by
        then, that would end on stderr.
        """
        await asyncio.to_thread(self._thread.join)


async def connect(open_connection: Callable[[], sqlite3.Connection]) -> Worker:
    """A thread in which ``open_connection`` has run."""
    worker = Worker(open_connection, FETCH_CHUNK)
    # A program whose loop was ended over its silo's head must still end; what was committed is on the disk.
    worker._thread.daemon = True
    try:
        await worker
    except BaseException:
        await worker.thread_ends()
        raise
    return worker


def open_file(uri: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a ``file:`` URI.  Transactions are begun and ended by the functions alone."""
    return sqlite3.connect(
        uri, uri=True, timeout=busy_timeout_s, isolation_level=None, cached_statements=CACHED_STATEMENTS
    )
