"""The reminder line of one silo: table → poll → due queue → mailbox → turn → the same commit.

Theory of operation.  One timer wakes the service for the next due entry or the next poll, whichever is
first.  A poll (``refill``) reads one page per priority and tops the bucket up (``held``); committed changes
of reminders, which all pass through this silo's committer, keep it true in between.  A due entry is judged
(``judging``) and either becomes a tick, which is an ordinary message to its grain, or a row-only commit that
moves it on (``firing``).

When a commit's fate is unknown the entry is *stale*: its row is read again before it fires.

Everything here is about the partitions that this silo owns, which come and go.  What was held of a partition
leaves with it; what another owner did meanwhile is read when it comes back (``held`` refuses reads that began
before), and a commit made under an older epoch moves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from farro.client.clock import Clock, duration_us
from farro.client.codec import Codec
from farro.client.reminders import ReminderPriority
from farro.providers.contracts import Provider
from farro.providers.rows import Commit, ReminderRow, Settle, Verdict
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.activations.failures import printable
from farro.silo.metrics import BucketFigures, PermitFigures, ReminderFigures
from farro.silo.options import ReminderOptions
from farro.silo.ownership import Ownership
from farro.silo.reminders.due_queue import DueQueue, Key
from farro.silo.reminders.firing import Firing
from farro.silo.reminders.held import HeldReminders
from farro.silo.reminders.judging import UNKNOWN_TYPE_WAIT, Judging
from farro.silo.reminders.machine_load import MachineLoad
from farro.silo.reminders.permits import Permits
from farro.silo.reminders.refill import Refill
from farro.silo.reminders.registration import DeclaredReminders
from farro.silo.reminders.repair import repaired
from farro.silo.reminders.statistics import ReminderStatistics
from farro.silo.reminders.ticks import TickInFlight
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.reminders")

DELIVERIES_IN_A_ROW = 32  # a few milliseconds of work, however much falls due at once
LOAD_AGE_MAX_S = 10.0  # of loop time: how old the reading of CPU quota and memory may be
REPAIR_PAGE = 200  # broken rows put right in one go; the rest a minute later


class ReminderService:
    """Fires what is due on the partitions this silo owns."""

    def __init__(
        self,
        *,
        provider: Provider,
        clock: Clock,
        codec: Codec,
        catalog: Catalog,
        committer: Committer,
        ownership: Ownership,
        options: ReminderOptions,
        random: Random,
        machine_load: Callable[[], MachineLoad],
        declared: DeclaredReminders,
    ) -> None:
        self.options = options
        self.statistics = ReminderStatistics()
        self._provider = provider
        self._clock = clock
        self._catalog = catalog
        self._ownership = ownership
        self._machine_load = machine_load
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner("reminders")
        self.load = machine_load()
        self._load_read_at = float("-inf")  # loop time
        self.held = HeldReminders(
            DueQueue(
                self._bucket_size(),
                by_priority=options.enable_priority,
                background_wait_max_us=duration_us(options.background_wait_max),
            )
        )
        self.permits: Permits[TickInFlight] = Permits(
            self._permits_total(), options.permit_hold_max.total_seconds()
        )
        self.judging = Judging(clock, catalog, ownership, options)
        self.firing = Firing(
            clock=clock,
            codec=codec,
            catalog=catalog,
            committer=committer,
            ownership=ownership,
            options=options,
            random=random,
            held=self.held,
            judging=self.judging,
            permits=self.permits,
            counted=self.statistics,
            read_again=lambda keys: self.refill.read_again(keys),
            kick=self._kick,
        )
        self.refill = Refill(
            provider=provider,
            clock=clock,
            held=self.held,
            judging=self.judging,
            ownership=ownership,
            options=options,
            statistics=self.statistics,
            tasks=self._tasks,
            adapt=self._adapt,
            try_later=self.firing.try_later,
            kick=self._kick,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._run_soon = False
        self._running = False
        self._paused = False
        self._declared = declared
        self._epochs: dict[int, int] = {}  # under which the partitions are served that are owned
        # What the owner before this silo did not serve waits beyond the usual window.
        self._first_window = max(options.look_ahead_window, UNKNOWN_TYPE_WAIT)
        committer.listen(self._committed, lost=self._lost)
        ownership.listen(taken=self._taken, dropped=self._dropped)

    # ---- life

    async def start(self) -> None:
        """Create what is declared, read the first page and begin to deliver."""
        owned = self._ownership.all()
        self._epochs = {each: self._ownership.epoch(each) for each in owned}
        await self._declared.register(owned)
        self._running = True
        self.firing.running = not self._paused
        self._declared.want(self._ownership.all() - owned, self._tasks)
        await self.refill.poll(window=self._first_window)
        self._kick()

    async def settled(self) -> None:
        """Wait until partitions just taken are served: what is declared is there, what is due is held."""
        await self._declared.settled()
        await self.refill.caught_up()

    def stop(self) -> None:
        """Begin no new tick.  What runs goes on to its commit."""
        self._running = self.firing.running = False
        self._rest()

    def pause(self) -> None:
        """Begin no new tick and read no page until :meth:`resume`: the silo's lease is in doubt.

        What is held stays held, what runs goes on to its commit.  Repeatable.
        """
        self._paused = True
        self.firing.running = False
        self._rest()

    def resume(self) -> None:
        """Go on after :meth:`pause`; what was thawed has been taken again before.  Repeatable."""
        self._paused = False
        if self._running:
            self.firing.running = True
            self.poll_soon()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- partitions that come and go

    def _taken(self, partitions: frozenset[int]) -> None:
        """Serve them from here on.  Under the epoch of before it is a thaw, and what is held stands."""
        epoch = self._ownership.epoch
        fresh = frozenset(each for each in partitions if self._epochs.get(each) != epoch(each))
        if fresh:
            self._epochs.update((each, epoch(each)) for each in fresh)
            self.held.drop(fresh)
        if self._running:
            self._declared.want(fresh, self._tasks)
            self.refill.poll_soon(self._first_window)

    def _dropped(self, partitions: frozenset[int]) -> None:
        """What is held of them goes; a tick whose turn runs goes on, and its commit is fenced or not."""
        for each in partitions:
            self._epochs.pop(each, None)
        self.held.drop(partitions)
        self._kick()

    async def repair(self) -> None:
        """Put right the owned rows that no poll can see, by row-only commits; repeated by the host."""
        owned = self._ownership.all()
        for row in await self._provider.unpollable(REPAIR_PAGE):
            if row.partition not in owned:
                continue
            repair = repaired(row, self._clock.now())
            log.warning(
                "reminder repaired grain=%s/%s name=%s: %s",
                printable(row.grain_type),
                printable(row.grain_key),
                printable(row.name),
                printable(repair.note),
            )
            settle = Settle(row.name, row.registration, row.occurrence, repair.progress)
            verdict = await self.firing.commit_row(row, settle)
            self.statistics.repaired += verdict.settled
        self.poll_soon()

    async def close(self) -> None:
        self.stop()
        await self._tasks.stop()

    # ---- what others ask

    @property
    def healthy(self) -> bool:
        """The last poll was answered."""
        return self.refill.healthy

    def poll_soon(self) -> None:
        """Read a page at the next opportunity: rows changed in ways no commit of this silo told."""
        self.refill.poll_soon()

    def has_begun(self, row: ReminderRow) -> bool:
        """A turn for the occurrence that the row owes runs, or waits for its commit."""
        return self.firing.has_begun(row)

    def figures(self) -> ReminderFigures:
        """The reminder line of this silo at this moment: what it holds and what it did, not the cluster's."""
        counted, queue = self.statistics, self.held.queue
        return ReminderFigures(
            delivered=counted.delivered,
            late=counted.late,
            failed=counted.failed,
            retried=counted.retried,
            missed={action.name: count for action, count in counted.missed.items()},
            overrun=counted.overrun,
            repaired=counted.repaired,
            unreadable=counted.unreadable,
            polls=counted.polls,
            poll_rows=counted.poll_rows,
            poll_seconds=counted.poll_seconds,
            poll_failures=counted.poll_failures,
            lateness={ReminderPriority(p).name: each.figures() for p, each in counted.lateness.items()},
            bucket=BucketFigures(
                size=queue.capacity,
                held=len(queue),
                held_peak=counted.held_peak,
                ready=queue.ready,
                cpus=self.load.cpus,
                memory_load=self.load.memory_load,
                active_grains=len(self._catalog),
            ),
            permits=PermitFigures(self.permits.total, self.permits.held, queue.parked),
        )

    # ---- the one timer

    def _kick(self) -> None:
        """Look at the queue once this loop iteration is over; many changes make one look."""
        if not self._run_soon and self._running and not self._paused:
            self._run_soon = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._run_soon = False
        if not self._running or self._paused:
            return
        now = self._clock.now()
        self.judging.watch_clocks(now)
        queue = self.held.queue
        queue.advance(now)
        if self.firing.begin_some(DELIVERIES_IN_A_ROW):
            self._kick()
        self.statistics.held_peak = max(self.statistics.held_peak, len(queue))
        self.refill.look(now)
        self._arm(now)

    def _arm(self, now: int) -> None:
        """One timer: for the next entry, the next poll, or the next permit to expire."""
        loop_now, queue = self._loop.time(), self.held.queue
        when = self.refill.next_look(now, loop_now)
        if (wake_at := queue.next_wake()) is not None:
            when = min(when, loop_now + self._clock.loop_seconds(wake_at - now))
        if queue.parked and (expires := self.permits.expire(loop_now)) is not None:
            when = min(when, expires)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._timer_fired) if when < float("inf") else None

    def _timer_fired(self) -> None:
        self._timer = None
        self._look()

    # ---- room

    def _adapt(self) -> None:
        """Size bucket and permits for the machine as it is now; its files are not read at every refill."""
        if self._loop.time() - self._load_read_at >= LOAD_AGE_MAX_S:
            self._load_read_at = self._loop.time()
            self.load = self._machine_load()
        self.held.resize(self._bucket_size())
        self.permits.total = self._permits_total()

    def _bucket_size(self) -> int:
        return self.options.bucket_size(
            cpus=self.load.cpus,
            memory_load=self.load.memory_load,
            active_grains=len(self._catalog),
        )

    def _permits_total(self) -> int:
        return max(1, int(self.options.permits_per_cpu * self.load.cpus))

    # ---- what the committer tells

    def _lost(self, commit: Commit) -> None:
        """The answer to a commit of this silo was lost."""
        if not self._serves(commit):
            return
        look_up = self.held.lost(commit)
        if look_up and self._running:
            self.refill.read_again(look_up)

    def _committed(self, members: list[tuple[Commit, Verdict]]) -> None:
        """Every batch of this silo's commits, before their callers go on."""
        look_up: list[Key] = []
        for commit, verdict in members:
            if self._serves(commit):
                look_up += self.held.committed(commit, verdict)
        if look_up and self._running:
            self.refill.read_again(look_up)
        if members or self.held.queue.parked:
            self._kick()

    def _serves(self, commit: Commit) -> bool:
        """Was it made in the present ownership?  One of an earlier one may be older than what is held."""
        return commit.epoch == self._ownership.epoch(commit.partition)
