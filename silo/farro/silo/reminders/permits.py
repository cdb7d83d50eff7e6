"""How many ticks may run their code at the same time, and who is next.  Pure; times come in.

A permit is taken when a tick's turn begins and given back when its code has ended, or after it was held too
long: a hung handler stops nobody else.  A tick that finds no permit waits here, not in its grain's mailbox.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

Rank = tuple[int, int, int]


class Permits(Generic[T]):
    def __init__(self, total: int, hold_max_s: float) -> None:
        self.total = total
        self._hold_max_s = hold_max_s
        self._held: dict[T, float] = {}  # by when it was taken: dicts keep insertion order
        self._waiting: list[tuple[Rank, int, T]] = []
        self._order = count()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, tick: T, now: float) -> bool:
        """Take a permit; False when none is free."""
        if len(self._held) >= self.total:
            return False
        self._held[tick] = now
        return True

    def wait(self, tick: T, rank: Rank) -> None:
        heapq.heappush(self._waiting, (rank, next(self._order), tick))

    def give_back(self, tick: T) -> None:
        """Repeatable."""
        self._held.pop(tick, None)

    def next_waiting(self) -> T | None:
        """The waiting tick that may try again now: the best-ranked one, if a permit is free."""
        if self._waiting and len(self._held) < self.total:
            return heapq.heappop(self._waiting)[2]
        return None

    def expire(self, now: float) -> float | None:
        """Take back permits held too long; answers when the next one would be, None if none is held."""
        for tick, taken in list(self._held.items()):
            if taken + self._hold_max_s > now:
                return taken + self._hold_max_s
            del self._held[tick]
        return None
