"""Making a database file ready: what is looked at and set when a connection opens."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

from farro.providers.errors import SchemaMismatch, StoreMissing, Unavailable
from farro.providers.sqlite.failures import writing
from farro.providers.sqlite.membership import PARTITIONS, Service
from farro.providers.sqlite.migrating import known_migrations, migrate, pending
from farro.providers.sqlite.queries import QUERIES

_PARTITIONS_KEY = "partitions"

# Pages a writer keeps in memory.  Random grains touch random pages; beyond this the OS cache serves.
WRITER_CACHE_KIB = 8 * 1024
READER_CACHE_KIB = 4 * 1024


def check_path(path: Path, *, read_only: bool) -> None:
    """One clear error for a path that SQLite would only call "unable to open"."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if read_only:
            raise StoreMissing(
                f"there is no store at {path}: check the path, or start a silo on it"
            ) from None
        if not path.parent.is_dir():
            raise Unavailable(f"{path} cannot be created: there is no folder {path.parent}") from None
        return
    except OSError as error:
        raise Unavailable(f"{path} cannot be opened: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise Unavailable(f"{path} is a directory: give the path of a file")


def prepare_writer(connection: sqlite3.Connection, service: Service, now: int) -> tuple[int, int]:
    """Log mode, migrations, partition count.  Answers (schema version, partitions)."""
    # nothing is written, not even the log mode, before a foreign or newer file is recognised
    url = service.url
    pending(connection, url, known_migrations())
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Unavailable(f"{url} cannot use a write-ahead log here ({mode}): use a local disk")
    connection.execute(f"PRAGMA synchronous = {service.synchronous}")
    connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
    key = (service.service_id, _PARTITIONS_KEY)
    with writing(connection, url):
        version = migrate(connection, url, known_migrations(), now)
        found = connection.execute(QUERIES["read_setting"], key).fetchone()
        if found is None:
            connection.execute(QUERIES["write_setting"], (*key, PARTITIONS))
        elif found[0] != PARTITIONS:
            raise SchemaMismatch(f"{url} has {found[0]} partitions; this farro works with {PARTITIONS}")
    # What a statement of many rows keeps to undo itself would go to a temporary file beyond 64 KiB.
    # Only now: a migration may sort whole tables.
    connection.execute("PRAGMA temp_store = MEMORY")
    return version, PARTITIONS


def prepare_members(connection: sqlite3.Connection, service: Service) -> None:
    """For the verbs of membership alone, on a file that :func:`prepare_writer` has made ready."""
    check_for_reading(connection, service.url)
    connection.execute(f"PRAGMA synchronous = {service.synchronous}")


def prepare_reader(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")


def check_for_reading(connection: sqlite3.Connection, url: str) -> tuple[int, int]:
    """For tools: nothing is migrated.  Answers (schema version, partitions)."""
    missing = pending(connection, url, known_migrations())
    if len(missing) == len(known_migrations()):
        raise StoreMissing(f"{url} is an empty file, no store yet: start a silo on it")
    if missing:
        raise SchemaMismatch(
            f"{url} was written by an older farro (schema {missing[0].number - 1}, this farro needs"
            f" {len(known_migrations())}): start a silo on it or run farro migrate"
        )
    return len(known_migrations()), PARTITIONS


def names_of_pending(connection: sqlite3.Connection, url: str) -> list[str]:
    return [f"{each.number:04}_{each.name}" for each in pending(connection, url, known_migrations())]


def leave_one_file(connection: sqlite3.Connection) -> None:
    """Move everything into the database file and drop the log, so that the closed store is one file.

    A log-mode file cannot be read without creating side files, which a tool that only reads must not do.  It
    needs to be alone; with another reader about, the log stays, and that is as durable.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise
