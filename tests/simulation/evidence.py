"""One run, sorted for its judges: the commit log, and what clients and grains saw."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from farro.providers.rows import ReminderRow
from farro.silo.testing.simulated_store import Committed, Entry, Taken
from tests.simulation.grains import Steps, steps_of
from tests.simulation.histories import GrainKey, History

SECOND_US = 1_000_000
SYSTEM = "farro."


@dataclass(slots=True)
class Evidence:
    """One run, sorted for its judges."""

    log: list[Entry]
    history: History
    signs: dict[int, list[tuple[int, int]]]  # of life, as stored: true time, silo's time
    renewed: dict[int, list[int]]
    acknowledged: dict[int, list[int]]  # when each silo sent the renewals that it knows were taken
    reminders: list[ReminderRow]  # as they stand at the end
    lease_s: float
    grace_us: int  # of missed ticks
    skew_us: int  # by how much a silo's clock may have been wrong
    end_at: int
    commits: list[Committed] = field(default_factory=list)
    steps: list[tuple[Committed, Steps]] = field(default_factory=list)
    by_operation: dict[str, list[Committed]] = field(default_factory=dict)
    count_of: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in self.log:
            if not isinstance(entry, Committed):
                continue
            self.commits.append(entry)
            write = entry.commit.grain
            if write is None or write.state is None or entry.commit.grain_type.startswith(SYSTEM):
                continue
            steps = steps_of(entry.commit.grain_type, write.state, write.layout)
            self.steps.append((entry, steps))
            self.by_operation.setdefault(steps.last, []).append(entry)
            self.count_of[steps.last] = steps.count


def grain_of(entry: Committed) -> GrainKey:
    return entry.commit.grain_type, entry.commit.grain_key


def when(evidence: Evidence, at: int) -> str:
    return f"at {(at - evidence.history.cluster.simulation.start_us) / 1e6:.6f} s"


class Owners:
    """Who owned a grain's partition at some instant."""

    def __init__(self, evidence: Evidence) -> None:
        self._taken: dict[int, list[tuple[int, int]]] = {}
        self._partition: dict[GrainKey, int] = {}
        for entry in evidence.log:
            if isinstance(entry, Taken):
                self._taken.setdefault(entry.partition, []).append((entry.at, entry.silo))
            elif isinstance(entry, Committed):
                self._partition[grain_of(entry)] = entry.commit.partition

    def at(self, grain_type: str, grain_key: str, at: int) -> int:
        partition = self._partition.get((grain_type, grain_key))
        taken = self._taken.get(-1 if partition is None else partition, [])
        place = bisect_right(taken, (at, 1 << 60))
        return taken[place - 1][1] if place else 0


def named(row: ReminderRow) -> str:
    """The id of the tick that a row owes."""
    return f"{row.grain_type}/{row.grain_key}/{row.name}#{row.registration}.{row.occurrence}"
