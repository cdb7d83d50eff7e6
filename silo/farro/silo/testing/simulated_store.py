"""One store for several simulated processes, behind a connection that may be slow, cut or lying, and a log of
all it has committed.

The store itself is the memory provider and does each request at one instant, so it is always right.  What can
go wrong lies on the way to it and back, for each process by itself:

* a request takes its time, and so does its answer;
* it is refused (``Unavailable``: the store never heard of it), or its answer is lost (``OutcomeUnknown``);
* a *straggler*: a commit whose answer is ``OutcomeUnknown`` and that lands later.  As PostgreSQL's exclusive
  lock has it, never after the next ``load`` from its partition has begun; a ``take`` of the partition may come
  before it, and then the epoch refuses it;
* the process is cut off, or the database is away for all: then every session's locks are gone as well, and are
  taken again by the first request that comes through.

The log is the truth that the invariants are checked on: what was committed, when by the true time, by whom and
under which epoch, and every take-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from farro.client.identity import partition_of
from farro.providers.errors import OutcomeUnknown, StoreError, Unavailable
from farro.providers.members import Members, PartitionRow, SiloStatus
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.providers.memory_members import MemoryMembers
from farro.providers.memory_tables import PARTITIONS, Service
from farro.providers.rows import Commit, GrainRow, Outcome, ReminderRow, Verdict
from farro.silo.testing.faulty_members import FaultyMembers
from farro.silo.testing.faulty_provider import Fault, FaultyProvider
from farro.silo.testing.simulated_time import Simulation, SimulatedLoop

T = TypeVar("T")

READS = frozenset(
    (
        "load", "reminder", "reminders_of", "poll", "list_reminders", "count_reminders", "events", "outbox",
        "stream_heads", "watermarks", "unpollable", "answer_to", "is_held", "cluster", "silos",
    )
)  # fmt: skip
REFUSED_US = 500
"""How long it takes to hear that nobody is there."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One committed member.  ``at``: true wall time, microseconds.  ``settled``: the row that its settle
    consumed, as it was before."""

    at: int
    silo: int
    commit: Commit
    verdict: Verdict
    settled: ReminderRow | None


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition taken by a silo.  ``before``: who owned it until then, 0 nobody."""

    at: int
    silo: int
    partition: int
    epoch: int
    before: int
    previous_alive_at: int | None


@dataclass(frozen=True, slots=True)
class Member:
    """A silo that joined, or whose status has changed."""

    at: int
    silo: int
    status: SiloStatus


Entry = Committed | Taken | Member


@dataclass(slots=True)
class StoreTrouble:
    """How often a request of one process meets a fault, and how long it takes.  Durations in microseconds."""

    chances: dict[Fault, float] = field(default_factory=dict)
    delay_us: tuple[int, int] = (200, 2_000)  # one way, even between the two
    slow: float = 0.0  # the chance that a way takes up to ``slow_us`` instead
    slow_us: int = 2_000_000
    late_us: int = 3_000_000  # how late a straggler may be


