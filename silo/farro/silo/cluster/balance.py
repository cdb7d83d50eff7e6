"""Which partition belongs where.  Pure, and the same in every silo that sees the same rows.

Nobody leads: every silo computes the target of every partition by rendezvous hashing (the silo whose number
hashes highest with the partition), capped at a tenth above the fair share.  It gives up what should live
elsewhere and takes what is free and should live here.  Two that see different views may want the same
partition; the store's compare-and-set on the epoch settles that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from farro.providers.members import ClusterRows, SiloStatus

SHARE_MAX = 1.1  # of the fair share
_MASK = (1 << 64) - 1


def assignment(silos: Iterable[int], partitions: int) -> list[int]:
    """The target of each partition, a silo number; 0 when there is no silo."""
    return list(_assignment(tuple(sorted(set(silos))), partitions))


@lru_cache(maxsize=16)  # asked for at every look, and silos seldom come or go
def _assignment(numbers: tuple[int, ...], partitions: int) -> tuple[int, ...]:
    if not numbers:
        return (0,) * partitions
    room = dict.fromkeys(numbers, ceil(SHARE_MAX * partitions / len(numbers)))
    targets: list[int] = []
    for ranks in zip(*(_ranks(number, partitions) for number in numbers), strict=True):
        _, best = max((rank, number) for rank, number in zip(ranks, numbers, strict=True) if room[number])
        room[best] -= 1
        targets.append(best)
    return tuple(targets)


@lru_cache(maxsize=64)
def _ranks(number: int, partitions: int) -> tuple[int, ...]:
    """How high a silo's number hashes with each partition: splitmix64's finalizer, well mixed and cheap."""
    return tuple(_mixed((number << 32) + partition) for partition in range(partitions))


def _mixed(value: int) -> int:
    value = (value * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one silo ought to do about its partitions, each ascending but ``take``.

    ``take``: free ones whose target it is, those that calls wait for first.  ``hand_over``: owned ones
    whose target is another silo.  ``let_go``: those that the store has under its number although it serves
    them no more (an answer was lost), and that ought to live elsewhere.
    """

    take: list[int]
    hand_over: list[int]
    let_go: list[int]


def plan(rows: ClusterRows, number: int, owned: frozenset[int], wanted: frozenset[int]) -> Plan:
    """``owned``: what silo ``number`` serves now; ``wanted``: partitions that calls wait for."""
    active = [row.number for row in rows.silos if row.status is SiloStatus.ACTIVE]
    targets = assignment(active, len(rows.owners))
    take = [
        p
        for p, target in enumerate(targets)
        if target == number and p not in owned and rows.owners[p] in (0, number)
    ]
    take.sort(key=lambda p: (p not in wanted, p))
    hand_over = [p for p in sorted(owned) if targets[p] not in (0, number)]
    let_go = [
        p
        for p, owner in enumerate(rows.owners)
        if owner == number and p not in owned and targets[p] not in (0, number)
    ]
    return Plan(take, hand_over, let_go)


def shares(owners: Sequence[int]) -> dict[int, int]:
    """How many partitions each owner has; under 0 those that nobody has."""
    counts: dict[int, int] = {}
    for owner in owners:
        counts[owner] = counts.get(owner, 0) + 1
    return counts
