"""The verbs of membership on an SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from farro.providers.errors import Unavailable
from farro.providers.members import ClusterRows, PartitionRow, SiloRow, SiloStatus
from farro.providers.sqlite import membership
from farro.providers.sqlite.membership import Service
from farro.providers.sqlite.opened import prepare_members
from farro.providers.sqlite.silo_locks import SiloLocks
from farro.providers.sqlite.writer import Writer

Result = TypeVar("Result")


class MemberVerbs(ABC):
    """See :class:`farro.providers.members.Members`.  How a function reaches a connection is left open."""

    def __init__(self, database: Path, service: Service) -> None:
        self._database = database
        self._service = service
        self._silo_locks = SiloLocks(database, service.service_id)

    @abstractmethod
    async def run_in_writer(
        self, job: Callable[[sqlite3.Connection], Result], *, look_again: bool = False
    ) -> Result:
        """Run ``job``, which writes, while no other process does.  StoreChanged: see Writer.run."""

    @abstractmethod
    async def look_in_writer(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run ``job``, which writes nothing, after all that was begun before, where writing is allowed."""

    @abstractmethod
    async def look(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run ``job``, which only reads."""

    async def join(self, address: str, now: int) -> SiloRow:
        def job(connection: sqlite3.Connection) -> SiloRow:
            taken: list[int] = []

            def lock(number: int) -> bool:
                if self._silo_locks.take(number):
                    taken.append(number)
                return bool(taken)

            try:
                silo = membership.join(connection, self._service, address, now, lock)
            except BaseException:
                for number in taken:
                    self._silo_locks.let_go(number)
                raise
            self._silo_locks.remove_all_but(membership.member_numbers(connection, self._service))
            return silo

        return await self.run_in_writer(job)

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        return await self.run_in_writer(
            lambda connection: membership.renew(connection, self._service, number, now, load), look_again=True
        )

    async def store_time(self) -> int | None:
        return None  # the file is on this machine

    async def set_status(self, number: int, status: SiloStatus, now: int) -> bool:
        return await self.run_in_writer(
            lambda connection: membership.set_status(connection, self._service, number, status, now)
        )

    async def leave(self, number: int, now: int) -> None:
        await self.run_in_writer(lambda connection: membership.leave(connection, self._service, number, now))

    async def mark_dead(self, number: int, renewals: int, now: int) -> bool:
        return await self.run_in_writer(
            lambda connection: membership.mark_dead(connection, self._service, number, renewals, now)
        )

    async def is_held(self, number: int) -> bool:
        return await self.look_in_writer(lambda _: self._silo_locks.is_held(number))

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        return await self.run_in_writer(
            lambda connection: membership.take(connection, self._service, number, partitions, now, epochs)
        )

    async def release(self, number: int, partitions: Sequence[int], now: int) -> None:
        await self.run_in_writer(
            lambda connection: membership.release(connection, self._service, number, partitions, now)
        )

    async def silos(self) -> list[SiloRow]:
        return await self.look(lambda connection: membership.silos(connection, self._service))

    async def cluster(self) -> ClusterRows:
        return await self.look(lambda connection: membership.cluster(connection, self._service))


class SqliteMembers(MemberVerbs):
    """A handle with a connection of its own, opened by its first verb.  Closed, it stays so."""

    def __init__(self, database: Path, service: Service, busy_timeout_s: float) -> None:
        super().__init__(database, service)
        self._busy_timeout_s = busy_timeout_s
        self._opening = asyncio.Lock()
        self._writer: Writer | None = None
        self._closed = False

    async def run_in_writer(
        self, job: Callable[[sqlite3.Connection], Result], *, look_again: bool = False
    ) -> Result:
        return await (await self._opened()).run(job, look_again=look_again)

    async def look_in_writer(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        return await (await self._opened()).look(job)

    async def look(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        return await (await self._opened()).look(job)

    async def _opened(self) -> Writer:
        async with self._opening:
            if self._closed:
                raise Unavailable(f"{self._service.url} is not open")
            if self._writer is None:
                writer = Writer(self._database, self._service.url, self._busy_timeout_s)
                await writer.open("rw", lambda connection: prepare_members(connection, self._service))
                self._writer = writer
            return self._writer

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            try:
                if self._writer is not None:
                    await self._writer.close()
            finally:
                self._silo_locks.close()
