"""Which processes have given no sign of life for too long: a pure table.

A process that was stopped (SIGSTOP, a debugger) or is stuck below Python inside its write to a SQLite file
holds the file's lock and with it all other processes up.  Its own heartbeat cannot help it: that stands
still, too.  So whoever started it ends it.  A silo whose *store* does not answer does give signs: they come
from a thread that needs neither the store nor the event loop.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Seconds.  A sign is due every ``sign_s``; the supervisor looks every ``look_s``."""

    look_s: float = 0.5
    silent_s: float = 6.0  # the lease of 4 s, after which others would own its partitions, and a margin
    first_sign_s: float = 60.0  # Python starts and imports before there is a thread to give signs
    start_s: float = 120.0  # alive but not ready


SIGN_S = 1.0


class Silence(Generic[P]):
    """Deadlines by process.  ``now`` is one monotonic time throughout."""

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._deadlines: dict[P, float] = {}
        self._looked_at: float | None = None

    def begin(self, process: P, now: float) -> None:
        """It was just started."""
        self._deadlines[process] = now + self._limits.first_sign_s

    def heard(self, process: P, now: float) -> None:
        """A sign of life of a process that is watched; of any other it means nothing."""
        if process in self._deadlines:
            self._deadlines[process] = now + self._limits.silent_s

    def forget(self, process: P) -> None:
        self._deadlines.pop(process, None)

    def look(self, now: float) -> list[P]:
        """Those that have been silent for too long; each is told once.

        Time in which nobody looked is nobody's silence: the supervisor itself stood still, and with it most
        likely the whole machine (a paused virtual machine, Ctrl-Z).
        """
        if self._looked_at is not None:
            missed_s = now - self._looked_at - 2 * self._limits.look_s
            if missed_s > 0:
                self._deadlines = {each: at + missed_s for each, at in self._deadlines.items()}
        self._looked_at = now
        silent = [each for each, at in self._deadlines.items() if at <= now]
        for each in silent:
            del self._deadlines[each]
        return silent
