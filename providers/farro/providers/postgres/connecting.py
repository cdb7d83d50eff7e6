"""New connections: how they are made, and the check that the server is still the one that was opened."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from farro.providers.errors import StoreChanged, StoreError, Unavailable
from farro.providers.postgres.address import PostgresAddress
from farro.providers.postgres.failures import TROUBLE, not_taken
from farro.providers.postgres.sql import queries

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_S = 5.0
ANSWER_S = 10.0  # the longest wait for any answer: longer than a lease, so that a fence decides before
CLOSE_S = 2.0
BACK_OFF_FIRST_S = 0.05
BACK_OFF_MAX_S = 1.0
RECONNECT_S = 3.0  # how long a commit waits for a server that is restarting

_SETTINGS = {
    "application_name": "farro",
    "jit": "off",  # every statement is short
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "10s",
    "plan_cache_mode": "force_custom_plan",  # a list of partitions is hashed only when its value is known
}


@dataclass(frozen=True, slots=True)
class Identity:
    """One history of one database: a promotion or a restore to an earlier point starts another timeline."""

    system: str
    timeline: str | None


@dataclass(frozen=True, slots=True)
class Backend:
    """The server's process behind a connection; process ids come again, the pair does not."""

    pid: int
    started_at: datetime


@dataclass(slots=True)
class Linked:
    """A connection that passed the check."""

    connection: Connection
    backend: Backend
    synchronous_commit: str


@dataclass(slots=True)
class Connector:
    """Makes connections to one server.  The first one tells which server that is.

    ``changed``: why no connection is made any more, or an empty text.
    """

    address: PostgresAddress
    read_only: bool = False
    identity: Identity | None = None
    changed: str = field(default="")

    @property
    def url(self) -> str:
        return self.address.printable

    def check_unchanged(self) -> None:
        """Raises StoreChanged once a connection has met another server."""
        if self.changed:
            raise StoreChanged(self.changed)

    async def connect(self, lock_timeout_ms: int, connect_s: float = CONNECT_S) -> Linked:
        """One try.  Unavailable, or StoreChanged and nothing else from then on."""
        self.check_unchanged()
        try:
            async with asyncio.timeout(connect_s):
                connection = await self._dial(lock_timeout_ms)
                try:
                    return await self._checked(connection)
                except BaseException:
                    connection.terminate()
                    raise
        except TimeoutError as error:
            raise Unavailable(f"{self.url} did not answer within {connect_s:g} s") from error
        except TROUBLE as error:
            raise not_taken(error, self.url) from error

    async def connect_patiently(
        self, lock_timeout_ms: int, connect_s: float = CONNECT_S, patience_s: float = RECONNECT_S
    ) -> Linked:
        """Tries again, further and further apart, while the server is away, for ``patience_s``."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + patience_s
        pause = BACK_OFF_FIRST_S
        while True:
            try:
                return await self.connect(lock_timeout_ms, connect_s)
            except Unavailable:
                if loop.time() + pause > give_up_at:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACK_OFF_MAX_S)

    async def _dial(self, lock_timeout_ms: int) -> Connection:
        address = self.address
        # None would override what the driver's URL and environment say
        named: dict[str, Any] = {
            "host": [host for host, _ in address.hosts] or None,
            "port": [port for _, port in address.hosts] or None,
            "user": address.user,
            "password": address.password,
            "database": address.database,
        }
        settings = {**_SETTINGS, "lock_timeout": str(lock_timeout_ms)}
        if self.read_only:
            settings["default_transaction_read_only"] = "on"
        connection: Connection = await asyncpg.connect(
            address.driver_url,
            timeout=CONNECT_S,
            command_timeout=ANSWER_S,
            server_settings=settings,
            **{name: value for name, value in named.items() if value is not None},
        )
        return connection

    async def _checked(self, connection: Connection) -> Linked:
        row = await connection.fetchrow(queries(self.address.schema)["who_answers"])
        assert row is not None
        if row["pid"] != connection.get_server_pid():
            raise StoreError(
                f"{self.url} leads through a connection pooler: locks and settings belong to a session, so"
                " give the address of the server itself"
            )
        if row["standby"] and not self.read_only:
            raise Unavailable(f"{self.url} is a standby that takes no writes: connect to the primary")
        identity = Identity(row["system"], row["timeline"])
        if self.identity is None:
            self.identity = identity
        elif identity != self.identity and not self.read_only:
            self.changed = (
                f"{self.url} is no longer the database that was opened (system {self.identity.system},"
                f" timeline {self.identity.timeline}; now {identity.system}, {identity.timeline}): it was"
                " promoted, restored or replaced; close the store, open it again and take the partitions anew"
            )
            self.check_unchanged()
        return Linked(connection, Backend(row["pid"], row["started_at"]), row["synchronous_commit"])
