"""What the clients of a chaos run saw and what the store held afterwards: plain values for the checker."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Made:
    """One call that added ``call`` to a ledger.  Times are the clients' own monotonic seconds.

    ``place``: what an ok call answered; None when it failed.  ``turn_ran`` is what the error said (of a
    relayed call it is about the relay alone, so its outcome is unknown).  ``limit_s``: the deadline it had.
    """

    call: int
    ledger: str
    amount: int
    began_s: float
    ended_s: float
    limit_s: float
    place: int | None = None
    turn_ran: bool | None = None
    error: str = ""
    relayed: bool = False

    @property
    def ok(self) -> bool:
        return self.place is not None


@dataclass(frozen=True, slots=True)
class Read:
    """One read-only call that was answered with the length of a ledger."""

    ledger: str
    began_s: float
    ended_s: float
    length: int


@dataclass(slots=True)
class History:
    """Everything that the clients of one run did.  ``hung``: calls that did not end after their deadline."""

    made: list[Made] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LedgerSeen:
    """A ledger as stored.  ``entries``: (call, amount, process) in order."""

    key: str
    version: int
    entries: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TickSeen:
    """One tick as its grain wrote it down; instants in microseconds since the epoch."""

    occurrence: int
    due_at: int
    began_at: int
    missed_count: int


@dataclass(frozen=True, slots=True)
class RowSeen:
    """The reminder's row where it is still there."""

    start_at: int
    next_due_at: int | None
    missed_count: int
    status: str


@dataclass(frozen=True, slots=True)
class ChimeSeen:
    """A grain with one reminder, as stored.  ``row`` None: the reminder is finished after ``times`` ticks."""

    key: str
    action: int
    period_us: int
    times: int
    version: int
    ticks: tuple[TickSeen, ...]
    row: RowSeen | None


@dataclass(frozen=True, slots=True)
class CommitSeen:
    """One write of a grain's row, noted inside its transaction.

    ``epoch`` is the partition's at that moment; ``taken_by`` is who raised it to that and ``by`` who wrote,
    as the database knows them.  (Whoever took a partition last may commit until another one takes it.)
    """

    partition: int
    grain: str
    version: int
    epoch: int
    taken_by: str | None
    by: str


@dataclass(frozen=True, slots=True)
class Stored:
    """What was read after the faults.  ``commits``: in the order noted; None: the store keeps no notes."""

    ledgers: tuple[LedgerSeen, ...]
    chimes: tuple[ChimeSeen, ...]
    read_at: int  # schedule time, microseconds
    commits: tuple[CommitSeen, ...] | None = None
