"""Who owns which partition, and where: the cluster as of one view.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTITIONS_MAX = 1 << 16
SILOS_MAX = 1_000  # a cluster that large needs another wire
ADDRESS_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """The silos and the owners of one view.

    ``addresses``: silo number → ``http://HOST:PORT`` of every member that serves.  ``owners``: the silo
    number for each partition, 0 for nobody; an owner may lack an address (it joins, or has just gone).  A
    newer map has a greater ``view``.  Raises ``ValueError`` for what cannot be a map: its values may come
    from the wire.
    """

    view: int
    partitions: int
    addresses: Mapping[int, str]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.view) is not int or self.view < 0:
            raise ValueError("the view must be an int from 0")
        if type(self.partitions) is not int or not 1 <= self.partitions <= PARTITIONS_MAX:
            raise ValueError(f"the partitions must be an int from 1 to {PARTITIONS_MAX}")
        if len(self.owners) != self.partitions:
            raise ValueError(f"{len(self.owners)} owners for {self.partitions} partitions")
        if set(map(type, self.owners)) != {int} or min(self.owners) < 0:
            raise ValueError("an owner must be an int from 0")
        if len(self.addresses) > SILOS_MAX:
            raise ValueError(f"{len(self.addresses)} silos; at most {SILOS_MAX} are allowed")
        for number, address in self.addresses.items():
            if type(number) is not int or number < 1:
                raise ValueError("the number of a silo must be an int above 0")
            if type(address) is not str or not 0 < len(address) <= ADDRESS_CHARACTERS_MAX:
                raise ValueError(f"the address of silo {number} must be a short text")

    def owner_of(self, partition: int) -> int:
        """The number of the silo that owns it; 0: nobody."""
        return self.owners[partition]

    def address_of(self, partition: int) -> str | None:
        """Where its owner serves; None when nobody owns it, or nobody can be reached."""
        return self.addresses.get(self.owners[partition])
