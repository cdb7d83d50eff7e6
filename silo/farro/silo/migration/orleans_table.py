"""Orleans' reminder table on PostgreSQL: found, given the proposal's columns, and read page by page.

Facts of the table (Orleans' ADO.NET provider): ``OrleansRemindersTable(ServiceId, GrainId, ReminderName,
StartTime, Period, GrainHash, Version)``, primary key on the first three.  ``StartTime`` is a
``timestamptz(3)``, before Orleans 3.6 a ``timestamp(3)`` in UTC; ``Period`` is milliseconds.  Orleans' script
quotes no name, so they are stored in lower case; a script that does quote them is understood as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from farro.providers.errors import BadStoreUrl, StoreError
from farro.providers.postgres.address import SCHEMA_DEFAULT, PostgresAddress, read_address
from farro.providers.postgres.failures import TROUBLE, not_taken
from farro.silo.migration.orleans_rows import OrleansRow

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_S = 10.0
ANSWER_S = 60.0  # an index over some million rows takes seconds
LOCK_WAIT_MS = 5_000  # a running Orleans holds the table for moments only
TABLE = "orleansreminderstable"
INDEX = "ix_orleansreminderstable_nextdueutc_priority"
NEEDED = ("serviceid", "grainid", "remindername", "starttime", "period")
ADDED = {
    "Cron": "varchar(200)",
    "NextDueUtc": "timestamptz(3)",
    "LastFireUtc": "timestamptz(3)",
    "Priority": "smallint",
    "Action": "smallint",
}  # all may be NULL and have no default: nothing is rewritten, and Orleans' own statements go on unchanged
SERVICES_MAX = 1_000

_FIND = """
SELECT c.oid, n.nspname AS schema, c.relname AS name
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND lower(c.relname) = $1 AND ($2::text IS NULL OR n.nspname = $2)
ORDER BY n.nspname, c.relname"""
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped"
_INDEXES = """
SELECT lower(c.relname) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = $1"""


class TableTrouble(StoreError):
    """The database holds no table of Orleans' that could be read, or not just one."""


@dataclass(frozen=True, slots=True)
class OrleansTable:
    """A table that was found.  ``columns``: a name in lower case to the name as it is stored."""

    oid: int
    schema: str
    name: str
    columns: Mapping[str, str]
    indexes: frozenset[str]

    @property
    def sql_name(self) -> str:
        return f"{_quoted(self.schema)}.{_quoted(self.name)}"

    def additions(self) -> list[str]:
        """The statements that bring the proposal's columns and index; empty once they are there."""
        added = [
            f"ADD COLUMN IF NOT EXISTS {name} {kind}"
            for name, kind in ADDED.items()
            if name.lower() not in self.columns
        ]
        statements = [f"ALTER TABLE {self.sql_name} {', '.join(added)}"] if added else []
        if INDEX not in self.indexes:
            due, priority = (_quoted(self.columns.get(name, name)) for name in ("nextdueutc", "priority"))
            statements.append(f"CREATE INDEX IF NOT EXISTS {INDEX} ON {self.sql_name} ({due}, {priority})")
        return statements

    def select(self) -> str:
        """One service's rows.  Instants as microseconds: no year and no session's zone can get in the way."""
        values = {
            "grain_id": self._column("grainid"),
            "name": self._column("remindername"),
            "start_at": self._instant("starttime"),
            "period_ms": self._column("period", "bigint"),
            "cron": self._column("cron"),
            "next_due_at": self._instant("nextdueutc"),
            "last_fire_at": self._instant("lastfireutc"),
            "priority": self._column("priority"),
            "action": self._column("action"),
        }
        listed = ", ".join(f"{value} AS {name}" for name, value in values.items())
        service, grain, name = (
            _quoted(self.columns[column]) for column in ("serviceid", "grainid", "remindername")
        )
        return f"SELECT {listed} FROM {self.sql_name} WHERE {service} = $1 ORDER BY {grain}, {name}"

    def _column(self, name: str, cast: str = "") -> str:
        if name not in self.columns:
            return "NULL"
        return _quoted(self.columns[name]) + (f"::{cast}" if cast else "")

    def _instant(self, name: str) -> str:
        column = self._column(name)
        if column == "NULL":
            return column
        # of a timestamp without a zone this is its wall time, which Orleans writes in UTC
        micros = f"round(extract(epoch FROM {column})::numeric * 1000000)::bigint"
        return f"CASE WHEN isfinite({column}) THEN {micros} END"


