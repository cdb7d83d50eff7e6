"""The cluster room of one silo: it renews, looks, and does its part.

Theory of operation.  The store holds the truth: who is a member, who owns which partition, under which
epoch, all under one view number that grows with every change.  The heartbeat's answers tell the view, peers
tell when theirs changed; then the silo *tends*: it reads the rows once, gives up what is not its own any
more, buries who has died, takes what is free and ought to be its own, and begins to hand over what ought not.
Nobody leads; two silos that want the same partition race for its epoch in the store.

A silo that cannot renew stops in stages (``lease``) and goes on where it stood when it can again.  One that
the store no longer counts as a member drops everything and joins again under a new number.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
from farro.silo.cluster import balance, death
from farro.silo.cluster.heartbeat import Beat, Heartbeat
from farro.silo.cluster.lease import SUSPECT_AT, Lease, Stage
from farro.silo.cluster.links import Dial, Links
from farro.silo.cluster.observing import Observer
from farro.silo.cluster.partitions import Partitions
from farro.silo.cluster.router import Router
from farro.silo.metrics import ClusterFigures
from farro.silo.options import ClusterOptions
from farro.silo.placement import OnSilo
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.cluster")

ROUNDS_MAX = 4  # of looking and acting in one go; the next look is a second away at most
LOOK_PAUSE_S = 0.005  # between looks: whoever tells news that the store does not know makes no storm of them
TROUBLE_S = 0.2  # after the store did not answer
JOIN_AGAIN_S = 0.5
OPEN_LOOK_S = 0.1  # between two looks of a start that waits for the partitions of the dead
QUIET_RENEWALS = 1.5  # renewals that a silo may be late before somebody knocks at its door


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
        self.row = row
        self.draining = False
        self._provider = provider
        self._heartbeat = heartbeat
        self._core = core
        self._ownership = core.ownership
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
        self._clock = clock
        self._options = options
        self._lease_s = lease_s
        self._publish = publish
        self._on_stage = on_stage
        self._refuses = refuses
        self._loop = core.loop
        self._tasks = TaskOwner("cluster")
        self._lease = Lease(lease_s, self._loop.time())
        self._observer = Observer(row.number, lease_s)
        self._partitions = Partitions(provider, self._ownership, core.catalog, clock, options, row.number)
        self._rows = ClusterRows(0, (), (), ())
        self._stage = Stage.HEALTHY
        self._stage_timer: asyncio.TimerHandle | None = None
        self._renewed_at = clock.now()  # the schedule time of the last renewal that was taken
        self._settled_at = -math.inf
        self._active: frozenset[int] = frozenset()
        self._suspected: set[int] = set()
        self._asked = asyncio.Event()
        self._moving = False
        self._joining = False  # anew, or never again
        self._died = 0  # the number under which it was taken for dead
        self._published = 0
        self._router.on_stale = self.news
        core.catalog.elsewhere = self._elsewhere
        self._trust(self._loop.time())

    # ---- life

    @property
    def number(self) -> int:
        return self.row.number

    @property
    def healthy(self) -> bool:
        """The lease is being renewed."""
        return self._lease.stage(self._loop.time()) is Stage.HEALTHY

    @property
    def has_peers(self) -> bool:
        """Are there other silos on the store, as far as this one has seen?"""
        return bool(self._others(self._rows))

    async def check_alone(self) -> None:
        """A silo without an address can only be alone.  Raises StoreInUse, naming who is there."""
        rows = await self._provider.cluster()
        for other in self._others(rows):
            if (not self.row.address or not other.address) and not await self._is_dead(other):
                without = f"silo {other.number} has no address" if not other.address else "this silo has none"
                raise StoreInUse(
                    f"silo {other.number} at {other.address or 'no address'} serves this store, and silos "
                    f"that share one must reach each other; {without}: give every silo listen=HOST:PORT, or "
                    "this one another store"
                )

    async def open(self) -> None:
        """Become active and take one's part; returns when every partition has an owner that lives.

        Those of silos that may live take a lease at most; beyond two the start goes on without them.
        """
        await self._provider.set_status(self.number, SiloStatus.ACTIVE, self._clock.now())
        self._suspected |= {row.number for row in self._others(await self._provider.cluster())}
        give_up_at = self._loop.time() + 2 * self._options.lease.total_seconds()
        await self._tend()
        while not self._all_owned and self._loop.time() < give_up_at:
            await asyncio.sleep(OPEN_LOOK_S)
            await self._tend()
        self._tasks.start(self._tend_again_and_again(), "tend the cluster")

    async def drain(self, limit_s: float) -> None:
        """Hand every partition over to the other silos, as far as there are any and ``limit_s`` allows."""
        self.draining = True
        deadline = self._loop.time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._provider.set_status(self.number, SiloStatus.DRAINING, self._clock.now())
                while self._ownership.all():
                    self._rows = await self._provider.cluster()
                    self._tell(self._rows)
                    going = self._plan().hand_over
                    if not going:
                        return
                    await self._partitions.hand_over(self._first_to_go(going))
                self._tell(await self._provider.cluster())
        except TimeoutError:
            log.warning("%d partitions were not handed over in %g s", len(self._ownership.all()), limit_s)
        except StoreError as error:
            log.warning("the store does not take the hand-over: %s", error)
        finally:
            self._router.go_on()

    def _first_to_go(self, partitions: list[int]) -> list[int]:
        """Those in which everybody sleeps, at once: nobody waits for them.  Then a few at a time."""
        awake = self._core.catalog.awake_in()
        asleep = [partition for partition in partitions if partition not in awake]
        return asleep[: self._options.take_batch_max] or partitions[: self._options.drain_moves_max]

    async def close(self) -> None:
        """Look no more.  Calls that wait for another silo fail."""
        self._core.catalog.elsewhere = _closed
        if self._stage_timer is not None:
            self._stage_timer.cancel()
        await self._tasks.stop()
        self._router.close("the silo stopped")
        await self._links.close()

    def figures(self) -> ClusterFigures:
        return ClusterFigures(
            view=self._rows.view,
            stage=self._stage.value,
            members=sum(row.status.is_member for row in self._rows.silos),
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
            self._asked.set()  # the look finds out whether the store is silent or another one
            return
        if beat.view is None:
            self._died = beat.number
            if not self._joining:
                self._joining = True
                self._tasks.start(self._join_again(), "join again")
            return
        if beat.number != self.number:
            return  # it has a new number and is not done with joining
        cut_off = self._lease.stage(self._loop.time()) is not Stage.HEALTHY
        was_frozen = self._stage is Stage.FROZEN or self._loop.time() >= self._core.frozen_from
        renewed_at, self._renewed_at = self._renewed_at, self._clock.now()
        self._trust(beat.sent_at)
        if cut_off:
            self._observer.start_over(self._loop.time())
        if was_frozen:
            log.warning("silo %d could renew again and goes on", self.number)
            # what fell due before it became suspect was served, and may be under way
            served_until = renewed_at + loop_us(self._clock, SUSPECT_AT * self._lease_s)
            self._partitions.begin_anew(served_until)
        if cut_off or was_frozen:
            self._router.go_on()
        if beat.view != self._rows.view or was_frozen or self._others(self._rows):
            self._asked.set()

    def news(self, view: int) -> None:
        """Somebody has heard of that view."""
        if view > self._rows.view:
            self._asked.set()

    def _link_down(self, number: int, reason: str) -> None:
        log.info("the link to silo %d broke: %s", number, reason)
        self._suspected.add(number)
        self._asked.set()

    def fenced(self, partition: int) -> None:
        """The store refused a commit under the epoch this silo has for the partition."""
        log.info("partition %d is another silo's", partition)
        self._asked.set()

    def _elsewhere(self, call: Invocation, place: int | OnSilo) -> None:
        if isinstance(place, int) and self._ownership.owned(place) is not None:
            self._router.hold(call, place)  # suspect, frozen, or being handed over
        else:
            self._router.submit(call, place)

    # ---- the lease

    def _trust(self, sent_at: float) -> None:
        """A renewal that was sent then has been taken."""
        self._lease.renewed(sent_at)
        self._core.suspect_from = self._lease.suspect_at
        self._core.frozen_from = self._lease.freezes_at
        self._look_at_stage()

    def _look_at_stage(self) -> None:
        now = self._loop.time()
        stage = self._lease.stage(now)
        if stage is not self._stage:
            if stage is not Stage.HEALTHY:
                log.warning(
                    "silo %d has not renewed for %.1f s and is %s",
                    self.number,
                    now - (self._lease.suspect_at - self._lease_s / 2),
                    stage.value,
                )
            self._stage = stage
            self._on_stage(stage)
        if self._stage_timer is not None:
            self._stage_timer.cancel()
            self._stage_timer = None
        if (when := self._lease.next_change(now)) < math.inf:
            self._stage_timer = self._loop.call_at(when, self._look_at_stage)

    async def _join_again(self) -> None:
        """The store counts this silo among the dead: all it owned is somebody else's."""
        log.warning("silo %d was taken for dead; it joins again under a new number", self.number)
        self._partitions.forget(self._ownership.all())
        joined = False
        while True:
            try:
                if not joined:
                    sent_at = self._loop.time()
                    self._go_by(await self._heartbeat.join(self.row.address))
                    self._trust(sent_at)
                    joined = True
                if not self.row.address:
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
        self._asked.set()

    def _go_by(self, row: SiloRow) -> None:
        """Take a new number."""
        self.row = row
        self._observer = Observer(row.number, self._lease_s)
        self._partitions.number = self._core.committer.owner = row.number
        self._links.number = self._router.number = row.number

    # ---- tending

    async def _tend_again_and_again(self) -> None:
        blind = False
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self._tend()
            except StoreChanged as error:
                self._core.committer.on_dispossessed(str(error))
                return
            except StoreError as error:
                tell = log.debug if blind else log.warning  # once for each time that the store is away
                tell("the cluster cannot be looked at: %s", error)
                blind = True
            except Exception:  # a fault in a provider, as in the heartbeat
                log.exception("a look at the cluster failed; the next one comes")
            else:
                blind = False
                await asyncio.sleep(LOOK_PAUSE_S)
                continue
            await asyncio.sleep(TROUBLE_S)
            self._asked.set()

    async def _tend(self) -> None:
        """Look, tell everybody what is, and act, until there is nothing to do."""
        for _ in range(ROUNDS_MAX):
            rows = await self._provider.cluster()
            if rows.view >= self._rows.view:
                self._rows = rows
            self._note_who_is_active()
            if lost := self._partitions.lost(self._rows):
                log.warning("silo %d lost %d partitions", self.number, len(lost))
                self._partitions.forget(lost)
            self._tell(self._rows)
            if not await self._bury() and not await self._take():
                break
        else:
            self._asked.set()  # there may be more, and what was done last has not been told
        self._balance()

    def _note_who_is_active(self) -> None:
        active = frozenset(row.number for row in self._rows.silos if row.status is SiloStatus.ACTIVE)
        if active != self._active:
            self._active = active
            self._settled_at = self._loop.time() + self._options.settle.total_seconds()

    async def _bury(self) -> bool:
        """Mark as dead who has died; was there anybody?"""
        now = self._loop.time()
        late_s = QUIET_RENEWALS * self._options.renew_interval.total_seconds()
        expired = {row.number for row in self._observer.saw(self._rows.silos, now)}
        if self._lease.stage(now) is not Stage.HEALTHY:
            return False  # who cannot renew may be the one in trouble
        buried = False
        for row in self._others(self._rows):
            late = self._observer.quiet_s(row.number, now) > late_s and bool(row.address)
            if row.number in expired:
                dead, why = True, "has not renewed for a whole lease"
            else:
                knock = late or row.number in self._suspected
                dead, why = knock and await self._is_dead(row), "has ended"
            if dead and await self._provider.mark_dead(row.number, row.renewals, self._clock.now()):
                log.warning("silo %d at %s %s: it counts as dead", row.number, row.address or "-", why)
                buried = True
            self._suspected.discard(row.number)
        return buried

    async def _is_dead(self, silo: SiloRow) -> bool:
        return await death.is_proven(silo, self._provider, self._nobody_else_at)

    async def _nobody_else_at(self, address: str) -> bool:
        """At the silo's own address nobody else listens: who had it before has ended."""
        return address == self.row.address or await self._refuses(address)

    async def _take(self) -> bool:
        """Take what is free and ought to be one's own, let go what neither is; was there anything?"""
        plan = self._plan()
        if plan.let_go:
            await self._partitions.let_go(plan.let_go)
            return True
        if self.draining or self._lease.stage(self._loop.time()) is not Stage.HEALTHY:
            return False
        return bool(plan.take) and await self._partitions.take(plan.take, self._rows.epochs) > 0

    def _plan(self) -> balance.Plan:
        return balance.plan(self._rows, self.number, self._ownership.all(), self._router.held_partitions())

    def _balance(self) -> None:
        """Begin to hand over what ought to live elsewhere, a few at a time, once things have settled."""
        if self._moving or self.draining:
            return
        going = self._plan().hand_over[: self._options.moves_max]
        if not going:
            return
        wait_s = self._settled_at - self._loop.time()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._asked.set)
            return
        self._moving = True
        self._tasks.start(self._move(going), "hand partitions over")

    async def _move(self, going: list[int]) -> None:
        try:
            await self._partitions.hand_over(going)
        except StoreError as error:
            log.warning("%d partitions were not handed over: %s", len(going), error)
            self._router.go_on()
            await asyncio.sleep(TROUBLE_S)
        finally:
            self._moving = False
            self._asked.set()

    # ---- small things

    def _others(self, rows: ClusterRows) -> list[SiloRow]:
        return [row for row in rows.silos if row.status.is_member and row.number != self.number]

    @property
    def _all_owned(self) -> bool:
        """Every partition has an owner, and nobody among the owners is suspected."""
        rows = self._rows
        members = {row.number for row in rows.silos if row.status.is_member}
        late_s = QUIET_RENEWALS * self._options.renew_interval.total_seconds()
        now = self._loop.time()
        return all(
            owner in members and self._observer.quiet_s(owner, now) <= late_s for owner in set(rows.owners)
        )

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
