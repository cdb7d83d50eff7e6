"""The verbs of membership in SQL, and the handle that a heartbeat uses beside the provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from farro.providers.checks import is_storable
from farro.providers.errors import StoreError, StoreMissing, Unavailable
from farro.providers.members import ClusterRows, PartitionRow, SiloRow, SiloStatus
from farro.providers.postgres.address import PostgresAddress
from farro.providers.postgres.connecting import Connection, Connector, Linked
from farro.providers.postgres.failures import TROUBLE, is_worth_another_try, not_taken
from farro.providers.postgres.link import Bounds, Link
from farro.providers.postgres.sql import queries

Result = TypeVar("Result")

FORGET_AFTER_US = 86_400_000_000
TRIES_MAX = 3  # of one verb that a deadlock got in the way of
HOLDER_END_MS = 300  # how long the process of a lost connection gets to let go of its locks

# A silo's lease is 4 s and it renews every second: a connection that hangs must cost one renewal, not two.
HEARTBEAT = Bounds(
    lock_timeout_ms=500,
    connect_s=1.0,
    patience_s=0.0,
    answer_s=1.0,
    begin_s=1.0,
    needs_certainty=False,
)


class MemberVerbs:
    """See :class:`farro.providers.members.Members`.

    The silos that join here have their locks on the connection of ``link``; whoever makes it has it call
    :meth:`hold_locks` before everything else.
    """

    def __init__(self, address: PostgresAddress, service_id: str) -> None:
        self._address = address
        self._url = address.printable
        self._service_id = service_id
        self._queries = queries(address.schema)
        self._lock_class = address.lock_class(service_id)
        self._silo_locks = address.silo_locks(service_id)
        self._joined: set[int] = set()
        self._held_by: Linked | None = None  # the last connection that had the locks of all of them

    def _control(self) -> tuple[Link, int]:
        """The connection of membership, and how many partitions there are.  Unavailable when not open."""
        raise NotImplementedError

    async def _run(self, job: Callable[[Connection], Awaitable[Result]]) -> Result:
        link, _ = self._control()
        tries = TRIES_MAX
        while True:
            tries -= 1
            try:
                return await link.run(job)
            except TROUBLE as error:
                if not (tries and is_worth_another_try(error)):
                    raise not_taken(error, self._url) from error

    async def _value(self, name: str, *values: Any) -> Any:
        return await self._run(lambda connection: connection.fetchval(self._queries[name], *values))

    async def hold_locks(self, linked: Linked) -> None:
        """Have the locks of the joined silos on this connection.

        The process of the connection before may be there still, and hold them: it is told to end.  As long as
        it does not, it keeps them for the silos, and the next call tries again.
        """
        if linked is self._held_by:
            return
        connection = linked.connection
        for attempt in range(2):
            for number in sorted(self._joined):
                if not await connection.fetchval(self._queries["hold_silo_lock"], self._silo_locks + number):
                    break
            else:
                self._held_by = linked
                return
            if attempt == 0 and self._held_by is not None:
                before = self._held_by.backend
                await connection.fetchval(
                    self._queries["end_straggler"], before.pid, before.started_at, HOLDER_END_MS
                )

    async def join(self, address: str, now: int) -> SiloRow:
        if not is_storable(address):
            raise StoreError(f"the address {address!r:.100} has a NUL or a lone surrogate")
        number = await self._value(
            "join", self._service_id, self._silo_locks, address, now, now - FORGET_AFTER_US
        )
        if number is None:
            raise StoreMissing(f"{self._url}: the service {self._service_id!r:.100} is gone: open it again")
        self._joined.add(number)
        return SiloRow(number, address, started_at=now, renewed_at=now, left_at=None)

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        view: int | None = await self._value("renew", self._service_id, number, now, load)
        return view

    async def store_time(self) -> int:
        at: int = await self._value("store_time")
        return at

    async def set_status(self, number: int, status: SiloStatus, now: int) -> bool:
        return bool(await self._value("set_status", self._service_id, number, status.value, now))

    async def leave(self, number: int, now: int) -> None:
        await self._end(number, SiloStatus.LEFT, None, now)

    async def mark_dead(self, number: int, renewals: int, now: int) -> bool:
        return await self._end(number, SiloStatus.DEAD, renewals, now)

    async def _end(self, number: int, status: SiloStatus, renewals: int | None, now: int) -> bool:
        values = (self._service_id, self._lock_class, number, status.value, renewals, now)
        return bool(await self._value("end_silo", *values))

    async def is_held(self, number: int) -> bool:
        return bool(await self._value("is_silo_locked", self._silo_locks + number))

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        _, count = self._control()
        wanted, expected = sorted(set(partitions)), None  # the order in which everybody takes their locks
        if wanted and not 0 <= wanted[0] <= wanted[-1] < count:
            raise StoreError(f"partitions go from 0 to {count - 1}, not from {wanted[0]} to {wanted[-1]}")
        if epochs is not None:
            pairs = dict(zip(partitions, epochs, strict=True))
            expected = [pairs[partition] for partition in wanted]
        text = self._queries["take"]
        values = (self._service_id, self._lock_class, number, now, wanted, expected)
        rows = await self._run(lambda connection: connection.fetch(text, *values))
        return [PartitionRow(*row) for row in rows]

    async def release(self, number: int, partitions: Sequence[int], now: int) -> None:
        _, count = self._control()
        given = sorted({partition for partition in partitions if 0 <= partition < count})
        await self._value("release", self._service_id, self._lock_class, number, given, now)

    async def silos(self) -> list[SiloRow]:
        return silo_rows(
            await self._run(lambda connection: connection.fetch(self._queries["silos"], self._service_id))
        )

    async def cluster(self) -> ClusterRows:
        text = self._queries["cluster"]
        return self.cluster_rows(
            await self._run(lambda connection: connection.fetchrow(text, self._service_id))
        )

    def cluster_rows(self, record: Any) -> ClusterRows:
        if record is None:
            raise StoreMissing(f"{self._url}: the service {self._service_id!r:.100} is gone: open it again")
        return ClusterRows(
            record["view"],
            tuple(silo_rows(record["silos"])),
            tuple(record["owners"]),
            tuple(record["epochs"]),
        )


class PostgresMembers(MemberVerbs):
    """The handle: a direct connection of its own, made at the first verb, for one event loop in any thread.

    Every call ends within HEARTBEAT's bounds, whatever the server does; a connection that hangs is given up
    and replaced by the next call.
    """

    def __init__(
        self, connector: Connector, service_id: str, partitions: int, bounds: Bounds = HEARTBEAT
    ) -> None:
        super().__init__(connector.address, service_id)
        self._partitions = partitions
        self._link = Link(connector, self._lock_class, bounds, self.hold_locks)

    def _control(self) -> tuple[Link, int]:
        if self._link.is_closed:
            raise Unavailable(f"{self._url} is not open")
        return self._link, self._partitions

    async def close(self) -> None:
        await self._link.close()


def silo_rows(records: Sequence[Any]) -> list[SiloRow]:
    return [
        SiloRow(number, address, started_at, renewed_at, left_at, SiloStatus(status), renewals, load)
        for number, address, started_at, renewed_at, left_at, status, renewals, load in records
    ]
