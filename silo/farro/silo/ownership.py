"""Which partitions this silo owns, under which epochs, since when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from farro.client.errors import InvalidPayload
from farro.silo.placement import Place, Placed, place_of

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
    """A plain table; the cluster room changes it, everyone below reads it.

    ``closing``: owned partitions that are being handed over; what is new to them waits for their next owner.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.closing: frozenset[int] = frozenset()
        self._owned: dict[int, Owned] = {}
        self._classes: dict[str, Placed] = {}
        self._counter = 0
        self._taken: list[Listener] = []
        self._closing: list[Listener] = []
        self._dropped: list[Listener] = []

    def listen(
        self,
        *,
        taken: Listener | None = None,
        closing: Listener | None = None,
        dropped: Listener | None = None,
    ) -> None:
        """Be told of partitions, after the table has changed.

        ``taken`` also hears of those whose ownership began anew (a silo that was frozen has thawed), or that
        were not handed over after all.
        ``closing``: those about to be handed over, which wait for what is awake in them to come to rest.
        """
        if taken is not None:
            self._taken.append(taken)
        if closing is not None:
            self._closing.append(closing)
        if dropped is not None:
            self._dropped.append(dropped)

    def take(self, partition: int, owned: Owned) -> None:
        self.take_all({partition: owned})

    def take_all(self, owned: Mapping[int, Owned]) -> None:
        self._owned.update(owned)
        if owned:
            for listener in self._taken:
                listener(frozenset(owned))

    def close(self, partitions: Iterable[int]) -> None:
        """They are about to be handed over."""
        closing = frozenset(partitions) & self._owned.keys()
        self.closing |= closing
        if closing:
            for listener in self._closing:
                listener(closing)

    def keep(self, partitions: Iterable[int]) -> None:
        """Of those that were to be handed over, what is still owned stays and is served again."""
        kept = self.closing & frozenset(partitions)
        self.closing -= kept
        if kept:
            for listener in self._taken:
                listener(kept)

    def drop(self, partitions: Iterable[int]) -> None:
        gone = frozenset(partitions) & self._owned.keys()
        for partition in gone:
            del self._owned[partition]
        self.closing -= gone
        if gone:
            for listener in self._dropped:
                listener(gone)

    def serves(self, partition: int) -> bool:
        """Owned, and not being handed over."""
        return partition in self._owned and partition not in self.closing

    def know(self, grain_type: str, known: Placed) -> None:
        """From now on grains of that type live where their class says."""
        self._classes[grain_type] = known

    def place_of(self, grain_type: str, grain_key: str) -> Place:
        """Where a grain lives; raises :class:`InvalidGrainId` as :mod:`farro.silo.placement` says."""
        classes = self._classes
        return place_of(grain_type, grain_key, classes.get(grain_type), self.partitions, classes.get)

    def partition_of(self, grain_type: str, grain_key: str) -> int:
        """The partition that has the grain's rows; :class:`InvalidPayload` for one that has none."""
        place = self.place_of(grain_type, grain_key)
        if isinstance(place, int):
            return place
        raise InvalidPayload(
            f"{grain_type}/{grain_key[:80]} lives in no partition, so nothing of it can be stored: "
            "no state, reminders or events"
        )

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
