"""Tells an absence from a busy loop: where wall and monotonic time part, nobody was there.  Pure.

A machine that slept, or whose wall clock was set forward, did not live through the instants in between, so
what fell due in them is missed.  A loop that only stalled did: its wall and monotonic clocks moved together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gap:
    """Nobody lived between ``last_seen_at`` and ``began_at`` (schedule time)."""

    last_seen_at: int
    began_at: int


class GapWatch:
    """Told the clocks now and then; remembers the latest gap."""

    def __init__(self, now: int, steady: int, grace_us: int) -> None:
        self._offset = now - steady
        self._grace_us = grace_us
        self.latest: Gap | None = None

    def look(self, now: int, steady: int) -> Gap | None:
        """A gap that has just come to light, if any."""
        offset = now - steady
        parted, self._offset = offset - self._offset, offset
        if parted <= self._grace_us:
            return None
        # How far the clocks parted is how long nobody was there; the rest was lived through.
        self.latest = Gap(now - parted, now)
        return self.latest
