"""Orleans' reminder table on a real PostgreSQL, filled as Orleans fills it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import asyncpg

from tests.support.servers import Server

TABLE = """
CREATE TABLE OrleansRemindersTable (
    ServiceId varchar(150) NOT NULL, GrainId varchar(150) NOT NULL, ReminderName varchar(150) NOT NULL,
    StartTime timestamptz(3) NOT NULL, Period bigint NOT NULL, GrainHash integer NOT NULL,
    Version integer NOT NULL,
    CONSTRAINT PK_RemindersTable_ServiceId_GrainId_ReminderName PRIMARY KEY (ServiceId, GrainId, ReminderName)
)"""
TABLE_BEFORE_3_6 = TABLE.replace("timestamptz(3)", "timestamp(3)").replace("Period bigint", "Period integer")
TABLE_QUOTED = """
CREATE TABLE app."OrleansRemindersTable" (
    "ServiceId" varchar(150), "GrainId" varchar(150), "ReminderName" varchar(150), "StartTime" timestamptz(3),
    "Period" bigint, "GrainHash" integer, "Version" integer
)"""
# as Orleans registers: it inserts, or moves what is there and raises the version
PUT = """
INSERT INTO OrleansRemindersTable (ServiceId, GrainId, ReminderName, StartTime, Period, GrainHash, Version)
VALUES ($1, $2, $3, $4, $5, $6, 0)
ON CONFLICT (ServiceId, GrainId, ReminderName) DO UPDATE SET
    StartTime = excluded.StartTime, Period = excluded.Period, GrainHash = excluded.GrainHash,
    Version = OrleansRemindersTable.Version + 1"""


@dataclass
class Orleans:
    """A database of its own, with the table and a few ways to fill it."""

    server: Server
    database: str

    @property
    def url(self) -> str:
        return f"postgresql://farro:secret-word@127.0.0.1:{self.server.port}/{self.database}"

    def run(self, work: Callable[[Any], Coroutine[Any, Any, Any]], database: str = "") -> Any:
        async def connected() -> Any:
            connection = await asyncpg.connect(
                host="127.0.0.1", port=self.server.port, user="farro", database=database or self.database
            )
            try:
                return await work(connection)
            finally:
                await connection.close()

        return asyncio.run(connected())

    def execute(self, *statements: str) -> None:
        async def work(connection: Any) -> None:
            for statement in statements:
                await connection.execute(statement)

        self.run(work)

    def put(
        self, *rows: tuple[str, str, datetime, timedelta], service: str = "shop", zone: str = "UTC"
    ) -> None:
        """Register as Orleans does, in a session of that time zone."""

        async def work(connection: Any) -> None:
            await connection.execute(f"SET TIME ZONE '{zone}'")
            for number, (grain, name, start, period) in enumerate(rows):
                period_ms = period // timedelta(milliseconds=1)
                await connection.execute(PUT, service, grain, name, start, period_ms, -number)

        self.run(work)

    def columns(self) -> list[str]:
        wanted = "SELECT column_name FROM information_schema.columns WHERE lower(table_name) = $1 ORDER BY 1"
        return [row[0] for row in self.run(lambda each: each.fetch(wanted, "orleansreminderstable"))]

    def drop(self) -> None:
        self.run(lambda each: each.execute(f"DROP DATABASE {self.database} WITH (FORCE)"), "postgres")


_numbers = count(1)


def orleans_database(server: Server) -> Orleans:
    """A fresh database with an empty table."""
    made = Orleans(server, f"orleans_{next(_numbers)}")
    made.run(lambda connection: connection.execute(f"CREATE DATABASE {made.database}"), "postgres")
    made.execute(TABLE)
    return made
