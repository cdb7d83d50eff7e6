"""The grains that silos talk to each other by: ``farro.partition/<p>`` and ``farro.silo/<n>``.

Each is pinned: one lives where its partition is owned, the other on the silo of its number.  So what only an
owner may do is an ordinary call, which the router brings to whoever that is.
"""

from __future__ import annotations

from collections.abc import Awaitable

from farro.client.errors import SiloUnavailable
from farro.client.reminders import PastTick
from farro.client.streams import StoredEvent
from farro.silo.cluster.silo_grain import SiloControl, SiloFacts
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.reminders.management import Names
from farro.silo.reminders.management_grain import ReminderVerbs, grain_or_all
from farro.silo.reminders.management_owners import ClusterDesk, Verb
from farro.silo.streams.core import Brought
from farro.silo.streams.subscribers import Subscribers


class PartitionGrain(ReminderVerbs, Grain, name="farro.partition"):
    """What the owner of a partition does for the other silos.  All are read-only turns, side by side.

    The verbs of :class:`farro.silo.reminders.management_owners.OwnerApi` and of
    :class:`farro.silo.streams.subscribers.OwnerApi`.  :class:`~farro.client.errors.Fenced` on a silo that has
    lost the partition.
    """

    __farro_system__ = True

    @property
    def _desk(self) -> ClusterDesk:
        desk: ClusterDesk = self._farro_runtime.desk
        return desk

    @property
    def _subscribers(self) -> Subscribers:
        subscribers: Subscribers = self._farro_runtime.streams.subscribers
        return subscribers

    # ---- reminders

    def _carry_out(self, grain_type: str, grain_key: str, verb: Verb) -> Awaitable[None]:
        """Here and nowhere else: the call came because this silo owns the partition, or did."""
        del grain_type, grain_key
        return verb(self._desk.here)

    @readonly
    async def pause_some(self, names: Names, note: str | None) -> int:
        return await self._desk.here.pause_some(names, note)

    @readonly
    async def resume_some(self, names: Names, note: str | None) -> int:
        return await self._desk.here.resume_some(names, note)

    @readonly
    async def delete_some(self, names: Names) -> int:
        return await self._desk.here.delete_some(names)

    # ---- streams

    @readonly
    async def bring(
        self, grain_type: str, grain_key: str, method: str, stream: str, event: StoredEvent
    ) -> Brought:
        return await self._subscribers.bring_for_other(grain_type, grain_key, method, stream, event)

    @readonly
    async def pass_over(
        self, grain_type: str, grain_key: str, stream: str, partition: int, sequence: int
    ) -> bool:
        return await self._subscribers.pass_over_here(grain_type, grain_key, stream, partition, sequence)

    @readonly
    async def begin_now(self, place_type: str, place_key: str, stream: str) -> bool:
        return await self._subscribers.begin_now_here(place_type, place_key, stream)


class SiloGrain(Grain, name="farro.silo"):
    """What a silo tells of itself, and what it is told.  It answers without lease and partitions, and so when
    it is frozen as well."""

    __farro_system__ = True

    @property
    def _desk(self) -> ClusterDesk:
        desk: ClusterDesk = self._farro_runtime.desk
        if self.key != str(desk.number):
            raise SiloUnavailable(
                f"this is silo {desk.number}; silo {self.key[:20]} cannot be reached from it",
                turn_ran=False,
            )
        return desk

    @property
    def _control(self) -> SiloControl:
        control: SiloControl = self._farro_runtime.control
        return control

    @readonly
    async def last_ticks(
        self, grain_type: str | None, grain_key: str | None, name: str | None, limit: int
    ) -> list[PastTick]:
        return self._desk.here.history(grain_or_all(grain_type, grain_key), name, limit)

    @readonly
    async def facts(self) -> SiloFacts:
        return self._control.facts()

    @readonly
    async def drain(self) -> None:
        """Hand the partitions over, then stop.  Answered before it begins: it waits for running turns."""
        self._control.request_drain("asked to drain by an operator")
