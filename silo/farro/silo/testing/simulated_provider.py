"""The way of one simulated process to the store and back; see :mod:`farro.silo.testing.simulated_store`."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from farro.client.identity import partition_of
from farro.providers.errors import OutcomeUnknown, StoreError, Unavailable
from farro.providers.members import Members, PartitionRow, SiloRow
from farro.providers.memory import MemoryProvider
from farro.providers.memory_members import MemoryMembers
from farro.providers.memory_tables import PARTITIONS
from farro.providers.rows import Commit, GrainRow, Verdict
from farro.silo.testing.faulty_members import FaultyMembers
from farro.silo.testing.faulty_provider import Fault, FaultyProvider
from farro.silo.testing.simulated_store import SimulatedStore, Straggler, answer_of
from farro.silo.testing.simulated_time import SimulatedLoop

T = TypeVar("T")

READS = frozenset(
    (
        "load", "reminder", "reminders_of", "poll", "list_reminders", "count_reminders", "events", "outbox",
        "stream_heads", "watermarks", "unpollable", "answer_to", "is_held", "cluster", "silos",
    )
)  # fmt: skip
REFUSED_US = 500
"""How long it takes to hear that nobody is there."""


@dataclass(slots=True)
class StoreTrouble:
    """How often a request of one process meets a fault, and how long it takes.  Durations in microseconds."""

    chances: dict[Fault, float] = field(default_factory=dict[Fault, float])
    delay_us: tuple[int, int] = (200, 2_000)  # one way, even between the two
    slow: float = 0.0  # the chance that a way takes up to ``slow_us`` instead
    slow_us: int = 2_000_000
    late_us: int = 3_000_000  # how late a straggler may be


class SimulatedProvider(FaultyProvider):
    """The :class:`~farro.providers.contracts.Provider` of one process.  ``trouble`` may change."""

    inner: MemoryProvider

    def __init__(self, store: SimulatedStore, loop: SimulatedLoop) -> None:
        super().__init__(MemoryProvider(store.memory))
        self.trouble = StoreTrouble()
        self.reachable = True
        self.joined: list[int] = []  # as the store has it: an answer may have been lost
        self._store = store
        self._loop = loop
        self._handles: list[MemoryMembers] = [self.inner]
        self._locks: dict[int, MemoryMembers] = {}  # of this process, held or to be taken again
        store.drop_sessions.append(self.drop_locks)
        self._through = partial(self._request, self.inner)  # type: ignore[method-assign]
        self._pass = self._through

    def members(self) -> Members:
        handle = self.inner.members()
        self._handles.append(handle)
        return _SimulatedMembers(self, handle)

    # ---- locks

    def drop_locks(self) -> None:
        """The sessions of the process end."""
        locks = self._store.service.locks
        for number, holder in list(locks.items()):
            if any(holder is handle for handle in self._handles):
                self._locks[number] = locks.pop(number)  # type: ignore[assignment]

    def forget_locks(self) -> None:
        """The process is no more: nobody takes its locks again."""
        self.drop_locks()
        self._locks.clear()

    def _lock_again(self, handle: MemoryMembers) -> None:
        for number, holder in list(self._locks.items()):
            if holder is handle:
                self._store.service.locks.setdefault(number, self._locks.pop(number))

    # ---- requests

    async def open(self, now: int) -> Any:
        return await self._request(self.inner, "open", lambda: self.inner.open(now))

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        self.batches.append(len(batch))
        members = tuple(batch)
        partitions = frozenset(member.partition for member in members)

        async def at_store() -> list[Verdict]:
            return self._store.commit(members, owner, now)

        return await self._request(self.inner, "commit", at_store, partitions)

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        asked = tuple(grains)
        partitions = frozenset(partition_of(*grain, PARTITIONS) for grain in asked)

        async def at_store() -> list[GrainRow | None]:
            self._store.land(partitions)
            return await self.inner.load(asked)

        return await self._request(self.inner, "load", at_store)

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        return await self.take_by(self.inner, number, partitions, now, epochs)

    async def take_by(
        self,
        handle: MemoryMembers,
        number: int,
        partitions: Sequence[int],
        now: int,
        epochs: Sequence[int] | None,
    ) -> list[PartitionRow]:
        asked, expected = tuple(partitions), None if epochs is None else tuple(epochs)

        async def at_store() -> list[PartitionRow]:
            if self._store.simulation.random.random() < 0.5:
                self._store.land(frozenset(asked))
            return self._store.take(handle, number, asked, now, expected)

        return await self._request(handle, "take", at_store)

    async def renew_by(self, handle: MemoryMembers, number: int, now: int, load: int) -> int | None:
        async def at_store() -> int | None:
            answer = await handle.renew(number, now, load)
            if answer is not None:
                self._store.renewed.setdefault(number, []).append(self._store.simulation.wall_us)
            self._store.sign(number, now)
            return answer

        return await self._request(handle, "renew", at_store)

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        return await self.renew_by(self.inner, number, now, load)

    async def store_time_by(self, handle: MemoryMembers) -> int | None:
        store = self._store
        if not store.has_clock:
            return None

        async def at_store() -> int:
            return store.simulation.wall_us

        return await self._request(handle, "store_time", at_store)

    async def store_time(self) -> int | None:
        return await self.store_time_by(self.inner)

    async def _request(
        self,
        handle: MemoryMembers,
        verb: str,
        act: Callable[[], Awaitable[T]],
        partitions: frozenset[int] = frozenset(),
    ) -> T:
        self.calls[verb] += 1
        answer: asyncio.Future[T] = self._loop.create_future()
        request = _Request(self._store, self, self._loop, handle, verb, act, partitions, answer)
        request.leave()
        return await answer


class _Request:
    """One request on its way to the store and back."""

    __slots__ = (
        "_act",
        "_answer",
        "_fault",
        "_handle",
        "_loop",
        "_partitions",
        "_provider",
        "_store",
        "_verb",
    )

    def __init__(
        self,
        store: SimulatedStore,
        provider: SimulatedProvider,
        loop: SimulatedLoop,
        handle: MemoryMembers,
        verb: str,
        act: Callable[[], Awaitable[Any]],
        partitions: frozenset[int],
        answer: asyncio.Future[Any],
    ) -> None:
        self._store = store
        self._provider = provider
        self._loop = loop
        self._handle = handle
        self._verb = verb
        self._act = act
        self._partitions = partitions
        self._answer = answer
        self._fault: Fault | None = None

    def leave(self) -> None:
        simulation, trouble = self._store.simulation, self._provider.trouble
        if not self._connected:
            simulation.after(REFUSED_US, self._refuse)
            return
        dice = simulation.random.random() if trouble.chances else 1.0
        for fault, chance in trouble.chances.items():
            dice -= chance
            if dice < 0:
                self._fault = fault
                break
        simulation.after(self._way(), self._arrive)

    @property
    def _connected(self) -> bool:
        return self._provider.reachable and not self._store.down

    def _way(self) -> int:
        trouble, random = self._provider.trouble, self._store.simulation.random
        if trouble.slow and random.random() < trouble.slow:
            return int(random.random() * trouble.slow_us)
        low, high = trouble.delay_us
        return low + int(random.random() * (high - low))

    def _arrive(self) -> None:
        fault, simulation = self._fault, self._store.simulation
        if fault is Fault.UNAVAILABLE:
            self._refuse()
        elif not self._connected or fault is Fault.LOST_BEFORE:
            self._lose()
        elif fault is Fault.STRAGGLES and self._verb == "commit":
            straggler = Straggler(self._store, self._partitions, self._do)
            simulation.after(int(simulation.random.random() * self._provider.trouble.late_us), straggler.land)
            self._lose()
        else:
            try:
                answer = self._do()
            except StoreError as error:
                simulation.after(self._way(), partial(self._fail, error))
            else:
                simulation.after(self._way(), partial(self._come_back, answer))

    def _do(self) -> Any:
        store = self._store
        self._provider._lock_again(self._handle)
        if self._verb in CHANGES_OF_MEMBERS:
            before = {number: silo.status for number, silo in store.service.silos.items()}
            answer = answer_of(self._act())
            store.watch(before)
            return answer
        return answer_of(self._act())

    def _come_back(self, answer: Any) -> None:
        if not self._connected or self._fault in (Fault.LOST_AFTER, Fault.STRAGGLES):
            self._lose()
        else:
            self._loop.call_soon(_set_result, self._answer, answer)

    def _refuse(self) -> None:
        self._fail(Unavailable(f"{self._verb}: no connection to the store"))

    def _lose(self) -> None:
        """The connection broke while the request was out.  A read has changed nothing."""
        if self._verb in READS:
            self._refuse()
        else:
            self._fail(OutcomeUnknown(f"{self._verb}: the connection was lost before the answer"))

    def _fail(self, error: StoreError) -> None:
        self._loop.call_soon(_set_error, self._answer, error)


CHANGES_OF_MEMBERS = frozenset(("join", "set_status", "leave", "mark_dead"))


def _set_result(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _set_error(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class _SimulatedMembers(FaultyMembers):
    """The verbs of membership on a connection of their own."""

    def __init__(self, provider: SimulatedProvider, handle: MemoryMembers) -> None:
        super().__init__(handle, partial(provider._request, handle))
        self._provider = provider
        self._handle = handle

    async def join(self, address: str, now: int) -> SiloRow:
        async def at_store() -> SiloRow:
            row = await self._handle.join(address, now)
            self._provider.joined.append(row.number)
            return row

        return await self._provider._request(self._handle, "join", at_store)

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        store = self._provider._store
        sent_at = store.simulation.wall_us
        view = await self._provider.renew_by(self._handle, number, now, load)
        if view is not None:
            store.acknowledged.setdefault(number, []).append(sent_at)
        return view

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        return await self._provider.take_by(self._handle, number, partitions, now, epochs)

    async def store_time(self) -> int | None:
        return await self._provider.store_time_by(self._handle)
