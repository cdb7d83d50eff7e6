"""Which failed calls a client sends again by itself, and how many of them it may.  Pure.

A call is sent again only when it certainly did not run.  Some of those failures say no more than that another
connection is needed: looking for one costs the cluster nothing, and is free.  The others mean that silos
disagree or are in trouble; sending everything twice is what they need least, so a *budget* bounds it: a tenth
of the calls of the last seconds, and a few.  When it is used up, the error goes to the caller.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from random import Random

from farro.client.errors import FarroError, Fenced, NotMine, SiloStopping, SiloUnavailable

RETRY_SHARE = 0.1
RETRIES_FREE = 10  # within the window, however few calls there are
WINDOW_S = 10.0
MARK_S = 1.0  # how finely the calls of the window are counted
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 1.0


class Verdict(Enum):
    """What becomes of a call that failed."""

    FINAL = "the caller gets the error"
    ELSEWHERE = "sent again on another connection, at once"
    PATIENT = "sent again after a pause; costs the budget nothing"
    LATER = "sent again after a pause, if the budget allows"


def verdict(error: FarroError, connection_usable: bool) -> Verdict:
    """``connection_usable``: may the connection it failed on still take calls?"""
    if error.turn_ran is not False or not error.retry_safe:
        return Verdict.FINAL
    if isinstance(error, SiloStopping):  # each silo stops once, so this cannot grow into a storm
        return Verdict.PATIENT if connection_usable else Verdict.ELSEWHERE
    if isinstance(error, SiloUnavailable):
        return Verdict.LATER if connection_usable else Verdict.ELSEWHERE
    return Verdict.LATER if isinstance(error, NotMine | Fenced) else Verdict.FINAL


def pause_s(attempt: int, chance: Random) -> float:
    """Seconds before attempt 1, 2, … is made again: full jitter below a ceiling that doubles."""
    return chance.uniform(0, min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(attempt, 10)))


class RetryBudget:
    """At most ``RETRY_SHARE`` of the calls within the window may be sent again, and ``RETRIES_FREE``.

    Calls are counted by whoever makes them; only a retry looks at the clock.
    """

    def __init__(self, now: float) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])  # loop time and calls made until then
        self._retries: deque[float] = deque()

    def take(self, now: float, calls: int) -> bool:
        """May one more call be sent again?  ``calls``: how many have been made in all."""
        while self._retries and self._retries[0] <= now - WINDOW_S:
            self._retries.popleft()
        if len(self._retries) >= RETRIES_FREE + RETRY_SHARE * self._recent(now, calls):
            return False
        self._retries.append(now)
        return True

    def _recent(self, now: float, calls: int) -> float:
        """The calls within the window; where the last mark is older than that, by the rate since then."""
        marks = self._marks
        if now - marks[-1][0] >= MARK_S:
            marks.append((now, calls))
        while len(marks) > 1 and marks[1][0] <= now - WINDOW_S:
            marks.popleft()
        begun_at, before = marks[0]
        return (calls - before) * min(1.0, WINDOW_S / max(now - begun_at, MARK_S))
