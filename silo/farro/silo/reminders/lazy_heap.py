"""A heap whose items may go stale: they are skipped when they surface, and swept before they pile up."""

from __future__ import annotations

import heapq
from itertools import count
from typing import Protocol, TypeVar


class Stamped(Protocol):
    """``stamp`` changes whenever an item that carries the old one means nothing any more."""

    stamp: int


T = TypeVar("T", bound=Stamped)


class LazyHeap(list[tuple[tuple[int, ...], int, int, T]]):
    """Items ``(sort key, order of arrival, stamp, entry)``; at most about twice ``live_max`` are kept."""

    def __init__(self, live_max: int) -> None:
        super().__init__()
        self.live_max = live_max
        self._order = count()

    def add(self, sort_key: tuple[int, ...], entry: T) -> None:
        heapq.heappush(self, (sort_key, next(self._order), entry.stamp, entry))
        if len(self) > 2 * self.live_max + 64:
            self[:] = [item for item in self if item[2] == item[3].stamp]
            heapq.heapify(self)

    def first(self) -> T | None:
        """The entry with the least sort key that still stands; it stays."""
        while self:
            item = self[0]
            if item[2] == item[3].stamp:
                return item[3]
            heapq.heappop(self)
        return None

    def drop_first(self) -> None:
        """Leave out what :meth:`first` has just answered."""
        heapq.heappop(self)
