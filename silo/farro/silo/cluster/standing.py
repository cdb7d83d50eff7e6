"""How far one silo may trust itself: its number in the store, and its lease, kept on the silo's loop.

Every renewal that was taken makes the lease whole again.  Without one the stages (``lease``) come by a timer,
and whoever was told of the last is told of the next; the core reads by itself from which instant on no
activation and no turn may begin, so that a late timer lets none through.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from farro.providers.members import SiloRow
from farro.silo.activations.core import Core
from farro.silo.cluster.lease import SUSPECT_AT, Lease, Stage

log = logging.getLogger("farro.cluster")


class Standing:
    """``row`` is another one once the silo had to join anew.

    ``lease_s`` in loop seconds, infinite for a silo alone by the rules.  ``on_stage`` is told of every new
    stage, on the loop.
    """

    def __init__(self, row: SiloRow, lease_s: float, core: Core, on_stage: Callable[[Stage], None]) -> None:
        self.row = row
        self.lease_s = lease_s
        self.stage = Stage.HEALTHY  # as it was told last
        self.trouble = ""  # why the last renewal failed that did
        self._core = core
        self._on_stage = on_stage
        self._loop = core.loop
        self._lease = Lease(lease_s, self._loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self.trust(self._loop.time())

    @property
    def number(self) -> int:
        return self.row.number

    @property
    def healthy(self) -> bool:
        """The lease is being renewed."""
        return self._lease.stage(self._loop.time()) is Stage.HEALTHY

    @property
    def frozen(self) -> bool:
        """No turn begins, whether or not that was told already."""
        return self.stage is Stage.FROZEN or self._loop.time() >= self._core.frozen_from

    def trust(self, sent_at: float) -> None:
        """A renewal that was sent then, in loop time, has been taken."""
        self._lease.renewed(sent_at)
        self.trouble = ""
        self._core.suspect_from = self._lease.suspect_at
        self._core.frozen_from = self._lease.freezes_at
        self._look_at_stage()

    def close(self) -> None:
        """Tell of no stage any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at_stage(self) -> None:
        now = self._loop.time()
        stage = self._lease.stage(now)
        if stage is not self.stage:
            if stage is not Stage.HEALTHY:
                log.warning(
                    "silo %d has not renewed for %.1f s and is %s%s",
                    self.number,
                    now - (self._lease.suspect_at - SUSPECT_AT * self.lease_s),
                    stage.value,
                    f": {self.trouble}" if self.trouble else "",
                )
            self.stage = stage
            self._on_stage(stage)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (when := self._lease.next_change(now)) < math.inf:
            self._timer = self._loop.call_at(when, self._look_at_stage)
