"""What the grains ``farro.cluster`` and ``farro.silo`` may do with the silo they live on."""

from __future__ import annotations

from collections.abc import Callable

from farro.providers.contracts import Provider
from farro.providers.members import ClusterRows
from farro.silo.cluster.silo_grain import NotDrainable, SiloFacts
from farro.silo.membership import Membership
from farro.silo.rooms import Rooms


class Control:
    """See :class:`farro.silo.cluster.silo_grain.SiloControl`."""

    def __init__(self, provider: Provider, rooms: Rooms, membership: Membership) -> None:
        self._provider = provider
        self._rooms = rooms
        self._membership = membership
        self._tell: Callable[[str], None] | None = None

    def on_drain(self, tell: Callable[[str], None]) -> None:
        """``tell`` is called with the reason when somebody asks; it must see to it that the silo stops."""
        self._tell = tell

    def facts(self) -> SiloFacts:
        cluster = self._membership.cluster
        figures = cluster.figures()
        return SiloFacts(
            number=cluster.number,
            view=figures.view,
            stage=figures.stage,
            draining=cluster.draining,
            partitions=figures.partitions,
            turns_running=len(self._rooms.core.running) - 1,  # but for the turn that asks
            calls_held=figures.calls_held,
        )

    async def rows(self) -> ClusterRows:
        return await self._provider.cluster()

    def request_drain(self, reason: str) -> None:
        if self._tell is None:
            raise NotDrainable(
                f"silo {self._membership.number} lives inside a program that does not offer to drain it "
                "(Silo.on_drain); stop that program"
            )
        self._rooms.core.loop.call_soon(self._tell, reason)
