"""What operators ask: the grain ``farro.cluster``, and what ``farro.silo`` needs of its host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from farro.client.errors import FarroError, StorageUnavailable
from farro.providers.errors import StoreError
from farro.providers.members import ClusterRows
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.stateless import stateless_worker


class NotDrainable(FarroError):
    """Nobody in that silo's program offers to drain it; stop it where it is hosted."""

    code = "not_drainable"
    turn_ran = True


@dataclass(frozen=True, slots=True)
class SiloFacts:
    """How a silo sees itself.  ``stage``: of its lease (healthy, suspect, frozen).  ``calls_held``: those
    that wait for the owner of their partition.
    """

    number: int
    view: int
    stage: str
    draining: bool
    partitions: int
    turns_running: int
    calls_held: int


class SiloControl(Protocol):
    """What the host lets these grains do."""

    def facts(self) -> SiloFacts: ...

    async def rows(self) -> ClusterRows:
        """Silos and partitions as they stand in the store now."""
        ...

    def request_drain(self, reason: str) -> None:
        """Begin to drain, soon; repeatable.  Raises :class:`NotDrainable`."""
        ...


@stateless_worker(max_local=4)
class ClusterLook(Grain, name="farro.cluster"):
    """Answered by whichever silo is asked.  Any key will do."""

    __farro_system__ = True

    @readonly
    async def rows(self) -> ClusterRows:
        control: SiloControl = self._farro_runtime.control
        try:
            return await control.rows()
        except StoreError as error:
            raise StorageUnavailable(f"this silo cannot read its store: {error}") from error
