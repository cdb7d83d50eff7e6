"""A silo's own lease: how far it may trust that nobody else owns its partitions.  Pure.

Theory of operation.  Every renewal that the store took makes the lease whole again, counted from the moment
*before* it was sent.  Others take over when they have seen no renewal for the whole lease and a hundredth
more, so a silo that counts from then on its own monotonic clock always stops first:

=============  ==============================  ========================================================
stage          since the last renewal          what the silo does
=============  ==============================  ========================================================
HEALTHY        less than half the lease        everything
SUSPECT        half the lease                  no ticks and no new activations begin
FROZEN         seven eighths of it             no turn begins, reads included; running ones may try to
                                               commit, and the fence decides
=============  ==============================  ========================================================

A renewal that works again thaws it: what is still its own by the store's epochs goes on with its memory
intact.  A renewal that says the silo is no member any more ends this life of it.
"""

from __future__ import annotations

import math
from enum import Enum

SUSPECT_AT = 1 / 2
FREEZE_AT = 7 / 8
EXPIRED_AT = 1.01  # of the lease, when others may take over


class Stage(Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FROZEN = "frozen"


class Lease:
    """``lease_s`` in loop seconds, infinite for a silo alone by the rules.  Instants are loop time."""

    def __init__(self, lease_s: float, now: float) -> None:
        self._lease_s = lease_s
        self._renewed_at = now

    def renewed(self, sent_at: float) -> None:
        """The store has taken a renewal that was sent at ``sent_at``."""
        self._renewed_at = max(self._renewed_at, sent_at)

    @property
    def suspect_at(self) -> float:
        return self._renewed_at + SUSPECT_AT * self._lease_s

    @property
    def freezes_at(self) -> float:
        """From here on no turn may begin."""
        return self._renewed_at + FREEZE_AT * self._lease_s

    def stage(self, now: float) -> Stage:
        if now >= self.freezes_at:
            return Stage.FROZEN
        return Stage.SUSPECT if now >= self.suspect_at else Stage.HEALTHY

    def next_change(self, now: float) -> float:
        """When the stage changes unless a renewal comes; infinity when it will not."""
        if now < self.suspect_at:
            return self.suspect_at
        return self.freezes_at if now < self.freezes_at else math.inf
