"""The cluster room of one silo: what it is told and tells, and how it joins again when it was taken for dead.

Theory of operation.  The store holds the truth: who is a member, who owns which partition, under which
epoch, all under one view number that grows with every change.  The heartbeat's answers tell the view, peers
tell when theirs changed; then the silo looks and does its part (``reconciler``).

A silo that cannot renew stops in stages (``standing``) and goes on where it stood when it can again.  One
that the store no longer counts as a member drops everything and joins again under a new number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from farro.client.clock import Clock, loop_us
from farro.client.cluster_map import ClusterMap
from farro.client.errors import SiloStopping
from farro.providers.contracts import Provider
from farro.providers.errors import StoreChanged, StoreError, StoreInUse
from farro.providers.members import ClusterRows, SiloRow, SiloStatus
from farro.silo.activations.core import Core
from farro.silo.activations.invocation import Invocation
from farro.silo.cluster import death
from farro.silo.cluster.heartbeat import Beat, Heartbeat
from farro.silo.cluster.lease import SUSPECT_AT, Stage
from farro.silo.cluster.links import Dial, Links
from farro.silo.cluster.reconciler import Reconciler
from farro.silo.cluster.router import Router
from farro.silo.cluster.standing import Standing
from farro.silo.metrics import ClusterFigures
from farro.silo.options import ClusterOptions
from farro.silo.placement import OnSilo
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.cluster")

JOIN_AGAIN_S = 0.5


class Cluster:
    """See the head of the file.  Built by the host on rooms that are made; opened after they are open."""

    def __init__(
        self,
        *,
        provider: Provider,
        heartbeat: Heartbeat,
        core: Core,
        clock: Clock,
        random: Random,
        options: ClusterOptions,
        service_id: str,
        row: SiloRow,
        lease_s: float,
        publish: Callable[[ClusterMap], None],
        on_stage: Callable[[Stage], None],
        dial: Dial | None = None,
        refuses: death.Refuses = death.refuses,
    ) -> None:
        self._provider = provider
        self._heartbeat = heartbeat
        self._core = core
        self._ownership = core.ownership
        self._clock = clock
        self._publish = publish
        self._loop = core.loop
        self._tasks = TaskOwner("cluster")
        self._standing = Standing(row, lease_s, core, on_stage)
        self._links = Links(
            row.number,
            service_id,
            core.codec,
            random,
            on_down=self._link_down,
            on_news=self.news,
            dial=dial,
        )
        self._router = Router(row.number, self._ownership, core.catalog, self._links, random)
        self._reconciler = Reconciler(
            provider=provider,
            core=core,
            router=self._router,
            clock=clock,
            options=options,
            standing=self._standing,
            tasks=self._tasks,
            tell=self._tell,
            refuses=refuses,
        )
        self._renewed_at = clock.now()  # the schedule time of the last renewal that was taken
        self._joining = False  # anew, or never again
        self._died = 0  # the number under which it was taken for dead
        self._published = 0
        self._router.on_stale = self.news
        core.catalog.elsewhere = self._elsewhere

    # ---- life

    @property
    def number(self) -> int:
        return self._standing.number

    @property
    def healthy(self) -> bool:
        """The lease is being renewed."""
        return self._standing.healthy

    @property
    def has_peers(self) -> bool:
        """Are there other silos on the store, as far as this one has seen?"""
        return self._reconciler.has_peers

    @property
    def draining(self) -> bool:
        """It hands over what it owns, and takes nothing."""
        return self._reconciler.draining

    async def check_alone(self) -> None:
        """A silo without an address can only be alone.  Raises StoreInUse, naming who is there."""
        await self._reconciler.check_alone()

    async def open(self) -> None:
        """Become active and take one's part; returns when every partition has an owner that lives.

        Those of silos that may live take a lease at most; beyond two the start goes on without them.
        """
        await self._reconciler.open()

    async def drain(self, limit_s: float) -> None:
        """Hand every partition over to the other silos, as far as there are any and ``limit_s`` allows."""
        await self._reconciler.drain(limit_s)

    async def close(self) -> None:
        """Look no more.  Calls that wait for another silo fail."""
        self._core.catalog.elsewhere = _closed
        self._standing.close()
        await self._tasks.stop()
        self._router.close("the silo stopped")
        await self._links.close()

    def figures(self) -> ClusterFigures:
        return ClusterFigures(
            view=self._reconciler.rows.view,
            stage=self._standing.stage.value,
            members=sum(row.status.is_member for row in self._reconciler.rows.silos),
            partitions=len(self._ownership.all()),
            calls_held=self._router.held,
            links=self._links.connected,
        )

    # ---- what others tell

    def heard(self, beat: Beat) -> None:
        """The heartbeat's answer."""
        if self._tasks.stopping:
            return
        if beat.error is not None:
            log.info("silo %d could not renew: %s", beat.number, beat.error)
            if beat.store_changed:
                self._core.committer.on_dispossessed(beat.error)
                return
            self._standing.trouble = beat.error
            self._reconciler.look()  # the look finds out whether the store is silent or another one
            return
        if beat.view is None:
            self._died = beat.number
            if not self._joining:
                self._joining = True
                self._tasks.start(self._join_again(), "join again")
            return
        if beat.number != self.number:
            return  # it has a new number and is not done with joining
        cut_off, was_frozen = not self._standing.healthy, self._standing.frozen
        renewed_at, self._renewed_at = self._renewed_at, self._clock.now()
        self._standing.trust(beat.sent_at)
        if cut_off:
            self._reconciler.start_over()
        if was_frozen:
            log.warning("silo %d could renew again and goes on", self.number)
            # what fell due before it became suspect was served, and may be under way
            served_until = renewed_at + loop_us(self._clock, SUSPECT_AT * self._standing.lease_s)
            self._reconciler.partitions.begin_anew(served_until)
        if cut_off or was_frozen:
            self._router.go_on()
        if beat.view != self._reconciler.rows.view or was_frozen or self.has_peers:
            self._reconciler.look()

    def news(self, view: int) -> None:
        """Somebody has heard of that view."""
        if view > self._reconciler.rows.view:
            self._reconciler.look()

    def _link_down(self, number: int, reason: str) -> None:
        log.info("the link to silo %d broke: %s", number, reason)
        self._reconciler.suspect(number)

    def fenced(self, partition: int) -> None:
        """The store refused a commit under the epoch this silo has for the partition."""
        log.info("partition %d is another silo's", partition)
        self._reconciler.look()

    def _elsewhere(self, call: Invocation, place: int | OnSilo) -> None:
        if isinstance(place, int) and self._ownership.owned(place) is not None:
            self._router.hold(call, place)  # suspect, frozen, or being handed over
        else:
            self._router.submit(call, place)

    # ---- taken for dead

    async def _join_again(self) -> None:
        """The store counts this silo among the dead: all it owned is somebody else's."""
        log.warning("silo %d was taken for dead; it joins again under a new number", self.number)
        self._reconciler.partitions.forget(self._ownership.all())
        joined = False
        while True:
            try:
                if not joined:
                    sent_at = self._loop.time()
                    self._go_by(await self._heartbeat.join(self._standing.row.address))
                    self._standing.trust(sent_at)
                    joined = True
                if not self._standing.row.address:
                    await self.check_alone()
                status = SiloStatus.DRAINING if self.draining else SiloStatus.ACTIVE
                joined = await self._provider.set_status(self.number, status, self._clock.now())
                if joined and self._died != self.number:
                    break
                joined = False
            except StoreChanged as error:
                self._core.committer.on_dispossessed(str(error))
                return
            except StoreInUse as error:
                self._core.committer.on_dispossessed(str(error))
                await self._provider.leave(self.number, self._clock.now())
                return
            except StoreError as error:
                log.warning("cannot join again yet: %s", error)
            except Exception:  # a fault in a provider, as in the heartbeat
                log.exception("the provider failed while the silo joined again; it goes on trying")
            await asyncio.sleep(JOIN_AGAIN_S)
        self._joining = False
        self._reconciler.look()

    def _go_by(self, row: SiloRow) -> None:
        """Take a new number."""
        self._standing.row = row
        self._reconciler.renumber()
        self._core.committer.owner = self._links.number = self._router.number = row.number

    # ---- telling

    def _tell(self, rows: ClusterRows) -> None:
        """Routes, peers and clients by the newest view."""
        if rows.view <= self._published:
            return
        self._published = rows.view
        map_ = ClusterMap(
            view=rows.view,
            partitions=len(rows.owners),
            addresses={
                row.number: f"http://{row.address}"
                for row in rows.silos
                if row.status.is_member and row.address
            },
            owners=rows.owners,
        )
        self._links.update(map_)
        self._links.tell_news(rows.view)
        self._router.update(map_)
        self._publish(map_)


def _closed(call: Invocation, place: int | OnSilo) -> None:
    del place
    call.respond(None, SiloStopping(f"this silo has stopped and does not serve {call.target} any more"))
