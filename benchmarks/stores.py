"""SQLite stores filled with reminders by raw sqlite3: farro's tables, and a million rows in seconds."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from time import perf_counter

import msgpack

from benchmarks.grains import Ticking
from farro.client.clock import SystemClock
from farro.client.identity import partition_of
from farro.providers.rows import ReminderRow
from farro.providers.sqlite.store import SqliteProvider

DAY_US = 86_400_000_000
SECOND_US = 1_000_000
NO_ARGUMENTS = msgpack.packb([[], None])
OPERATIONS = ("critical", "normal", "background")  # of the grain class Ticking, by priority
PARTITIONS = 64
ROWS_A_STATEMENT = 10_000
BACKLOG_AGE_US = 10 * SECOND_US  # within the grace: late, not missed

_COLUMNS = [field.name for field in fields(ReminderRow)]
_values = attrgetter(*_COLUMNS)


def ticking_row(number: int, due_at: int, period_us: int = DAY_US, priority: int = 1) -> ReminderRow:
    """The reminder of the ``number``-th grain: recurring, due at ``due_at``."""
    grain_type, key, operation = Ticking.__farro_type__, f"t-{number}", OPERATIONS[priority]
    return ReminderRow(
        grain_type=grain_type,
        grain_key=key,
        partition=partition_of(grain_type, key, PARTITIONS),
        name=operation,
        operation=operation,
        key=None,
        args=NO_ARGUMENTS,
        start_at=due_at,
        period_us=period_us,
        cron=None,
        timezone="UTC",
        day_match="and",
        until_at=None,
        times_left=None,
        jitter_us=0,
        next_due_at=due_at,
        wake_at=due_at,
        last_fire_at=None,
        priority=priority,
        action=0,
        registration=number + 1,
        occurrence=1,
    )


def backlog(rows: int, priority: int = 1, first: int = 0) -> Iterator[ReminderRow]:
    """Overdue reminders of as many grains, a microsecond apart, so that their order is known."""
    begun = SystemClock().now() - BACKLOG_AGE_US
    return (ticking_row(first + number, begun + number, priority=priority) for number in range(rows))


async def store_with(path: Path, rows: Iterable[ReminderRow]) -> None:
    """A new, closed store at ``path`` that holds the rows."""
    provider = SqliteProvider(path)
    await provider.open(SystemClock().now())
    await provider.close()
    insert = (
        f"INSERT INTO reminders (service_id, {', '.join(_COLUMNS)})"
        f" VALUES ('default', {', '.join('?' * len(_COLUMNS))})"
    )
    source = iter(rows)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute("BEGIN")
        while some := [_values(row) for row in islice(source, ROWS_A_STATEMENT)]:
            connection.executemany(insert, some)
        connection.execute("COMMIT")


def copy_of(store: Path, name: str) -> Path:
    """A fresh copy beside it, side files included in neither."""
    target = store.with_name(name)
    for side in ("", "-wal", "-shm", ".lock"):
        Path(f"{target}{side}").unlink(missing_ok=True)
    shutil.copyfile(store, target)
    return target


def settled_count(path: Path) -> int:
    """How many reminders of a store have moved on from their first occurrence."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM reminders WHERE occurrence > 1").fetchone()
    return int(count)


def counted(path: Path) -> int:
    """How many grains of a store have a state."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM grains WHERE state IS NOT NULL").fetchone()
    return int(count)


# ---- the limit probe of a backlog

_STATE = """INSERT INTO grains
(service_id, grain_type, grain_key, partition, version, incarnation, layout, state)
VALUES ('default', ?1, ?2, ?3, 1, 1, 1, ?4)
ON CONFLICT DO UPDATE SET version = version + 1, layout = 1, state = excluded.state"""
_MOVE = """UPDATE reminders SET next_due_at = ?4, wake_at = ?4, last_fire_at = ?4, occurrence = occurrence + 1
WHERE service_id = 'default' AND grain_type = ?1 AND grain_key = ?2 AND name = ?3"""


def raw_ticks(path: Path, seconds: float, rows: int, state: bytes, group: int = 64) -> float:
    """Ticks per second of raw group commits on a backlog of ``rows``: no reads, no turns, no verdicts.

    In due order each tick writes its grain's state and moves its reminder row; synchronous=FULL, ``group``
    ticks a transaction, for at most ``seconds``.
    """
    ticks = [ticking_row(number, DAY_US * 30_000) for number in range(rows)]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        begun = perf_counter()
        done = 0
        while done < rows and perf_counter() - begun < seconds:
            some = ticks[done : done + group]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                _STATE, [(row.grain_type, row.grain_key, row.partition, state) for row in some]
            )
            connection.executemany(
                _MOVE, [(row.grain_type, row.grain_key, row.name, row.next_due_at) for row in some]
            )
            connection.execute("COMMIT")
            done += len(some)
        return done / (perf_counter() - begun)
