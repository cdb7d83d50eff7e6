"""Says once of each turn that is taking too long, so that a stuck grain is never silent."""

from __future__ import annotations

import logging

from farro.silo.activations.core import Core
from farro.silo.activations.failures import printable

log = logging.getLogger("farro.turns")


class TurnWatch:
    def __init__(self, core: Core, slow_turn_s: float) -> None:
        self._core = core
        self._slow_turn_s = slow_turn_s

    async def look(self) -> None:
        """Log every running turn older than the bound, once each."""
        now = self._core.loop.time()
        for turn in list(self._core.running):
            age = now - turn.started_at
            if age >= self._slow_turn_s and not turn.warned:
                turn.warned = True
                grain_type, grain_key, method, _ = turn.chain[-1]
                log.warning(
                    "turn still running after %.0f s grain=%s/%s method=%s",
                    age,
                    printable(grain_type),
                    printable(grain_key),
                    method,
                )
