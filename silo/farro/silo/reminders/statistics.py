"""What the reminder line counts, and the last ticks it remembers."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.providers.rows import ReminderRow
from farro.silo.metrics import LatenessFigures

LATENESS_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HISTORY_MAX = 1_000  # ticks; a few hundred bytes each

DELIVERED, FAILED, SKIPPED = "delivered", "failed", "skipped"


class Lateness:
    """A histogram of how late ticks began, in seconds; the last bin is for what is later than every bound."""

    def __init__(self) -> None:
        self.bins = [0] * (len(LATENESS_BOUNDS_S) + 1)
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, lateness_s: float) -> None:
        self.bins[bisect_left(LATENESS_BOUNDS_S, lateness_s)] += 1
        self.count += 1
        self.sum_s += lateness_s
        if lateness_s > self.max_s:
            self.max_s = lateness_s

    def figures(self) -> LatenessFigures:
        mean = self.sum_s / self.count if self.count else 0.0
        return LatenessFigures(self.count, self.quantile(0.5), self.quantile(0.99), self.max_s, mean)

    def quantile(self, share: float) -> float:
        """An upper bound of the quantile; the largest lateness seen when it lies in the last bin."""
        wanted = share * self.count
        seen = 0
        for bound, count in zip(LATENESS_BOUNDS_S, self.bins, strict=False):
            seen += count
            if count and seen >= wanted:
                return min(bound, self.max_s)
        return self.max_s


@dataclass(frozen=True, slots=True)
class TickRecord:
    """One tick as it went: instants in microseconds since the epoch."""

    grain_type: str
    grain_key: str
    name: str
    occurrence: int
    attempt: int
    due_at: int
    fired_at: int
    outcome: str
    detail: str


@dataclass(slots=True)
class ReminderStatistics:
    """Counts since the silo started."""

    delivered: int = 0
    late: int = 0  # delivered more than the grace after they were due
    failed: int = 0  # turns that raised
    retried: int = 0  # of these, those that are tried again
    missed: dict[MissedReminderAction, int] = field(
        default_factory=lambda: dict.fromkeys(MissedReminderAction, 0)
    )
    overrun: int = 0
    repaired: int = 0
    unreadable: int = 0
    polls: int = 0
    poll_rows: int = 0
    poll_seconds: float = 0.0
    poll_failures: int = 0
    held_peak: int = 0
    lateness: dict[int, Lateness] = field(  # by priority
        default_factory=lambda: {int(priority): Lateness() for priority in ReminderPriority}
    )
    # the fields of TickRecords: tuples of plain values cost next to nothing until somebody asks
    _history: deque[tuple[str, str, str, int, int, int, int, str, str]] = field(
        default_factory=lambda: deque(maxlen=HISTORY_MAX)
    )

    def tick(self, row: ReminderRow, fired_at: int, outcome: str, detail: str = "") -> None:
        due_at = row.next_due_at if row.next_due_at is not None else fired_at
        self._history.append(
            (
                row.grain_type,
                row.grain_key,
                row.name,
                row.occurrence,
                row.attempts + 1,
                due_at,
                fired_at,
                outcome,
                detail,
            )
        )

    def on_time(self, row: ReminderRow, lateness_us: int, grace_us: int) -> None:
        """A tick was delivered ``lateness_us`` after it could have been."""
        self.delivered += 1
        if lateness_us > grace_us:
            self.late += 1
        lateness = self.lateness.get(row.priority)
        if lateness is not None:
            lateness.add(max(0, lateness_us) / 1e6)

    def history(self) -> Iterator[TickRecord]:
        """The last ticks of this silo, newest first."""
        return (TickRecord(*fields) for fields in reversed(self._history))
