"""Which partitions this silo owns, under which epochs, since when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from farro.client.identity import partition_of

COUNTER_BITS = 40

Listener = Callable[[frozenset[int]], None]


@dataclass(frozen=True, slots=True)
class Owned:
    """One owned partition.  ``began_at``: schedule time of the take-over.

    ``alive_until``: the last stored sign of life of the owner before; None when there never was one.
    """

    epoch: int
    began_at: int
    alive_until: int | None


class Ownership:
    """A plain table; the cluster room changes it, everyone below reads it."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._owned: dict[int, Owned] = {}
        self._counter = 0
        self._taken: list[Listener] = []
        self._dropped: list[Listener] = []

    def listen(self, *, taken: Listener | None = None, dropped: Listener | None = None) -> None:
        """Be told of partitions that were ``taken`` or thawed, and of those that are owned no more.

        Told are the ones that changed, once the table says so, in the order of listening.
        """
        if taken is not None:
            self._taken.append(taken)
        if dropped is not None:
            self._dropped.append(dropped)

    def take(self, partition: int, owned: Owned) -> None:
        """Own a partition; once more under the same epoch for a thaw, which begins anew."""
        self.take_all({partition: owned})

    def take_all(self, owned: Mapping[int, Owned]) -> None:
        """:meth:`take` for many that are told of together."""
        self._owned.update(owned)
        if owned:
            for tell in self._taken:
                tell(frozenset(owned))

    def drop(self, partitions: Iterable[int]) -> None:
        """Own some partitions no longer.  Repeatable."""
        gone = frozenset(each for each in partitions if self._owned.pop(each, None) is not None)
        if gone:
            for tell in self._dropped:
                tell(gone)

    def partition_of(self, grain_type: str, grain_key: str) -> int:
        return partition_of(grain_type, grain_key, self.partitions)

    def owned(self, partition: int) -> Owned | None:
        return self._owned.get(partition)

    def epoch(self, partition: int) -> int:
        """The epoch to commit under; 0, which fences every commit, when the partition is not owned."""
        owned = self._owned.get(partition)
        return owned.epoch if owned is not None else 0

    def all(self) -> frozenset[int]:
        return frozenset(self._owned)

    def new_registration(self, partition: int) -> int:
        """A registration number for a reminder: unique in the partition for ever, and growing.

        The epoch in its high bits makes it so without a clock: whoever owns the partition later starts
        higher, and within one ownership a counter grows.
        """
        self._counter += 1
        return (self.epoch(partition) << COUNTER_BITS) + self._counter
