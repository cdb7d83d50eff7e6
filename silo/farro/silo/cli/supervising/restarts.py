"""What becomes of a process that has ended: pure decisions about one place of the supervisor."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random

BAD_USAGE = 2  # the exit code of what no second try can mend


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """How patient a supervisor is; durations are seconds."""

    first_s: float = 0.25  # the longest wait before the first restart; the next may wait twice as long
    longest_s: float = 30.0
    calm_s: float = 60.0  # who was ready for so long begins with first_s again
    start_failures_max: int = 5  # ends in a row without having been ready


@dataclass(frozen=True, slots=True)
class Again:
    """Start it again in ``after_s`` seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Stays:
    """It has drained by somebody's wish and stays as it is."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Starting is of no use: end everything with ``exit_code``."""

    exit_code: int


Verdict = Again | Stays | GiveUp


class Restarts:
    """The history of one place, as far as it matters: failures in a row, and since when it is ready."""

    def __init__(self, limits: RestartLimits, chance: Random) -> None:
        self._limits = limits
        self._chance = chance
        self._failures = 0  # since the last calm time
        self._start_failures = 0
        self._ready_at: float | None = None

    def ready(self, now: float) -> None:
        self._ready_at = now
        self._start_failures = 0

    def asked_to_end(self) -> None:
        """It ends because the supervisor wants it to: no failure, nothing to decide."""
        self._ready_at = None

    def ended(self, code: int, now: float, *, others_serve: bool) -> Verdict:
        """Nobody asked for it.  ``code`` is the exit code, or minus the signal's number.

        ``others_serve``: the start-up is over and another process is ready; then it is tried for ever,
        because ending the others would turn a part's failure into an outage.
        """
        ready_at, self._ready_at = self._ready_at, None
        if ready_at is not None and code == 0:
            self._failures = 0
            return Stays()
        if ready_at is not None and now - ready_at >= self._limits.calm_s:
            self._failures = 0
        self._failures += 1
        if ready_at is None:
            self._start_failures += 1
            hopeless = code == BAD_USAGE or self._start_failures >= self._limits.start_failures_max
            if hopeless and not others_serve:
                return GiveUp(BAD_USAGE if code == BAD_USAGE else 1)
        return Again(self._wait())

    def _wait(self) -> float:
        """Exponential, somewhere in its upper half: those that fell together do not start together."""
        doublings = min(self._failures - 1, 32)  # beyond it every sensible limit is reached
        longest = min(self._limits.longest_s, self._limits.first_s * 2.0**doublings)
        return longest * self._chance.uniform(0.5, 1.0)


def how_it_ended(code: int) -> str:
    """``code`` in words: ``exit code 1`` or ``SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
