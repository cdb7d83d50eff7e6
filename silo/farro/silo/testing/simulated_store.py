"""One store for several simulated processes, behind a connection that may be slow, cut or lying, and a log of
all it has committed.

The store itself is the memory provider and does each request at one instant, so it is always right.  What can
go wrong lies on the way to it and back, for each process by itself:

* a request takes its time, and so does its answer;
* it is refused (``Unavailable``: the store never heard of it), or its answer is lost (``OutcomeUnknown``);
* a *straggler*: a commit whose answer is ``OutcomeUnknown`` and that lands later.  As PostgreSQL's exclusive
  lock has it, never after the next ``load`` from its partition has begun; a ``take`` of the partition may
  come before it, and then the epoch refuses it;
* the process is cut off, or the database is away for all: then every session's locks are gone as well, and
  are taken again by the first request that comes through.

The log is the truth that the invariants are checked on: what was committed, when by the true time, by whom
and under which epoch, and every take-over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from farro.providers.members import Members, PartitionRow, SiloStatus
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.providers.memory_tables import Service
from farro.providers.rows import Commit, Outcome, ReminderRow, Verdict
from farro.silo.testing.simulated_time import Simulation

T = TypeVar("T")


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
        self.acknowledged: dict[int, list[int]] = {}  # silo: when it sent a renewal whose answer it has heard
        self.down = False
        self.has_clock = False  # which silos ask, and which is right; else each goes by its machine's
        self.stragglers: list[Straggler] = []
        self.drop_sessions: list[Callable[[], None]] = []  # of each process that connects

    # ---- the database as a whole

    def stop(self) -> None:
        """The database goes away: nobody hears of what was on its way, and no lock is held."""
        self.down = True
        for drop in self.drop_sessions:
            drop()

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
