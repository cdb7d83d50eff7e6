"""The only reader of time.

Two times exist.  *Schedule time* is what reminders are due by: integer microseconds since the epoch, UTC.
*Loop time* is what deadlines, idle limits and batches are measured by: the event loop's own monotonic
seconds.  A clock that runs fast (the demo) or jumps (tests) changes the first and never the second.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    def now(self) -> int:
        """Schedule time: microseconds since the epoch, UTC.  May jump, like any wall clock."""
        ...

    def steady(self) -> int:
        """Schedule microseconds from a monotonic source: differences only.

        Where ``now`` and ``steady`` part, the wall clock was set or the machine slept.
        """
        ...

    def loop_seconds(self, schedule_us: int) -> float:
        """How many seconds of loop time that many schedule microseconds take (negative input: 0)."""
        ...


class SystemClock:
    """The machine's clock: schedule time passes as fast as loop time."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def steady(self) -> int:
        return time.monotonic_ns() // 1000

    def loop_seconds(self, schedule_us: int) -> float:
        return max(0, schedule_us) / 1e6


class ScaledClock:
    """Schedule time from ``start`` on, ``speed`` times as fast as the machine's.  For demos."""

    def __init__(self, start: datetime, speed: float) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be greater than 0, not {speed}")
        self._start = to_us(start)
        self._speed = speed
        self._began = time.monotonic_ns()

    def now(self) -> int:
        return self._start + self.steady()

    def steady(self) -> int:
        return int((time.monotonic_ns() - self._began) * self._speed) // 1000

    def loop_seconds(self, schedule_us: int) -> float:
        return max(0, schedule_us) / 1e6 / self._speed


def to_us(at: datetime) -> int:
    """Microseconds since the epoch of an aware datetime, exactly.  Naive: ``ValueError``."""
    if at.tzinfo is None:
        raise ValueError(f"{at.isoformat()} has no time zone; farro only takes aware datetimes")
    return (at - EPOCH) // MICROSECOND


def from_us(us: int) -> datetime:
    """The aware UTC datetime of microseconds since the epoch."""
    return EPOCH + us * MICROSECOND  # half the cost of timedelta(microseconds=us)


def duration_us(duration: timedelta) -> int:
    """A timedelta in whole microseconds, exactly."""
    return duration // MICROSECOND


def loop_us(clock: Clock, loop_s: float) -> int:
    """Schedule microseconds that pass in so many seconds of loop time."""
    return int(loop_s * 1e6 / clock.loop_seconds(1_000_000))