class OrleansDatabase:
    """One connection to the database that Orleans writes to.  Errors: StoreError, never with the password."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._connection = connection
        self.url = url

    async def find(self, schema: str | None) -> OrleansTable:
        """The reminder table, in ``schema`` or wherever it is.  TableTrouble: it is not there, or twice."""
        found = await self._connection.fetch(_FIND, TABLE, schema)
        where = f"{self.url}" + (f", schema {schema}" if schema else "")
        if not found:
            raise TableTrouble(
                f"{where} has no table OrleansRemindersTable: name the database that Orleans keeps its"
                " reminders in, and the schema with --orleans-schema if the login may see only some"
            )
        if len(found) > 1:
            names = ", ".join(f"{row['schema']}.{row['name']}" for row in found)
            raise TableTrouble(
                f"{where} has several reminder tables ({names}): choose one with --orleans-schema"
            )
        oid = found[0]["oid"]
        columns = {row[0].lower(): row[0] for row in await self._connection.fetch(_COLUMNS, oid)}
        if missing := [name for name in NEEDED if name not in columns]:
            raise TableTrouble(
                f"{where}: OrleansRemindersTable has no column {', '.join(missing)}: it is not the table that"
                " Orleans' ADO.NET script for PostgreSQL makes"
            )
        indexes = frozenset(row[0] for row in await self._connection.fetch(_INDEXES, oid))
        return OrleansTable(oid, found[0]["schema"], found[0]["name"], columns, indexes)

    async def services(self, table: OrleansTable) -> dict[str, int]:
        """Service ids in the table and how many reminders each has."""
        column = _quoted(table.columns["serviceid"])
        rows = await self._connection.fetch(
            f"SELECT {column} AS id, count(*) AS rows FROM {table.sql_name} GROUP BY 1 ORDER BY 1 LIMIT $1",
            SERVICES_MAX,
        )
        return {row["id"]: row["rows"] for row in rows}

    async def upgrade(self, table: OrleansTable) -> OrleansTable:
        """Add the proposal's columns and index where they are missing; the table as it is then."""
        statements = table.additions()
        if statements:
            await self._alter(statements)
        return await self.find(table.schema)

    async def _alter(self, statements: Sequence[str]) -> None:
        try:
            async with self._connection.transaction():
                await self._connection.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}")
                for statement in statements:
                    await self._connection.execute(statement)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError) as error:
            raise TableTrouble(
                f"{self.url}: the columns of the reminder proposal cannot be added ({error}): connect as the"
                " owner of the table, or leave it as it is with --read-only"
            ) from error
        except asyncpg.LockNotAvailableError as error:
            raise TableTrouble(
                f"{self.url}: OrleansRemindersTable is locked by another transaction: stop Orleans and try"
                " again, or leave the table as it is with --read-only"
            ) from error

    async def pages(
        self, table: OrleansTable, service_id: str, size: int
    ) -> AsyncGenerator[list[OrleansRow]]:
        """Every row of one service as of one moment, ``size`` at a time."""
        async with self._connection.transaction(isolation="repeatable_read", readonly=True):
            # a page is written elsewhere before the next one is asked for
            await self._connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor = await self._connection.cursor(table.select(), service_id)
            while page := await cursor.fetch(size):
                yield [OrleansRow(**dict(record)) for record in page]


@asynccontextmanager
async def orleans_database(url: str) -> AsyncGenerator[OrleansDatabase]:
    """Connect, and say in one clear line what goes wrong with the database inside the block."""
    address = read_orleans_url(url)
    try:
        connection = await _connect(address)
        try:
            yield OrleansDatabase(connection, address.printable)
        finally:
            await connection.close(timeout=CONNECT_S)
    except BrokenPipeError:  # of the output, not of the database: asyncpg has an error of its own for that
        raise
    except TROUBLE as error:
        raise not_taken(error, address.printable) from error


def read_orleans_url(url: str) -> PostgresAddress:
    """BadStoreUrl, whose text never holds a password."""
    if url.partition("://")[0].lower() not in ("postgresql", "postgres"):
        raise BadStoreUrl(
            "Orleans' database is named as a URL, postgresql://user:password@host:5432/database, not as a"
            " connection string of .NET"
        )
    address = read_address(url)
    if address.schema != SCHEMA_DEFAULT:
        raise BadStoreUrl("the schema of Orleans' table is named with --orleans-schema, not in the URL")
    return address


async def _connect(address: PostgresAddress) -> Connection:
    # None would override what the driver's URL and environment say
    named: dict[str, Any] = {
        "host": [host for host, _ in address.hosts] or None,
        "port": [port for _, port in address.hosts] or None,
        "user": address.user,
        "password": address.password,
        "database": address.database,
    }
    connection: Connection = await asyncpg.connect(
        address.driver_url,
        timeout=CONNECT_S,
        command_timeout=ANSWER_S,
        **{name: value for name, value in named.items() if value is not None},
    )
    return connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
