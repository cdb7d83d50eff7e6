"""The verbs of membership on a store in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

from farro.providers.checks import is_storable
from farro.providers.errors import StoreError, Unavailable
from farro.providers.members import ClusterRows, PartitionRow, SiloRow, SiloStatus
from farro.providers.memory_tables import PARTITIONS, Partition, Service, sign_of_life

FORGET_AFTER_US = 86_400_000_000


class MemoryMembers:
    """See :class:`farro.providers.members.Members`.

    A heartbeat calls from a thread of its own, so the rows of membership have a lock; no verb waits in it.
    """

    def __init__(self, service: Service | None = None, *, read_only: bool = False, url: str) -> None:
        self._open: Service | None = service
        self._read_only = read_only
        self._url = url

    def _rows(self) -> Service:
        if self._open is None:
            raise Unavailable(f"{self._url} is not open")
        return self._open

    def _writable(self) -> Service:
        service = self._rows()
        with service.membership:
            if self._read_only:
                raise Unavailable(f"{self._url} is opened for reading only")
            return service

    async def close(self) -> None:
        self.drop_locks()
        self._open = None

    def drop_locks(self) -> None:
        """What the end of a process does to the locks of its silos."""
        if self._open is not None:
            held = self._open.locks
            for number in [number for number, holder in held.items() if holder is self]:
                del held[number]

    async def join(self, address: str, now: int) -> SiloRow:
        service = self._writable()
        with service.membership:
            if not is_storable(address):
                raise StoreError(f"the address {address!r:.100} has a NUL or a lone surrogate")
            for row in list(service.silos.values()):
                if row.left_at is not None and row.left_at < now - FORGET_AFTER_US:
                    del service.silos[row.number]
            service.last_number += 1
            row = SiloRow(service.last_number, address, started_at=now, renewed_at=now, left_at=None)
            service.silos[row.number] = row
            service.locks[row.number] = self
            service.view += 1
            return row

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        service = self._writable()
        with service.membership:
            if not sign_of_life(service, number, now):
                return None
            silo = service.silos[number]
            service.silos[number] = replace(silo, renewals=silo.renewals + 1, load=load)
            return service.view

    async def store_time(self) -> int | None:
        return None

    async def set_status(self, number: int, status: SiloStatus, now: int) -> bool:
        service = self._writable()
        with service.membership:
            silo = service.silos.get(number)
            if silo is None or not silo.status.is_member:
                return False
            if silo.status is not status:
                service.silos[number] = replace(silo, status=status, renewed_at=now)
                service.view += 1
            return True

    async def leave(self, number: int, now: int) -> None:
        service = self._writable()
        with service.membership:
            silo = service.silos.get(number)
            if silo is not None and silo.status.is_member:
                self._end(service, replace(silo, status=SiloStatus.LEFT, renewed_at=now, left_at=now))

    async def mark_dead(self, number: int, renewals: int, now: int) -> bool:
        service = self._writable()
        with service.membership:
            silo = service.silos.get(number)
            if silo is None or not silo.status.is_member or silo.renewals != renewals:
                return False
            self._end(service, replace(silo, status=SiloStatus.DEAD, left_at=now))
            return True

    def _end(self, service: Service, silo: SiloRow) -> None:
        service.silos[silo.number] = silo
        for partition in service.partitions.values():
            if partition.owner == silo.number:
                partition.owner, partition.alive_at = None, silo.renewed_at
        service.view += 1

    async def is_held(self, number: int) -> bool:
        return number in self._writable().locks

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        service = self._writable()
        with service.membership:
            silo = service.silos.get(number)
            if silo is None or not silo.status.is_member:
                raise StoreError(f"silo {number} is not a member: join first")
            seen = repeat(None) if epochs is None else epochs
            wanted = sorted(set(zip(partitions, seen, strict=False)))
            if wanted and not 0 <= wanted[0][0] <= wanted[-1][0] < PARTITIONS:
                raise StoreError(
                    f"partitions go from 0 to {PARTITIONS - 1}, asked for {wanted[0][0]} to {wanted[-1][0]}"
                )
            taken: list[PartitionRow] = []
            for index, epoch in wanted:
                partition = service.partitions.setdefault(index, Partition())
                if epoch is not None and (partition.epoch != epoch or partition.owner not in (None, number)):
                    continue
                owner = None if partition.owner is None else service.silos.get(partition.owner)
                alive_at = partition.alive_at if owner is None else owner.renewed_at
                partition.epoch += 1
                partition.owner = number
                taken.append(PartitionRow(index, partition.epoch, alive_at))
            sign_of_life(service, number, now)
            service.view += bool(taken)
            return taken

    async def release(self, number: int, partitions: Sequence[int], now: int) -> None:
        service = self._writable()
        with service.membership:
            freed = [
                partition
                for index in set(partitions)
                if (partition := service.partitions.get(index)) is not None and partition.owner == number
            ]
            for partition in freed:
                partition.owner, partition.alive_at = None, now
            service.view += bool(freed)

    async def silos(self) -> list[SiloRow]:
        rows = self._rows().silos
        return [rows[number] for number in sorted(rows)]

    async def cluster(self) -> ClusterRows:
        service = self._rows()
        with service.membership:
            partitions = [service.partitions.get(index) or Partition() for index in range(PARTITIONS)]
            return ClusterRows(
                service.view,
                tuple(await self.silos()),
                tuple(each.owner or 0 for each in partitions),
                tuple(each.epoch for each in partitions),
            )
