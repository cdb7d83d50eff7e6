"""Who lives and who owns: the rows of membership, and its verbs.

The verbs stand apart from the rest of the contract because a silo's heartbeat calls them from a thread and
an event loop of its own, on a connection of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from farro.providers.values import value


class SiloStatus(Enum):
    """The life of a silo, in this order; the last two are its ends."""

    JOINING = "joining"
    ACTIVE = "active"
    DRAINING = "draining"  # hands its partitions over and takes none
    LEFT = "left"
    DEAD = "dead"  # somebody else said so

    @property
    def is_member(self) -> bool:
        return self not in (SiloStatus.LEFT, SiloStatus.DEAD)


@value(frozen=True, slots=True)
class SiloRow:
    """A silo that has joined.  ``number`` is never reused; ``renewed_at`` is its stored sign of life.

    ``address``: ``HOST:PORT`` where peers and clients reach it, empty when nobody can.  ``renewals`` grows
    with every renewal: an observer that sees it stand still needs no clock in common with the silo.
    ``load``: how many grains were awake at the last renewal.  ``left_at``: when it left or was said to be
    dead.
    """

    number: int
    address: str
    started_at: int
    renewed_at: int
    left_at: int | None
    status: SiloStatus = SiloStatus.JOINING
    renewals: int = 0
    load: int = 0


@value(frozen=True, slots=True)
class PartitionRow:
    """A partition just taken. ``previous_alive_at``: last sign of life of the owner before (None: never
    owned).
    """

    partition: int
    epoch: int
    previous_alive_at: int | None


@value(frozen=True, slots=True)
class ClusterRows:
    """One snapshot of a service's silos and partitions.

    ``silos`` ascend by number, those that left or died included as long as they are recorded.  ``owners`` and
    ``epochs`` have one element per partition; owner 0: nobody.  ``view`` grows with every change of what is
    told here, but not with renewals.
    """

    view: int
    silos: tuple[SiloRow, ...]
    owners: tuple[int, ...]
    epochs: tuple[int, ...]


class Members(Protocol):
    """The verbs of membership, used from one event loop."""

    async def join(self, address: str, now: int) -> SiloRow:
        """Add a silo, JOINING, under a number never used before; its sign of life is ``now``.

        From here on this object holds the silo's *lock*, until it is closed, its connection ends or its
        process dies, and takes it again when it connects anew.  Silos that left or died more than a day ago
        are forgotten.
        """
        ...

    async def renew(self, number: int, now: int, load: int = 0) -> int | None:
        """Store a sign of life and count it; the view's number.  Needs no fsync.

        None when the silo is unknown, has left or was said to be dead.
        """
        ...

    async def store_time(self) -> int | None:
        """What the store's own clock shows, in microseconds since the epoch.

        None when the store has none, or is on this very machine and has the machine's.
        """
        ...

    async def set_status(self, number: int, status: SiloStatus, now: int) -> bool:
        """Move a member to ACTIVE or DRAINING.  False when it is none.  Repeatable."""
        ...

    async def leave(self, number: int, now: int) -> None:
        """Mark the silo as LEFT and free its partitions.  Repeatable; the first end of a silo counts."""
        ...

    async def mark_dead(self, number: int, renewals: int, now: int) -> bool:
        """Mark a member as DEAD and free its partitions, if it has renewed exactly ``renewals`` times.

        False when it has renewed since, or is no member (any more).
        """
        ...

    async def is_held(self, number: int) -> bool:
        """Does anybody hold the lock of that silo?  False proves, with nobody at its address, its death.

        Asking never lets a silo lose its lock.
        """
        ...

    async def take(
        self, number: int, partitions: Sequence[int], now: int, epochs: Sequence[int] | None = None
    ) -> list[PartitionRow]:
        """Own partitions: each epoch grows by one, in one transaction, and fences every older commit.

        ``epochs``, one for each of ``partitions``: only those are taken that are free or the silo's own and
        whose epoch is that one; the others are left out.  None: all are taken, whoever has them (for tools).
        Answers in ascending partition order.  Raises StoreError unless ``number`` is a member.
        """
        ...

    async def release(self, number: int, partitions: Sequence[int], now: int) -> None:
        """Free those of the partitions that the silo owns; their epochs stay.  Repeatable."""
        ...

    async def silos(self) -> list[SiloRow]:
        """Every silo of the service that ever joined and is still recorded, by number."""
        ...

    async def cluster(self) -> ClusterRows:
        """Silos and partitions as of one moment."""
        ...

    async def close(self) -> None:
        """Release everything, the lock included.  Repeatable."""
        ...
