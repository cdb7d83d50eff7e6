"""Brings a database file to this farro's schema, and refuses what it does not know.

A migration is a file ``migrations/NNNN_name.sql``.  What was applied is in ``farro_migrations`` with its
checksum; an applied file never changes, a new one is added.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from farro.providers.errors import SchemaMismatch
from farro.providers.sql_files import Migration, migrations_of

_CREATE = """CREATE TABLE farro_migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
) STRICT"""


def known_migrations() -> tuple[Migration, ...]:
    """The migrations of this farro, by number from 1."""
    return migrations_of("farro.providers.sqlite")


def statements(text: str) -> list[str]:
    """A script's statements.  Executed one by one: ``executescript`` would commit the open transaction."""
    found: list[str] = []
    rest = ""
    for line in text.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest.strip())
            rest = ""
    if rest.strip():
        raise ValueError(f"a migration ends inside a statement: {rest.strip()!r:.200}")
    return found


def pending(connection: sqlite3.Connection, url: str, known: Sequence[Migration]) -> Sequence[Migration]:
    """The migrations still to apply.  SchemaMismatch: a newer farro's, tampered with, or not farro's."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if "farro_migrations" not in tables:
        if tables:
            raise SchemaMismatch(
                f"{url} holds the tables of another program ({', '.join(sorted(tables))[:200]}): give farro a"
                " file of its own"
            )
        return known
    applied = connection.execute(
        "SELECT number, name, checksum FROM farro_migrations ORDER BY number"
    ).fetchall()
    if applied and applied[-1][0] > len(known):
        raise SchemaMismatch(
            f"{url} was written by a newer farro (schema {applied[-1][0]}; this farro knows up to"
            f" {len(known)}): upgrade farro"
        )
    for index, (number, name, checksum) in enumerate(applied):
        migration = known[index]
        if number != migration.number or checksum != migration.checksum:
            raise SchemaMismatch(
                f"{url}: migration {number} ({name}) is not the one of this farro: the store was changed by"
                " hand or by another build; use the farro that wrote it, or restore a backup"
            )
    return known[len(applied) :]


def migrate(connection: sqlite3.Connection, url: str, known: Sequence[Migration], now: int) -> int:
    """Apply what is pending, inside the caller's transaction, and answer the schema version."""
    to_apply = pending(connection, url, known)
    if to_apply and to_apply[0].number == 1:
        has_table = "SELECT 1 FROM sqlite_schema WHERE name = 'farro_migrations'"
        if connection.execute(has_table).fetchone() is None:
            connection.execute(_CREATE)
    for migration in to_apply:
        for statement in statements(migration.text):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO farro_migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
            (migration.number, migration.name, migration.checksum, now),
        )
    return len(known)
