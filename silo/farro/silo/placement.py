"""Where a grain lives: the pure function behind every routing decision and every row's partition.

The answer depends on the grain's id and its class's declaration alone, never on who is alive or how busy:
silos and clients compute it, each for itself, and must come to the same result for as long as rows last.

==========================  ====================================================================
the grain                   lives
==========================  ====================================================================
of a plain class            in the partition that its type and key hash to
of a class with affinity    in the partition that its affinity hashes to, whatever its type
``farro.partition/<p>``     in partition p
``farro.silo/<n>``          on silo n, in no partition
``farro.reminders/<id>``    with the grain whose reminders these are
of a stateless worker       on whichever silo was asked, in no partition
==========================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from farro.client.errors import InvalidGrainId
from farro.client.identity import Affinity, GrainId, partition_of

PARTITION_TYPE = "farro.partition"
SILO_TYPE = "farro.silo"
REMINDERS_TYPE = "farro.reminders"


class Placed(Protocol):
    """What a grain class declares of the place of its grains."""

    @property
    def affinity(self) -> Affinity | None: ...

    @property
    def max_local(self) -> int:
        """How many activations of one stateless worker a silo may have; 0: the class is none."""
        ...


@dataclass(frozen=True, slots=True)
class OnSilo:
    """On the silo of that number, for as long as it is a member."""

    number: int


@dataclass(frozen=True, slots=True)
class Here:
    """On the very silo that was asked."""


HERE = Here()

Place = int | OnSilo | Here
LookUp = Callable[[str], Placed | None]


def _unknown(grain_type: str) -> Placed | None:
    del grain_type
    return None


def place_of(
    grain_type: str, grain_key: str, known: Placed | None, partitions: int, look_up: LookUp = _unknown
) -> Place:
    """Where the grain lives: a partition from 0 to ``partitions`` - 1, a silo, or here.

    ``known`` is its class where there is one; an unknown type counts as plain.  ``look_up`` finds other
    classes by type name, for grains that live with another.  Pure.  Raises :class:`InvalidGrainId` for a
    pinned type whose key names no partition or silo, and for an affinity that raises or answers with what is
    no key.
    """
    if known is not None and known.max_local:
        return HERE
    if grain_type == PARTITION_TYPE:
        return _number(grain_type, grain_key, 0, partitions - 1)
    if grain_type == SILO_TYPE:
        return OnSilo(_number(grain_type, grain_key, 1, None))
    if grain_type == REMINDERS_TYPE and (of := _grain_id(grain_key)) is not None:
        whose = look_up(of.type)
        if whose is None or not whose.max_local:
            return place_of(of.type, of.key, whose, partitions, look_up)
    return partition_of(grain_type, grain_key, partitions, None if known is None else known.affinity)


def _number(grain_type: str, key: str, first: int, last: int | None) -> int:
    """The number that the key is, written as ``str`` writes it: one grain has one key."""
    number = int(key) if key.isascii() and key.isdigit() and len(key) < 20 else -1
    if str(number) != key or number < first or (last is not None and number > last):
        bounds = f"from {first} to {last}" if last is not None else f"of {first} or more"
        raise InvalidGrainId(f"the key of {grain_type} must be a number {bounds}, not {key[:80]!r}")
    return number


def _grain_id(text: str) -> GrainId | None:
    try:
        return GrainId.parse(text)
    except InvalidGrainId:
        return None
