"""What the clients and the grains of one simulated run saw: written as it happens, read by the invariants."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from farro.silo.reminders.due_queue import Stage

if TYPE_CHECKING:
    from farro.silo.testing.simulated_cluster import SimulatedCluster, SimulatedSilo

GrainKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """A call by a client, as often as it was sent.  Instants: true wall time, microseconds.

    ``operation`` is unique; what a grain commits for it carries it.  ``error`` is the code of the last
    answer, empty for a success; ``turn_ran`` what that answer says (None: unknown).  ``refused``: every
    earlier answer said that it had not run.
    """

    operation: str
    grain: GrainKey
    method: str
    began_at: int
    ended_at: int
    error: str
    turn_ran: bool | None
    result: object = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A tick's turn has begun on a silo.  ``due_at``: the instant it was owed at."""

    at: int
    silo: int
    clock_at: int  # what the silo's own clock said
    grain: GrainKey
    name: str
    registration: int
    occurrence: int
    due_at: int


@dataclass(frozen=True, slots=True)
class Held:
    """A look at the reminders a silo holds, between two of its callbacks.  ``out``: ticks under way, which
    nothing evicts.  ``strange``: held although their partitions are not the silo's."""

    at: int
    silo: int
    held: int
    out: int
    size: int
    strange: int


@dataclass(slots=True)
class History:
    """One run's."""

    cluster: SimulatedCluster
    random: Random
    calls: list[Call] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    probes: list[Call] = field(default_factory=list)  # calls after the faults; they are among ``calls`` too

    def now(self) -> int:
        return self.cluster.simulation.wall_us

    def look(self, place: SimulatedSilo) -> None:
        """Write down what the silo holds now."""
        assert place.silo is not None
        service = place.silo.rooms.reminders
        if service is None:
            return
        queue, owned = service.held.queue, place.silo._ownership.all()
        out = len(queue) - queue.waiting - queue.ready - queue.parked
        strange = sum(entry.row.partition not in owned for entry in queue if entry.stage is not Stage.OUT)
        self.held.append(Held(self.now(), place.number, len(queue), out, queue.capacity, strange))
