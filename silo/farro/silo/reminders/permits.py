"""How many ticks may run their code at the same time, and who is next.  Pure; times come in.

A permit is taken when a tick's turn begins and given back when its code has ended, or after it was held too
long: a hung handler stops nobody else.  A tick that finds no permit waits here, not in its grain's mailbox.

The best rank goes next, except that one start in eight is for the oldest tick of a lower lane that is overdue
by more than the bound: nothing starves, nothing floods.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

from farro.silo.reminders.due_queue import AGED_ONE_IN

T = TypeVar("T", bound=Hashable)

Rank = tuple[int, int, int]  # lane (the lower goes first), due instant, registration


class Permits(Generic[T]):
    """``hold_max_s`` is loop time, ``wait_max_us`` schedule time."""

    def __init__(self, total: int, hold_max_s: float, wait_max_us: int) -> None:
        self.total = total
        self._hold_max_s = hold_max_s
        self._wait_max_us = wait_max_us
        self._held: dict[T, float] = {}  # by when it was taken: dicts keep insertion order
        self._lanes: dict[int, list[tuple[int, int, int, T]]] = {}  # heaps by due instant, registration
        self._order = count()
        self._starts = 0

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lanes.values()))

    def take(self, tick: T, now: float) -> bool:
        """Take a permit; False when none is free."""
        if len(self._held) >= self.total:
            return False
        self._held[tick] = now
        return True

    def wait(self, tick: T, rank: Rank) -> None:
        lane, due_at, registration = rank
        heapq.heappush(self._lanes.setdefault(lane, []), (due_at, registration, next(self._order), tick))

    def give_back(self, tick: T) -> None:
        """Repeatable."""
        self._held.pop(tick, None)

    def next_waiting(self, now: int) -> T | None:
        """The waiting tick that may try again at schedule time ``now``, if a permit is free."""
        lanes = [self._lanes[lane] for lane in sorted(self._lanes) if self._lanes[lane]]
        if not lanes or len(self._held) >= self.total:
            return None
        self._starts += 1
        chosen = lanes[0]
        if self._starts % AGED_ONE_IN == 0:
            aged = [lane for lane in lanes[1:] if lane[0][0] < now - self._wait_max_us]
            chosen = min(aged, key=lambda lane: lane[0][0], default=chosen)
        return heapq.heappop(chosen)[3]

    def expire(self, now: float) -> float | None:
        """Take back permits held too long; answers when the next one would be, None if none is held."""
        for tick, taken in list(self._held.items()):
            if taken + self._hold_max_s > now:
                return taken + self._hold_max_s
            del self._held[tick]
        return None
