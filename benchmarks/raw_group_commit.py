"""Limit probe: what the disk and SQLite allow for the rows of a turn, with nothing of farro in the way.

The tables are those of farro's SQLite store, written by raw sqlite3 in one thread: synchronous=FULL, one
transaction per group, ``executemany``, no fence, no version check, no verdicts.  The rows are those of
``durable_turns``: a group is one turn of each caller, whose grains lie apart in the table.  (Neighbours
would share their pages, and a group of them is written twice as fast.)

    python -m benchmarks.raw_group_commit [--seconds 3] [--group 64] [--work turn]
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Literal

from farro.providers.sqlite.migrating import known_migrations, statements

Work = Literal["state", "turn", "tick"]
WORKS: tuple[Work, ...] = ("state", "turn", "tick")

CALLERS = 64
PER_CALLER = 30
GRAINS = CALLERS * PER_CALLER
STATE = b"\x82\xa6status\xa9on its way\xa5count\x01" + bytes(64)
START_AT = 1_700_000_000_000_000

_STATE = """INSERT INTO grains VALUES ('default', 'shipments', ?1, ?2, 1, 1, 1, ?3)
ON CONFLICT DO UPDATE SET version = version + 1, layout = 1, state = excluded.state"""
_PUT = """INSERT OR REPLACE INTO reminders VALUES (
    'default', 'shipments', ?1, ?2, ?3, 'chase', NULL, x'90', ?4, 60000000, NULL, 'UTC', 'and', NULL, NULL, 0,
    ?4, ?4, NULL, 1, 0, 1, 1, 0, 0, NULL, NULL, 'scheduled', NULL)"""
_DELETE = (
    "DELETE FROM reminders WHERE service_id = 'default' AND grain_type = 'shipments'"
    " AND grain_key = ? AND name = ?"
)
_TICK = """UPDATE reminders SET next_due_at = ?2, wake_at = ?2, last_fire_at = ?2, occurrence = occurrence + 1
WHERE service_id = 'default' AND grain_type = 'shipments' AND grain_key = ?1 AND name = 'chase:a'"""


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        for migration in known_migrations():
            for statement in statements(migration.text):
                connection.execute(statement)
        yield connection
    finally:
        connection.close()


def _writes(connection: sqlite3.Connection, work: Work) -> Callable[[int, range], None]:
    """A function that writes the turns of one group inside the open transaction."""
    keys = [f"s-{caller}-{number}" for number in range(PER_CALLER) for caller in range(CALLERS)]
    many = connection.executemany

    def write(turn: int, grains: range) -> None:
        due = START_AT + turn
        many(_STATE, [(keys[g % GRAINS], g % 64, STATE) for g in grains])
        if work == "turn":
            many(_PUT, [(keys[g % GRAINS], g % 64, "chase:" + "ab"[turn % 2], due) for g in grains])
            many(_DELETE, [(keys[g % GRAINS], "chase:" + "ba"[turn % 2]) for g in grains])
        elif work == "tick":
            many(_TICK, [(keys[g % GRAINS], due) for g in grains])

    if work == "tick":
        connection.execute("BEGIN")
        many(_PUT, [(key, index % 64, "chase:a", START_AT) for index, key in enumerate(keys)])
        connection.execute("COMMIT")
    return write


def raw_group_commit(path: str | Path, seconds: float, group: int = 64, *, work: Work = "turn") -> float:
    """Turns per second on a new database at ``path``, for about ``seconds``, ``group`` turns a transaction.

    ``work``: "state" writes a grain row; "tick" moves a reminder row too; "turn" puts one reminder and
    deletes another.
    """
    with _database(Path(path)) as connection:
        write = _writes(connection, work)
        begun = perf_counter()
        for number in count():
            connection.execute("BEGIN IMMEDIATE")
            # a grain's turns alternate between two reminders: every put is new and every delete hits
            write(number * group // GRAINS, range(number * group, (number + 1) * group))
            connection.execute("COMMIT")
            elapsed = perf_counter() - begun
            if elapsed >= seconds:
                return (number + 1) * group / elapsed
    raise AssertionError("count() does not end")


def main() -> None:
    parser = argparse.ArgumentParser(description="Raw SQLite group commits of the rows of a turn.")
    parser.add_argument("--seconds", type=float, default=3.0, help="default: %(default)s")
    parser.add_argument("--group", type=int, default=64, help="turns a transaction, default: %(default)s")
    parser.add_argument("--work", choices=WORKS, default="turn", help="default: %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as folder:
        rate = raw_group_commit(Path(folder) / "raw.db", options.seconds, options.group, work=options.work)
    print(f"{rate:,.0f} turns/s ({options.work}, {options.group} a transaction, synchronous=FULL)")


if __name__ == "__main__":
    main()
