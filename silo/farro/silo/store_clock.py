"""Database time: a clock that is never ahead of the store's own, so that nothing falls due before its time.

Theory of operation.  Silos on several machines disagree about the time; the store has one clock.  An answer
that says what that clock showed is old when it arrives, so from then on the store's clock shows at least
that, and what has passed since by a monotonic clock.  Every answer gives such a lower bound, the highest one
is kept, and it grows a little slower than the monotonic clock, whose quartz may be the faster one.  An answer
that took a known time also tells how far the store's clock can have come at most; a bound above that is given
up: the store's clock was set back, or another server's is asked now.

Only what falls due goes by it.  Leases and deadlines are monotonic time and never the wall's.
"""

from __future__ import annotations

from math import ceil

from farro.client.clock import Clock

DRIFT_PARTS = 5_000  # a bound loses one part in so many: 200 ppm, several times what a quartz is off


class StoreClock:
    """``machine``'s clock until the store has said what time it is, from then on the store's.

    A store on the machine itself, or without a clock, never says so.
    """

    def __init__(self, machine: Clock) -> None:
        self._machine = machine
        # A lower bound and when it held: one value, because the heartbeat's thread reads it too.
        self._heard: tuple[int, int] | None = None

    def now(self) -> int:
        heard = self._heard
        return self._machine.now() if heard is None else _later(*heard, self._machine.steady())

    def steady(self) -> int:
        return self._machine.steady()

    def loop_seconds(self, schedule_us: int) -> float:
        return self._machine.loop_seconds(schedule_us)

    def heard(self, store_us: int, asked_at: int) -> None:
        """The store was asked at ``asked_at`` of :meth:`steady`, and its clock showed ``store_us``."""
        at = self._machine.steady()
        if self._heard is not None:
            bound = _later(*self._heard, at)
            if store_us < bound <= store_us + at - asked_at:
                return  # the bound there is is the better one
        self._heard = store_us, at


def _later(bound: int, held_at: int, now: int) -> int:
    passed = now - held_at
    return bound + passed - ceil(passed / DRIFT_PARTS)
