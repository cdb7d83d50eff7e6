"""The grains ``farro.cluster`` and ``farro.silo``: what operators ask a cluster and order a silo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from farro.client.errors import FarroError
from farro.providers.members import ClusterRows
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.stateless import stateless_worker


class NotDrainable(FarroError):
    """Nobody in that silo's program offers to drain it; stop it where it is hosted."""

    code = "not_drainable"
    turn_ran = True


class WrongSilo(FarroError):
    """Another silo than the one that was meant is at that address."""

    code = "wrong_silo"
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
        return await control.rows()


@stateless_worker(max_local=4)
class SiloGrain(Grain, name="farro.silo"):
    """The silo whose number is its key, asked at its own address: it answers without lease and partitions,
    and so when it is frozen as well.  Elsewhere: :class:`WrongSilo`.
    """

    __farro_system__ = True

    @property
    def _control(self) -> SiloControl:
        control: SiloControl = self._farro_runtime.control
        number = control.facts().number
        if self.key != str(number):
            raise WrongSilo(f"silo {number} is at this address, not silo {self.key[:20]}")
        return control

    @readonly
    async def facts(self) -> SiloFacts:
        return self._control.facts()

    @readonly
    async def drain(self) -> None:
        """Hand the partitions over, then stop.  Answered before it begins: it waits for running turns."""
        self._control.request_drain("asked to drain by an operator")
