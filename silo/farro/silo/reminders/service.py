"""The reminder line of one silo: table → poll → due queue → mailbox → turn → the same commit.

Theory of operation.  One timer wakes the service for the next due entry or the next poll, whichever is
first.  A poll reads one page per priority and tops the bucket up; committed changes of reminders (they all
pass through this silo's committer) keep it true in between.  A due entry is judged, and either becomes a
tick, which is an ordinary message to its grain, or a row-only commit that moves it on.

When a commit's fate is unknown the entry is *stale*: its row is read again before it fires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random

from farro.client.clock import Clock, duration_us
from farro.client.codec import Codec
from farro.client.errors import (
    CommitOutcomeUnknown,
    Conflict,
    FarroError,
    Fenced,
    GrainDestroyed,
    InvalidSchedule,
    SiloStopping,
    StorageUnavailable,
)
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import FAILED, Commit, EventRow, Progress, ReminderRow, Settle, Verdict
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.activations.failures import printable
from farro.silo.activations.invocation import Admission, Invocation
from farro.silo.grains.grain_class import RECEIVE_REMINDER
from farro.silo.metrics import BucketFigures, PermitFigures, ReminderFigures
from farro.silo.options import ReminderOptions
from farro.silo.ownership import Owned, Ownership
from farro.silo.reminders import poller, statistics
from farro.silo.reminders.due_queue import DueQueue, Entry, Key, Stage
from farro.silo.reminders.gaps import GapWatch
from farro.silo.reminders.held import HeldReminders
from farro.silo.reminders.machine_load import MachineLoad
from farro.silo.reminders.permits import Permits
from farro.silo.reminders.repair import repaired
from farro.silo.reminders.ticks import TickInFlight, missed_event
from farro.silo.schedules import schedule
from farro.silo.schedules.missed import (
    NOTE_CHARACTERS_MAX,
    Deliver,
    Judgement,
    Skip,
    judge,
    progress_of,
    settle_failed,
)
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.reminders")

RECHECK_S = 1.0  # of loop time: when an entry whose commit was not taken is looked at again
RECHECK_MAX_S = 30.0
UNKNOWN_TYPE_WAIT = timedelta(minutes=10)
REFILL_GAP_S = 0.05  # of loop time, between two polls of which the first brought less than a full page
BEHIND_GAP_S = 1.0  # of loop time, between two polls for what is due while there is little room for it
ALL_PRIORITIES = len(ReminderPriority)
DELIVERIES_IN_A_ROW = 32  # a few milliseconds of work, however much falls due at once
LOAD_AGE_MAX_S = 10.0  # of loop time: how old the reading of CPU quota and memory may be
REPAIR_PAGE = 200  # broken rows put right in one go; the rest a minute later
COMMIT_BATCHES_WAITING_MAX = 4  # beyond it no further tick begins: the store sets the pace
NOT_SETTLED = (
    Fenced, Conflict, StorageUnavailable, CommitOutcomeUnknown, SiloStopping, GrainDestroyed
)  # fmt: skip


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
    ) -> None:
        self.options = options
        self.codec = codec
        self.statistics = statistics.ReminderStatistics()
        self._provider = provider
        self._clock = clock
        self._catalog = catalog
        self._committer = committer
        self._ownership = ownership
        self._random = random
        self._machine_load = machine_load
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner("reminders")
        self.load = machine_load()
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
        self._grace_us = duration_us(options.missed_grace)
        self._gaps = GapWatch(clock.now(), clock.steady(), self._grace_us)
        self._timer: asyncio.TimerHandle | None = None
        self._run_soon = False
        self._running = False
        self._polling = False
        self._polled_at = float("-inf")  # loop time
        self._page_full = False  # the last page brought as many rows as it might
        self._next_poll_at = 0  # schedule time
        self._poll_asked = False  # what was asked for while a page is out wants another one
        self._begun: set[TickInFlight] = set()  # ticks whose turns have begun and not ended
        self._warned: set[str] = set()
        self._load_read_at = float("-inf")  # loop time
        self.healthy = True  # the last poll was answered
        committer.listen(self._committed, lost=self._lost)

    # ---- life

    async def start(self) -> None:
        """Read the first page and begin to deliver."""
        self._running = True
        # What the silo before this one did not serve waits beyond the usual window.
        await self._poll(window=max(self.options.look_ahead_window, UNKNOWN_TYPE_WAIT))
        self._kick()

    def stop(self) -> None:
        """Begin no new tick.  What runs goes on to its commit."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def repair(self) -> None:
        """Put right the owned rows that no poll can see, by row-only commits; repeated by the host."""
        owned = self._ownership.all()
        for row in await self._provider.unpollable(REPAIR_PAGE):
            if row.partition not in owned:
                continue
            repair = repaired(row, self.now())
            log.warning(
                "reminder repaired grain=%s/%s name=%s: %s",
                printable(row.grain_type),
                printable(row.grain_key),
                printable(row.name),
                printable(repair.note),
            )
            settle = Settle(row.name, row.registration, row.occurrence, repair.progress)
            verdict = await self._commit_row(row, settle)
            self.statistics.repaired += verdict.settled
        self.poll_soon()

    async def close(self) -> None:
        self.stop()
        await self._tasks.stop()

    def now(self) -> int:
        return self._clock.now()

    def figures(self) -> ReminderFigures:
        """The reminder line at this moment."""
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
            lateness={priority.name: each.figures() for priority, each in counted.lateness.items()},
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
        if not self._run_soon and self._running:
            self._run_soon = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._run_soon = False
        if not self._running:
            return
        now = self.now()
        self._watch_clocks(now)
        self._start_permitted()
        queue = self.held.queue
        queue.advance(now)
        for _ in range(DELIVERIES_IN_A_ROW):
            if (entry := queue.take()) is None:
                break
            self._deliver(entry)
        if queue.ready:
            self._kick()
        self.statistics.held_peak = max(self.statistics.held_peak, len(queue))
        if priorities := self._wants_poll(now):
            self._polling = True
            self._tasks.start(self._poll(priorities), "poll")
        self._arm(now)

    def _arm(self, now: int) -> None:
        """One timer: for the next entry, the next poll, or the next permit to expire."""
        loop_now = self._loop.time()
        whens: list[float] = []
        if (wake_at := self.held.queue.next_wake()) is not None:
            whens.append(loop_now + self._clock.loop_seconds(wake_at - now))
        if self.held.queue.parked and (expires := self.permits.expire(loop_now)) is not None:
            whens.append(expires)
        if not self._polling:  # while one is out, its end looks again; a timer would fire without end
            whens.append(loop_now + self._clock.loop_seconds(self._next_poll_at - now))
            if (gap_at := self.held.next_gap(now)) is not None:
                whens.append(loop_now + self._clock.loop_seconds(gap_at - now))
            whens.append(max(self._refill_when(now), loop_now))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(whens), self._timer_fired) if whens else None

    def _timer_fired(self) -> None:
        self._timer = None
        self._look()

    def _watch_clocks(self, now: int) -> None:
        gap = self._gaps.look(now, self._clock.steady())
        if gap is not None:
            log.warning(
                "the wall clock moved %.0f s ahead of the monotonic one (the machine slept, or its clock was "
                "set): what fell due meanwhile counts as missed",
                (gap.began_at - gap.last_seen_at) / 1e6,
            )

    # ---- from the table

    def poll_soon(self) -> None:
        """Read a page at the next opportunity: rows changed in ways no commit of this silo told."""
        self._poll_asked = True
        self._kick()

    def _wants_poll(self, now: int) -> int:
        """How many priorities to read now, the highest first; mostly none or all."""
        if self._polling:
            return 0
        if now >= self._next_poll_at or self.held.page_outdated or self._poll_asked:
            return ALL_PRIORITIES
        if self._loop.time() < self._refill_when(now):
            return 0
        return ALL_PRIORITIES if self.held.wants_refill(now) else self.held.pressing(now) or ALL_PRIORITIES

    def _refill_when(self, now: int) -> float:
        """When to read the table although no poll is due: the loop's time, infinity for never."""
        if self.held.wants_refill(now):
            at_once = self._page_full and self.held.complete_until < now
            return self._polled_at if at_once else self._polled_at + REFILL_GAP_S
        if self.held.pressing(now):
            return self._polled_at + REFILL_GAP_S
        return self._polled_at + BEHIND_GAP_S if self.held.is_behind(now) else float("inf")

    async def _poll(self, priorities: int = ALL_PRIORITIES, window: timedelta | None = None) -> None:
        """Read one page and hold what it says.  A store that does not answer is asked again."""
        self._polling = True
        whole = priorities == ALL_PRIORITIES
        self._poll_asked = self._poll_asked and not whole
        self._polled_at = self._loop.time()
        self._adapt()
        now = self.now()
        until = now + duration_us(self.options.look_ahead_window)
        limit = self.held.queue.capacity
        questions = poller.queries(
            until if window is None else now + duration_us(window),
            limit,
            self._ownership.all(),
            self._ownership.partitions,
            priorities,
        )
        began = self.held.read_began()
        try:
            answers = await self._provider.poll(questions)
        except StoreError as error:
            log.error("poll failed; the next one comes soon: %s", error)
            self.statistics.poll_failures += 1
            self.healthy = False
            self._next_poll_at = self.now() + self._loop_us(5 * RECHECK_S)
            self._polled_at = self._loop.time() + 5 * RECHECK_S  # no refill is tried sooner either
        else:
            page = poller.plan(
                [self._freed_until(rows, now, until) for rows in answers],
                now=now,
                until=until,
                limit=limit,
                by_priority=self.options.enable_priority,
                wait_max_us=duration_us(self.options.background_wait_max),
            )
            self._page_full = whole and len(page.rows) + len(page.aged) >= limit
            self.held.queue.advance(self.now())
            for _ in self.held.hold_page(page, until, began):
                await asyncio.sleep(0)
            if whole:
                self._next_poll_at = now + duration_us(self.options.poll_interval)
            self.statistics.polls += 1
            self.healthy = True
            self.statistics.poll_rows += sum(map(len, answers))
            self.statistics.poll_seconds += self._loop.time() - self._polled_at
        finally:
            self.held.read_over()
            self._polling = False
        self._kick()

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

    async def _read_again(self, keys: list[Key]) -> None:
        """Replace what is held of some reminders by what the table says now."""
        began = self.held.read_began()
        try:
            # A load waits for whatever commit is still on its way, so that none lands behind these reads.
            await self._provider.load([key[:2] for key in keys])
            for key in keys:
                row = await self._provider.reminder(*key)
                self.held.hold_again(key, row and self._freed(row, self.now()), began)
        except Exception as error:
            fault = not isinstance(error, StoreError)
            log.error("a reminder could not be read again: %s", error, exc_info=fault)
            for key in keys:
                entry = self.held.queue.get(key)
                if entry is not None and entry.stale and entry.stage is Stage.OUT:
                    self._try_later(entry)
        finally:
            self.held.read_over()
        self._kick()

    def _try_later(self, entry: Entry) -> None:
        """Nobody knows what became of the entry's commit: read its row again in a while."""
        if not entry.dead:
            self.held.distrust(entry)
            wait_s = min(RECHECK_S * 2 ** min(self._committer.failures_in_a_row, 5), RECHECK_MAX_S)
            self.held.queue.put_back(entry, self.now() + self._loop_us(wait_s))

    def _loop_us(self, loop_s: float) -> int:
        """Schedule microseconds that pass in so many seconds of loop time."""
        return int(loop_s * 1e6 / self._clock.loop_seconds(1_000_000))

    def _lost(self, commit: Commit) -> None:
        """The answer to a commit of this silo was lost."""
        look_up = self.held.lost(commit)
        if look_up and self._running:
            self._tasks.start(self._read_again(look_up), "read again")

    def _committed(self, commit: Commit, verdict: Verdict) -> None:
        """Every commit of this silo, in order, before its caller goes on."""
        self.held.queue.advance(self.now())
        look_up = self.held.committed(commit, verdict)
        if look_up and self._running:
            self._tasks.start(self._read_again(look_up), "read again")
        if commit.settle is not None or commit.reminders or self.held.queue.parked:
            self._kick()

    # ---- judging

    def _deliver(self, entry: Entry) -> None:
        """Judge a due entry and send it on its way."""
        if entry.stale:
            self._tasks.start(self._read_again([entry.key]), "read again")
            return
        row = entry.row
        owned = self._ownership.owned(row.partition)
        if owned is None:
            self.held.queue.remove(entry.key)
            return
        operation = self._known_operation(row)
        if operation is None:
            wait_until = self.now() + duration_us(UNKNOWN_TYPE_WAIT)
            self._advance_row(entry, replace(progress_of(row), wake_at=wait_until))
            return
        if row.next_due_at is None:
            self._advance_row(entry, repaired(row, self.now()).progress)
            return
        try:
            MissedReminderAction(row.action)
            judged = self._judge(row, owned)
        except (InvalidSchedule, ValueError, OverflowError) as error:
            self._unreadable(entry, error)
            return
        if isinstance(judged, Skip):
            self._skip(entry, judged)
        else:
            self._submit(TickInFlight(self, entry, judged), operation)

    def _judge(self, row: ReminderRow, owned: Owned) -> Judgement:
        alive_until, began_at = owned.alive_until, owned.began_at
        gap = self._gaps.latest
        if gap is not None and row.next_due_at is not None and row.next_due_at > gap.last_seen_at:
            alive_until, began_at = gap.last_seen_at, gap.began_at
        return judge(
            row,
            now=self.now(),
            grace_us=self._grace_us,
            alive_until=alive_until,
            ownership_began=began_at,
            catch_up_max=self.options.catch_up_max,
        )

    def judge_again(self, tick: TickInFlight) -> Deliver:
        """The judgement as of now, when the turn begins: instants that passed in the queue are folded in."""
        owned = self._ownership.owned(tick.row.partition)
        judged = tick.judged if owned is None else self._judge(tick.row, owned)
        return judged if isinstance(judged, Deliver) else tick.judged

    def _skip(self, entry: Entry, judged: Skip) -> None:
        row, now = entry.row, self.now()
        action = MissedReminderAction(row.action)
        self.statistics.missed[action] += judged.missed
        self.statistics.tick(row, now, statistics.SKIPPED, f"{judged.missed} missed, {action.name}")
        events: tuple[EventRow, ...] = ()
        if judged.notify:
            events = (self.missed_event(row, judged.first_missed_at, judged.missed),)
        self._advance_row(entry, judged.progress, events)

    def missed_event(self, row: ReminderRow, first_due_at: int, count: int) -> EventRow:
        return missed_event(self.codec, self.options.missed_stream, row, first_due_at, count, self.now())

    def _unreadable(self, entry: Entry, error: Exception) -> None:
        """A row whose schedule cannot be read is marked once and stops nobody else."""
        row = entry.row
        self.statistics.unreadable += 1
        log.error(
            "reminder cannot be read and is marked failed grain=%s/%s name=%s: %s",
            printable(row.grain_type),
            printable(row.grain_key),
            printable(row.name),
            printable(str(error)),
        )
        note = f"unreadable: {error}"[:NOTE_CHARACTERS_MAX]
        self._advance_row(entry, replace(progress_of(row), wake_at=None, status=FAILED, note=note))

    def _freed_until(self, rows: list[ReminderRow], now: int, until: int) -> list[ReminderRow]:
        """What wakes by ``until``, the rows that this silo frees among it."""
        freed = (self._freed(row, now) for row in rows)
        return [row for row in freed if row.wake_at is not None and row.wake_at <= until]

    def _freed(self, row: ReminderRow, now: int) -> ReminderRow:
        """A row that other code put off as unknown is due at once where it is known.

        Nothing but that leaves a row that is due, was not tried and wakes later than its jitter allows.
        """
        due = row.next_due_at
        if row.wake_at is None or due is None or row.attempts or not due < now < row.wake_at:
            return row
        due = schedule.wake_at(row, due, row.occurrence)
        return replace(row, wake_at=now) if due < now and self._operation_of(row) is not None else row

    def _operation_of(self, row: ReminderRow) -> str | None:
        """The method a row is delivered to, if this silo has it."""
        known = self._catalog.known(row.grain_type)
        if known is None:
            return None
        if row.operation == RECEIVE_REMINDER:
            return None if known.receive_reminder is None else row.operation
        return known.canonical_operation(row.operation)

    def _known_operation(self, row: ReminderRow) -> str | None:
        """The method a row is delivered to; None, with one warning per kind, when this code has none."""
        name = self._operation_of(row)
        if name is not None:
            return name
        known = self._catalog.known(row.grain_type)
        kind = row.grain_type if known is None else f"{row.grain_type}.{row.operation}"
        if known is None:
            way_out = "serve the type again"
        elif row.operation == RECEIVE_REMINDER:
            way_out = "give the class its receive_reminder again"
        else:
            way_out = f'if the method was renamed, mark it @operation("{row.operation}")'
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(
                "reminders of %s wait: this silo does not serve it (first: grain=%s/%s name=%s); %s and "
                "start again, or delete them; they are kept and looked at every %s",
                printable(kind),
                printable(row.grain_type),
                printable(row.grain_key),
                printable(row.name),
                printable(way_out),
                UNKNOWN_TYPE_WAIT,
            )
        return None

    # ---- to the grain

    def _submit(self, tick: TickInFlight, operation: str) -> None:
        row = tick.row
        tick.call = Invocation(
            row.grain_type,
            row.grain_key,
            operation,
            [],
            None,
            float("inf"),
            (),
            lambda _, error: self._tick_over(tick, error),
            external=False,
            delivery=tick,
        )
        self._catalog.submit(tick.call)

    def permit(self, tick: TickInFlight) -> Admission:
        """A permit for the tick's code, or a place among those that wait for one."""
        if not self._running:
            return Admission.WAIT
        is_next = tick.chosen or not self.held.queue.parked
        tick.chosen = False
        if is_next and self._store_keeps_up() and self.permits.take(tick, self._loop.time()):
            self._begun.add(tick)
            return Admission.START
        self.held.queue.park(tick.entry, partial(self._go_on, tick))
        self._kick()
        return Admission.WAIT

    def has_begun(self, row: ReminderRow) -> bool:
        """A turn for the occurrence that the row owes runs, or waits for its commit."""
        wanted = (row.grain_type, row.grain_key, row.name, row.registration, row.occurrence)
        return any(
            (*tick.entry.key, tick.row.registration, tick.row.occurrence) == wanted for tick in self._begun
        )

    def _go_on(self, tick: TickInFlight) -> None:
        """A permit is free, and the tick is the one to have it."""
        tick.chosen = True
        if tick.call is not None:
            self._catalog.submit(tick.call)

    def _store_keeps_up(self) -> bool:
        """May another tick begin?  While the store takes nothing, one at a time finds out when it does."""
        if not self._committer.healthy:
            return not self.permits.held
        return self._committer.batches_waiting <= COMMIT_BATCHES_WAITING_MAX

    def code_ended(self, tick: TickInFlight) -> None:
        self.permits.give_back(tick)
        if self.held.queue.parked:
            self._kick()

    def _start_permitted(self) -> None:
        """Let waiting ticks try again while permits are free and commits keep up."""
        queue = self.held.queue
        if not queue.parked:
            return
        self.permits.expire(self._loop.time())
        while self._store_keeps_up() and self.permits.free:
            entry = queue.take_parked(self.now())
            if entry is None:
                return
            if entry.stale or entry.go_on is None:
                self._deliver(entry)
            else:
                entry.go_on()

    def _tick_over(self, tick: TickInFlight, error: FarroError | None) -> None:
        """The tick's turn has ended.  When it committed, the listener has already moved the entry."""
        self.permits.give_back(tick)
        self._begun.discard(tick)
        if error is None:
            if tick.began_at:
                self._delivered(tick)
        elif isinstance(error, NOT_SETTLED):
            self._try_later(tick.entry)
        else:
            self._failed(tick, error)
        self._kick()

    def _delivered(self, tick: TickInFlight) -> None:
        row = tick.row
        due_at = row.wake_at if row.wake_at is not None else tick.judged.due_at
        self.statistics.on_time(row, tick.began_at - due_at, self._grace_us)
        self.statistics.overrun += tick.overrun
        # What the row carried before was counted when it was passed over.
        self.statistics.missed[MissedReminderAction(row.action)] += (
            tick.judged.missed_count - row.missed_count
        )
        self.statistics.tick(row, tick.began_at, statistics.DELIVERED)

    def _failed(self, tick: TickInFlight, error: FarroError) -> None:
        row = tick.entry.row
        progress = settle_failed(
            row,
            now=self.now(),
            max_attempts=self.options.max_attempts,
            chance=self._random,
            reason=str(error),
        )
        self.statistics.failed += 1
        self.statistics.retried += progress.attempts > 0 and progress.status != FAILED
        self.statistics.tick(row, tick.began_at or self.now(), statistics.FAILED, str(error))
        log.warning(
            "tick failed grain=%s/%s name=%s attempt=%d status=%s",
            printable(row.grain_type),
            printable(row.grain_key),
            printable(row.name),
            row.attempts + 1,
            progress.status,
        )
        self._advance_row(tick.entry, progress)

    def _advance_row(
        self, entry: Entry, progress: Progress | None, events: tuple[EventRow, ...] = ()
    ) -> None:
        """Move a row without a turn: a fenced row-only commit.  The listener moves the entry."""
        row = entry.row
        settle = Settle(row.name, row.registration, row.occurrence, progress)
        self._commit_row(row, settle, events).add_done_callback(lambda done: self._row_advanced(entry, done))

    def _commit_row(
        self, row: ReminderRow, settle: Settle, events: tuple[EventRow, ...] = ()
    ) -> asyncio.Future[Verdict]:
        return self._committer.commit(
            Commit(
                partition=row.partition,
                epoch=self._ownership.epoch(row.partition),
                grain_type=row.grain_type,
                grain_key=row.grain_key,
                settle=settle,
                events=events,
            )
        )

    def _row_advanced(self, entry: Entry, done: asyncio.Future[Verdict]) -> None:
        if done.cancelled() or done.exception() is not None or not done.result().settled:
            self._try_later(entry)
            self._kick()
