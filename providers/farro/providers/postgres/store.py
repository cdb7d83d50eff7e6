"""The provider on PostgreSQL: which verb goes to which connection.

Reads go through a bounded pool, commits through the lanes, membership and take-overs through a connection of
their own, so that a sign of life never waits for a poll.  A heartbeat has its own handle beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from farro.providers.checks import is_storable
from farro.providers.errors import SchemaMismatch, StoreError, Unavailable
from farro.providers.members import ClusterRows, SiloRow
from farro.providers.postgres.address import PARTITIONS_DEFAULT, PostgresAddress, read_address
from farro.providers.postgres.committing import LOCK_TIMEOUT_MS, Committing
from farro.providers.postgres.connecting import Connection, Connector
from farro.providers.postgres.failures import TROUBLE, not_taken
from farro.providers.postgres.link import Bounds, Link, closed
from farro.providers.postgres.membership import MemberVerbs, PostgresMembers, silo_rows
from farro.providers.postgres.migrating import Migrating
from farro.providers.postgres.pool import LOCK_TIMEOUT_MS as LONG_LOCK_TIMEOUT_MS
from farro.providers.postgres.pool import ReadPool
from farro.providers.postgres.reading import counting, grain, listing, poll_parameters, reminders
from farro.providers.postgres.self_test import self_test
from farro.providers.rows import (
    Commit,
    EventRow,
    GrainRow,
    OutboxRow,
    PollQuery,
    ReminderCount,
    ReminderFilter,
    ReminderRow,
    StoreInfo,
    Verdict,
)

CONTROL = Bounds(lock_timeout_ms=LONG_LOCK_TIMEOUT_MS)
COMMITS = Bounds(lock_timeout_ms=LOCK_TIMEOUT_MS)


@dataclass(frozen=True, slots=True)
class _Open:
    """What an open provider has; the last two are None when it only reads."""

    info: StoreInfo
    connector: Connector
    pool: ReadPool
    control: Link | None
    committing: Committing | None


class PostgresProvider(MemberVerbs):
    """A store in a schema of the database that ``url`` names: see docs/how-to/set-up-postgresql.md.

    Raises BadStoreUrl.  Its repr and its errors never contain the password.
    """

    def __init__(
        self, url: str | PostgresAddress, *, service_id: str = "default", read_only: bool = False
    ) -> None:
        super().__init__(read_address(url) if isinstance(url, str) else url, service_id)
        self._read_only = read_only
        self._closing = AsyncExitStack()
        self._opened: _Open | None = None

    def __repr__(self) -> str:
        return f"PostgresProvider({self._url!r}, service_id={self._service_id!r})"

    @property
    def service_id(self) -> str:
        return self._service_id

    @property
    def lanes(self) -> int:
        """How many commits are at the store at once, at most."""
        return self._address.lanes

    @property
    def lane_depth(self) -> int:
        return 1

    def lane_of(self, partition: int) -> int:
        """Members of one lane make a batch of one round trip; see committing.py."""
        return partition % self._address.lanes

    async def open(self, now: int) -> StoreInfo:
        if self._opened is None:
            if not is_storable(self._service_id):
                raise StoreError(f"the service id {self._service_id!r:.100} has a NUL or a lone surrogate")
            async with AsyncExitStack() as closing:
                try:
                    self._opened = await self._connect(closing, now)
                except TROUBLE as error:
                    raise not_taken(error, self._url) from error
                self._closing = closing.pop_all()
        return self._opened.info

    async def _connect(self, closing: AsyncExitStack, now: int) -> _Open:
        connector = Connector(self._address, read_only=self._read_only)
        control = Link(connector, self._lock_class, CONTROL, self.hold_locks)
        closing.push_async_callback(control.close)
        first = await control.open()
        migrating = Migrating(first.connection, self._url, self._address.schema)
        if self._read_only:
            version, partitions = await migrating.check_for_reading(self._service_id)
            await control.close()
        else:
            wanted = self._address.partitions
            version, partitions = await migrating.migrate(self._service_id, wanted or PARTITIONS_DEFAULT, now)
            if wanted not in (None, partitions):
                raise SchemaMismatch(
                    f"{self._url}: the service {self._service_id!r:.100} was created with {partitions}"
                    f" partitions, which stay; the URL asks for {wanted}: leave the option out"
                )
        pool = ReadPool(connector, self._address.pool)
        closing.push_async_callback(pool.close)
        await pool.open()
        info = StoreInfo(url=self._url, schema_version=version, partitions=partitions)
        if self._read_only:
            return _Open(info, connector, pool, None, None)
        links = [Link(connector, self._lock_class, COMMITS) for _ in range(self._address.lanes)]
        for link in links:
            closing.push_async_callback(link.close)
        linked = [await link.open() for link in links]
        await self_test(
            self._url,
            self._address.schema,
            self._service_id,
            self._lock_class,
            partitions,
            first,
            linked[0],
        )
        committing = Committing(
            links, self._url, self._address.schema, self._service_id, self._lock_class, partitions
        )
        return _Open(info, connector, pool, control, committing)

    async def close(self) -> None:
        self._opened = None
        await self._closing.pop_all().aclose()
        self._joined.clear()

    def members(self) -> PostgresMembers:
        self._writable()
        opened = self._is_open()
        return PostgresMembers(opened.connector, self._service_id, opened.info.partitions)

    async def pending_migrations(self) -> list[str]:
        """What opening for writing would apply, such as ``0002_commit``, in order.  Changes nothing.

        Asked of a store that is open, closed, or in use by silos.  StoreMissing: the schema is not farro's or
        is not there; SchemaMismatch: a newer farro's, tampered with, or another program's.
        """
        try:
            linked = await Connector(self._address, read_only=True).connect(LONG_LOCK_TIMEOUT_MS)
            try:
                migrating = Migrating(linked.connection, self._url, self._address.schema)
                return await migrating.names_of_pending()
            finally:
                await closed(linked.connection)
        except TROUBLE as error:
            raise not_taken(error, self._url) from error

    def _is_open(self) -> _Open:
        if self._opened is None:
            raise Unavailable(f"{self._url} is not open")
        return self._opened

    def _writable(self) -> tuple[Link, Committing]:
        opened = self._is_open()
        if opened.control is None or opened.committing is None:
            raise Unavailable(f"{self._url} is opened for reading only")
        return opened.control, opened.committing

    async def _fetch(self, name: str, *values: Any) -> list[Any]:
        return await self._fetch_text(self._queries[name], values)

    async def _fetch_text(self, text: str, values: Sequence[Any]) -> list[Any]:
        return await self._is_open().pool.read(lambda connection: connection.fetch(text, *values))

    def _control(self) -> tuple[Link, int]:
        control, _ = self._writable()
        return control, self._is_open().info.partitions

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        """As the contract says; what it waits for is in :meth:`Committing.wait_for`."""
        opened = self._is_open()
        if opened.committing is not None:
            await opened.committing.wait_for(grains)
        asked = [one for one in grains if all(map(is_storable, one))]
        rows = await self._fetch("load", self._service_id, [t for t, _ in asked], [k for _, k in asked])
        found = dict(zip(asked, map(grain, rows), strict=True))
        return [found.get(one) for one in grains]

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        _, committing = self._writable()
        return await committing.commit(batch, owner, now) if batch else []

    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None:
        if not all(map(is_storable, (grain_type, grain_key, name))):
            return None
        rows = await self._fetch("reminder", self._service_id, grain_type, grain_key, name)
        return ReminderRow(*rows[0]) if rows else None

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]:
        if not is_storable(grain_type) or not is_storable(grain_key):
            return []
        return reminders(await self._fetch("reminders_of", self._service_id, grain_type, grain_key))

    async def poll(self, queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
        async def ask(connection: Connection) -> list[list[ReminderRow]]:
            return [
                reminders(await connection.fetch(text, *poll_parameters(self._service_id, query)))
                for query in queries
            ]

        async def ask_at_once(connection: Connection) -> list[list[ReminderRow]]:
            # one snapshot, so that a row that changes its priority is not seen twice
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await ask(connection)

        text = self._queries["poll"]
        if not queries:
            self._is_open()
            return []
        return await self._is_open().pool.read(ask if len(queries) == 1 else ask_at_once)

    async def list_reminders(
        self, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None = None
    ) -> list[ReminderRow]:
        filters, values = listing(self._service_id, where, limit, after)
        text = self._queries["list_reminders"].replace("{filters}", filters)
        return reminders(await self._fetch_text(text, values))

    async def count_reminders(self, where: ReminderFilter) -> list[ReminderCount]:
        filters, values = counting(self._service_id, where)
        text = self._queries["count_reminders"].replace("{filters}", filters)
        return [ReminderCount(*row) for row in await self._fetch_text(text, values)]

    async def events(self, partition: int, stream: str, after: int, limit: int) -> list[tuple[int, EventRow]]:
        if not is_storable(stream):
            return []
        rows = await self._fetch("events", self._service_id, partition, stream, after, max(limit, 0))
        return [(number, EventRow(*rest)) for number, *rest in rows]

    async def outbox(self, partition: int, after: int, limit: int) -> list[tuple[int, OutboxRow]]:
        rows = await self._fetch("outbox", self._service_id, partition, after, max(limit, 0))
        return [(number, OutboxRow(*rest)) for number, *rest in rows]

    async def stream_heads(self, stream: str) -> list[tuple[int, int]]:
        if not is_storable(stream):
            return []
        rows = await self._fetch("stream_heads", self._service_id, stream)
        return [(partition, sequence) for partition, sequence in rows]

    async def trim_events(self, stream: str, partition: int, until: int) -> int:
        self._writable()
        if not is_storable(stream):
            return 0
        text, values = self._queries["trim_events"], (self._service_id, stream, partition, until)
        return int(await self._is_open().pool.change(lambda connection: connection.fetchval(text, *values)))

    async def watermarks(self, grain_type: str, grain_key: str) -> dict[str, int]:
        if not is_storable(grain_type) or not is_storable(grain_key):
            return {}
        rows = await self._fetch("watermarks", self._service_id, grain_type, grain_key)
        return {source: position for source, position in rows}

    async def unpollable(self, limit: int) -> list[ReminderRow]:
        return reminders(await self._fetch("unpollable", self._service_id, max(limit, 0)))

    async def answer_to(self, grain_type: str, grain_key: str, request_id: str) -> bytes | None:
        if not all(map(is_storable, (grain_type, grain_key, request_id))):
            return None
        rows = await self._fetch("answer_to", self._service_id, grain_type, grain_key, request_id)
        return rows[0]["answer"] if rows else None

    async def forget_requests(self, before: int, limit: int) -> int:
        self._writable()
        text, values = self._queries["forget_requests"], (self._service_id, before, max(limit, 0))
        return int(await self._is_open().pool.change(lambda connection: connection.fetchval(text, *values)))

    async def silos(self) -> list[SiloRow]:
        return silo_rows(await self._fetch("silos", self._service_id))

    async def cluster(self) -> ClusterRows:
        rows = await self._fetch("cluster", self._service_id)
        return self.cluster_rows(rows[0] if rows else None)
