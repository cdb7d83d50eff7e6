"""The membership verbs of a faulty provider: its own, and those of the handle it gives to a heartbeat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from farro.providers.members import ClusterRows, Members, PartitionRow, SiloRow, SiloStatus

T = TypeVar("T")


class Through(Protocol):
    """The way of one call of a verb to the store and back."""

    async def __call__(self, verb: str, act: Callable[[], Awaitable[T]], /) -> T: ...


class FaultyMembers:
    """``inner`` with every verb but ``close`` passed through the faults of ``through``.

    Closing works whatever is ordered: the locks of a process go with it.
    """

    def __init__(self, inner: Members, through: Through) -> None:
        self._inner = inner
        self._pass = through

    async def join(self, address: str, now: int) -> SiloRow:
        return await self._pass("join", lambda: self._inner.join(address, now))

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        return await self._pass("renew", lambda: self._inner.renew(number, now, load))

    async def store_time(self) -> int | None:
        return await self._pass("store_time", self._inner.store_time)

    async def set_status(self, number: int, status: SiloStatus, now: int) -> bool:
        return await self._pass("set_status", lambda: self._inner.set_status(number, status, now))

    async def leave(self, number: int, now: int) -> None:
        await self._pass("leave", lambda: self._inner.leave(number, now))

    async def mark_dead(self, number: int, renewals: int, now: int) -> bool:
        return await self._pass("mark_dead", lambda: self._inner.mark_dead(number, renewals, now))

    async def is_held(self, number: int) -> bool:
        return await self._pass("is_held", lambda: self._inner.is_held(number))

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        return await self._pass("take", lambda: self._inner.take(number, partitions, now, epochs))

    async def release(self, number: int, partitions: Sequence[int], now: int) -> None:
        await self._pass("release", lambda: self._inner.release(number, partitions, now))

    async def cluster(self) -> ClusterRows:
        return await self._pass("cluster", self._inner.cluster)

    async def silos(self) -> list[SiloRow]:
        return await self._pass("silos", self._inner.silos)

    async def close(self) -> None:
        await self._inner.close()