class SimulatedStore:
    """What the processes of one simulation share."""

    def __init__(self, simulation: Simulation, service_id: str = "default") -> None:
        self.simulation = simulation
        self.memory = MemoryStore()
        self.memory.services[service_id] = self.service = Service()
        self.server = MemoryProvider(self.memory, service_id=service_id)
        answer_of(self.server.open(simulation.wall_us))
        self.log: list[Entry] = []
        self.signs: dict[int, list[tuple[int, int]]] = {}  # silo: (true time, what it stored)
        self.renewed: dict[int, list[int]] = {}  # silo: when a renewal of it was counted
        self.down = False
        self.stragglers: list[Straggler] = []
        self.providers: list[SimulatedProvider] = []

    def provider(self, loop: SimulatedLoop) -> SimulatedProvider:
        """The connection of one process."""
        made = SimulatedProvider(self, loop)
        self.providers.append(made)
        return made

    # ---- the database as a whole

    def stop(self) -> None:
        """The database goes away: what is at it is undone or done, nobody hears of it, and no lock is held."""
        self.down = True
        for provider in self.providers:
            provider.drop_locks()

    def restart(self) -> None:
        self.down = False

    def land(self, partitions: frozenset[int] | None = None) -> None:
        """What straggles in these partitions (None: in all) lands now."""
        due = [each for each in self.stragglers if partitions is None or partitions & each.partitions]
        for each in due:
            each.land()

    # ---- each request, at its one instant

    def apply(self, member: Commit, owner: int, now: int) -> Verdict:
        """One member of a batch.  Planted bugs of the store stand in front of this."""
        return answer_of(self.server.commit([member], owner, now))[0]

    def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for member in batch:
            before = self._row(member)
            verdict = self.apply(member, owner, now)
            verdicts.append(verdict)
            if verdict.outcome is Outcome.COMMITTED:
                settled = before if verdict.settled else None
                self.log.append(Committed(self.simulation.wall_us, owner, member, verdict, settled))
        self.sign(owner, now)
        return verdicts

    def _row(self, member: Commit) -> ReminderRow | None:
        if member.settle is None:
            return None
        rows = self.service.reminders.get((member.grain_type, member.grain_key), {})
        return rows.get(member.settle.name)

    def take(
        self,
        inner: Members,
        number: int,
        partitions: Sequence[int],
        now: int,
        epochs: Sequence[int] | None,
    ) -> list[PartitionRow]:
        owners = {index: row.owner or 0 for index, row in self.service.partitions.items()}
        taken = answer_of(inner.take(number, partitions, now, epochs))
        at = self.simulation.wall_us
        for each in taken:
            before = owners.get(each.partition, 0)
            self.log.append(Taken(at, number, each.partition, each.epoch, before, each.previous_alive_at))
        self.sign(number, now)
        return taken

    def sign(self, number: int, now: int) -> None:
        silo = self.service.silos.get(number)
        if silo is not None and silo.status.is_member:
            self.signs.setdefault(number, []).append((self.simulation.wall_us, now))

    def watch(self, statuses: dict[int, SiloStatus]) -> None:
        """Log whose status is no longer what it was."""
        for number, silo in self.service.silos.items():
            if statuses.get(number) is not silo.status:
                self.log.append(Member(self.simulation.wall_us, number, silo.status))

    def digest(self) -> str:
        """The same for two runs exactly if their logs are the same."""
        total = blake2b(digest_size=16)
        for entry in self.log:
            total.update(repr(entry).encode())
        return total.hexdigest()


def answer_of(request: Awaitable[T]) -> T:
    """What a verb of the memory provider answers; it never waits."""
    coro: Any = request
    try:
        coro.send(None)
    except StopIteration as answer:
        value: T = answer.value
        return value
    raise AssertionError("the memory provider waited")


class Straggler:
    """A commit on its way after its sender was told that nobody knows."""

    def __init__(self, store: SimulatedStore, partitions: frozenset[int], act: Callable[[], object]) -> None:
        self.partitions = partitions
        self._store = store
        self._act = act
        store.stragglers.append(self)

    def land(self) -> None:
        if self in self._store.stragglers:
            self._store.stragglers.remove(self)
            if not self._store.down:
                self._act()


class SimulatedProvider(FaultyProvider):
    """The :class:`~farro.providers.contracts.Provider` of one process.  ``trouble`` may change at any time."""

    inner: MemoryProvider

    def __init__(self, store: SimulatedStore, loop: SimulatedLoop) -> None:
        super().__init__(MemoryProvider(store.memory))
        self.trouble = StoreTrouble()
        self.reachable = True
        self._store = store
        self._loop = loop
        self._handles: list[MemoryMembers] = [self.inner]
        self._locks: dict[int, MemoryMembers] = {}  # of this process, held or to be taken again
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
        """The connection broke while the request was out.  A read has changed nothing, whatever became of it."""
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

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        return await self._provider.renew_by(self._handle, number, now, load)

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        return await self._provider.take_by(self._handle, number, partitions, now, epochs)
