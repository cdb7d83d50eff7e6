"""Brings what a silo serves into line with what the store says: look, compare, act, and look again.

Theory of operation.  A look reads all rows of the cluster once, under their view.  Then the silo gives up
what is not its own any more, buries who has died, takes what is free and ought to be its own, and begins to
hand over what ought not, until a look finds nothing to do.  It looks when somebody asks for it: the heartbeat
or a peer that knows of another view, a link that broke, a commit that was refused.  Nobody leads; two silos
that want the same partition race for its epoch in the store.

It buries and takes as long as its silo is healthy by its own ``standing``; gives up and hands over always.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from farro.client.clock import Clock
from farro.providers.contracts import Provider
from farro.providers.errors import StoreChanged, StoreError, StoreInUse
from farro.providers.members import ClusterRows, SiloRow, SiloStatus
from farro.silo.activations.core import Core
from farro.silo.cluster import balance, death
from farro.silo.cluster.observing import Observer
from farro.silo.cluster.partitions import Partitions
from farro.silo.cluster.router import Router
from farro.silo.cluster.standing import Standing
from farro.silo.options import ClusterOptions
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.cluster")

ROUNDS_MAX = 4  # of looking and acting in one go; the next look is a second away at most
LOOK_PAUSE_S = 0.005  # between looks: whoever tells news that the store does not know makes no storm of them
TROUBLE_S = 0.2  # after the store did not answer
OPEN_LOOK_S = 0.1  # between two looks of a start that waits for the partitions of the dead
QUIET_RENEWALS = 1.5  # renewals that a silo may be late before somebody knocks at its door


class Reconciler:
    """One silo's part in the cluster.  ``tell`` is given the rows of every look."""

    def __init__(
        self,
        *,
        provider: Provider,
        core: Core,
        router: Router,
        clock: Clock,
        options: ClusterOptions,
        standing: Standing,
        tasks: TaskOwner,
        tell: Callable[[ClusterRows], None],
        refuses: death.Refuses,
    ) -> None:
        self.rows = ClusterRows(0, (), (), ())  # of the last look
        self.partitions = Partitions(provider, core.ownership, core.catalog, clock, options, standing.number)
        self.draining = False
        self._provider = provider
        self._core = core
        self._ownership = core.ownership
        self._router = router
        self._clock = clock
        self._options = options
        self._standing = standing
        self._tasks = tasks
        self._tell = tell
        self._refuses = refuses
        self._loop = core.loop
        self._observer = Observer(standing.number, standing.lease_s)
        self._settled_at = -math.inf
        self._active: frozenset[int] = frozenset()
        self._suspected: set[int] = set()
        self._asked = asyncio.Event()
        self._moving = False
        self._move_failed = False

    # ---- asked by the cluster room

    @property
    def has_peers(self) -> bool:
        """Are there other silos on the store, as far as this one has seen?"""
        return bool(self._others(self.rows))

    def look(self) -> None:
        """Look soon: something may have changed."""
        self._asked.set()

    def suspect(self, number: int) -> None:
        """That silo may have ended: look, and knock at its door."""
        self._suspected.add(number)
        self._asked.set()

    def start_over(self) -> None:
        """The silo was cut off: what it has seen of the others counts no more."""
        self._observer.start_over(self._loop.time())

    def renumber(self) -> None:
        """The silo has joined under a new number."""
        self._observer = Observer(self._standing.number, self._standing.lease_s)
        self.partitions.number = self._standing.number

    async def check_alone(self) -> None:
        """A silo without an address can only be alone.  Raises StoreInUse, naming who is there."""
        rows = await self._provider.cluster()
        for other in self._others(rows):
            if (not self._standing.row.address or not other.address) and not await self._is_dead(other):
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
        await self._provider.set_status(self._standing.number, SiloStatus.ACTIVE, self._clock.now())
        self._suspected |= {row.number for row in self._others(await self._provider.cluster())}
        give_up_at = self._loop.time() + 2 * self._options.lease.total_seconds()
        await self._reconcile()
        while not self._all_owned and self._loop.time() < give_up_at:
            await asyncio.sleep(OPEN_LOOK_S)
            await self._reconcile()
        self._tasks.start(self._keep_looking(), "reconcile")

    async def drain(self, limit_s: float) -> None:
        """Hand every partition over to the other silos, as far as there are any and ``limit_s`` allows."""
        self.draining = True
        deadline = self._loop.time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._provider.set_status(self._standing.number, SiloStatus.DRAINING, self._clock.now())
                while self._ownership.all():
                    self.rows = await self._provider.cluster()
                    self._tell(self.rows)
                    going = self._plan().hand_over
                    if not going:
                        return
                    await self.partitions.hand_over(self._first_to_go(going))
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

    # ---- looking and acting

    async def _keep_looking(self) -> None:
        blind = False
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self._reconcile()
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

    async def _reconcile(self) -> None:
        """Look, tell everybody what is, and act, until there is nothing to do."""
        for _ in range(ROUNDS_MAX):
            rows = await self._provider.cluster()
            if rows.view >= self.rows.view:
                self.rows = rows
            self._note_who_is_active()
            if lost := self.partitions.lost(self.rows):
                log.warning("silo %d lost %d partitions", self._standing.number, len(lost))
                self.partitions.forget(lost)
            self._tell(self.rows)
            if not await self._bury() and not await self._take():
                break
        else:
            self._asked.set()  # there may be more, and what was done last has not been told
        self._balance()

    def _note_who_is_active(self) -> None:
        active = frozenset(row.number for row in self.rows.silos if row.status is SiloStatus.ACTIVE)
        if active != self._active:
            self._active = active
            self._settled_at = self._loop.time() + self._options.settle.total_seconds()

    async def _bury(self) -> bool:
        """Mark as dead who has died; was there anybody?"""
        now = self._loop.time()
        late_s = QUIET_RENEWALS * self._options.renew_interval.total_seconds()
        expired = {row.number for row in self._observer.saw(self.rows.silos, now)}
        if not self._standing.healthy:
            return False  # who cannot renew may be the one in trouble
        buried = False
        knocks: list[SiloRow] = []
        for row in self._others(self.rows):
            late = self._observer.quiet_s(row.number, now) > late_s and bool(row.address)
            if row.number in expired:
                buried |= await self._mark_dead(row, "has not renewed for a whole lease")
            elif late or row.number in self._suspected:
                knocks.append(row)
        # at all doors at once: whoever does not answer takes its time
        for row, dead in zip(knocks, await asyncio.gather(*map(self._is_dead, knocks)), strict=True):
            buried |= dead and await self._mark_dead(row, "has ended")
            self._suspected.discard(row.number)
        return buried

    async def _mark_dead(self, row: SiloRow, why: str) -> bool:
        self._suspected.discard(row.number)
        ended = await self._provider.mark_dead(row.number, row.renewals, self._clock.now())
        if ended:
            log.warning("silo %d at %s %s: it counts as dead", row.number, row.address or "-", why)
        return ended

    async def _is_dead(self, silo: SiloRow) -> bool:
        return await death.is_proven(silo, self._provider, self._nobody_else_at)

    async def _nobody_else_at(self, address: str) -> bool:
        """At the silo's own address nobody else listens: who had it before has ended."""
        return address == self._standing.row.address or await self._refuses(address)

    async def _take(self) -> bool:
        """Take what is free and ought to be one's own, let go what neither is; was there anything?"""
        plan = self._plan()
        if plan.let_go:
            await self.partitions.let_go(plan.let_go)
            return True
        if self.draining or not self._standing.healthy:
            return False
        return bool(plan.take) and await self.partitions.take(plan.take, self.rows.epochs) > 0

    def _plan(self) -> balance.Plan:
        return balance.plan(
            self.rows, self._standing.number, self._ownership.all(), self._router.held_partitions()
        )

    def _balance(self) -> None:
        """Begin to hand over what ought to live elsewhere, a few at a time, once things have settled."""
        if self._moving or self.draining or not self._standing.healthy:
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
            await self.partitions.hand_over(going)
        except StoreError as error:
            tell = log.debug if self._move_failed else log.warning  # once for each time of trouble
            tell("%d partitions were not handed over, again later: %s", len(going), error)
            self._move_failed = True
            self._settled_at = self._loop.time() + self._options.settle.total_seconds()
            self._router.go_on()
        else:
            self._move_failed = False
        finally:
            self._moving = False
            self._asked.set()

    # ---- what a look shows

    def _others(self, rows: ClusterRows) -> list[SiloRow]:
        return [row for row in rows.silos if row.status.is_member and row.number != self._standing.number]

    @property
    def _all_owned(self) -> bool:
        """Every partition has an owner, and nobody among the owners is suspected."""
        rows = self.rows
        members = {row.number for row in rows.silos if row.status.is_member}
        late_s = QUIET_RENEWALS * self._options.renew_interval.total_seconds()
        now = self._loop.time()
        return all(
            owner in members and self._observer.quiet_s(owner, now) <= late_s for owner in set(rows.owners)
        )
