"""SQLite stores filled with reminders by raw sqlite3, without a silo."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import astuple, fields
from itertools import islice
from pathlib import Path

from farro.client.clock import SystemClock
from farro.providers.rows import ReminderRow
from farro.providers.sqlite.store import SqliteProvider

ROWS_A_STATEMENT = 10_000


async def write_reminders(path: Path, rows: Iterable[ReminderRow]) -> None:
    """A new, closed store at ``path`` that holds the rows."""
    provider = SqliteProvider(path)
    await provider.open(SystemClock().now())
    await provider.close()
    columns = [field.name for field in fields(ReminderRow)]
    insert = (
        f"INSERT INTO reminders (service_id, {', '.join(columns)})"
        f" VALUES ('default', {', '.join('?' * len(columns))})"
    )
    source = iter(rows)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        while some := [astuple(row) for row in islice(source, ROWS_A_STATEMENT)]:
            connection.executemany(insert, some)
        connection.execute("COMMIT")
