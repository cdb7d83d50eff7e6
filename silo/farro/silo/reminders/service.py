"""The reminder line of one silo: table → poll → due queue → mailbox → turn → the same commit.

Theory of operation.  One timer wakes the service for the next due entry or the next poll, whichever is
first.  A poll reads one page per priority and tops the queue up; committed changes of reminders (they all
pass through this silo's committer) keep the queue true in between.  A due entry is judged, and either becomes
a tick, which is an ordinary message to its grain, or a row-only commit that moves it on.

A poll's answer may be older than a commit that was acknowledged while it was under way, so what changed
meanwhile is skipped.  When a commit's fate is unknown the entry is *stale*: its row is read again first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

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
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import (
    FAILED,
    Commit,
    DeleteOperation,
    DeleteReminder,
    EditReminder,
    Progress,
    PutMode,
    PutReminder,
    ReminderRow,
    Settle,
    Verdict,
)
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.activations.failures import printable
from farro.silo.activations.invocation import Admission, Invocation
from farro.silo.options import ReminderOptions
from farro.silo.ownership import Owned, Ownership
from farro.silo.reminders import poller
from farro.silo.reminders.due_queue import DueQueue, Entry, GrainKey, Key, Stage
from farro.silo.reminders.permits import Permits
from farro.silo.reminders.ticks import TickInFlight
from farro.silo.schedules.missed import (
    NOTE_CHARACTERS_MAX,
    Deliver,
    Judgement,
    judge,
    progress_of,
    settle_failed,
)
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.reminders")

LOW_WATER = 4  # refill when fewer than a quarter of the bucket is left
RECHECK = timedelta(seconds=1)  # of loop time: when an entry whose commit was not taken is looked at again
UNKNOWN_TYPE_WAIT = timedelta(minutes=10)
REFILL_GAP_S = 0.05  # of loop time, between two polls that follow each other
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
        cpus: float,
        bucket_size: int,
    ) -> None:
        self.options = options
        self.codec = codec
        self._provider = provider
        self._clock = clock
        self._catalog = catalog
        self._committer = committer
        self._ownership = ownership
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner("reminders")
        self.queue = DueQueue(
            bucket_size,
            by_priority=options.enable_priority,
            background_wait_max_us=duration_us(options.background_wait_max),
        )
        self.permits: Permits[TickInFlight] = Permits(
            max(1, int(options.permits_per_cpu * cpus)), options.permit_hold_max.total_seconds()
        )
        self._window_us = duration_us(options.look_ahead_window)
        self._timer: asyncio.TimerHandle | None = None
        self._run_soon = False
        self._running = False
        self._polling = False
        self._polled_at = float("-inf")  # loop time
        self._next_poll_at = 0  # schedule time
        self._until = 0  # how far the queue looks ahead
        self._complete_until = 0  # every row that wakes by then is held
        self._changed: set[Key] = set()  # reminders that commits changed while a read was out
        self._changed_grains: set[GrainKey] = set()
        self._reads_out = 0
        self._warned: set[str] = set()
        self.delivered = 0
        self.failed = 0
        self.polls = 0
        committer.listen(self._committed)

    # ---- life

    async def start(self) -> None:
        """Read the first page and begin to deliver."""
        self._running = True
        await self._poll()
        self._kick()

    def stop(self) -> None:
        """Begin no new tick.  What runs goes on to its commit."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        self.stop()
        await self._tasks.stop()

    def now(self) -> int:
        return self._clock.now()

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
        self._start_permitted()
        self.queue.advance(now)
        while (entry := self.queue.take(now)) is not None:
            self._deliver(entry, now)
        if self._wants_poll(now) and not self._polling:
            self._polling = True
            self._tasks.start(self._poll(), "poll")
        self._arm(now)

    def _arm(self, now: int) -> None:
        """One timer, for the next entry, the next poll or the next permit to expire."""
        next_at = self._next_poll_at
        wake_at = self.queue.next_wake()
        if wake_at is not None:
            next_at = min(next_at, wake_at)
        when = self._loop.time() + self._clock.loop_seconds(next_at - now)
        expires = self.permits.expire(self._loop.time())
        if expires is not None and self.permits.waiting:
            when = min(when, expires)
        if self._refill_due(now):
            when = min(when, max(self._polled_at + REFILL_GAP_S, self._loop.time()))
        if self._timer is not None:
            if self._timer.when() == when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._look()

    # ---- from the table

    def _wants_poll(self, now: int) -> bool:
        if now >= self._next_poll_at:
            return True
        return self._refill_due(now) and self._loop.time() >= self._polled_at + REFILL_GAP_S

    def _refill_due(self, now: int) -> bool:
        """More is due, or soon due, than is held, and there is room for it."""
        if self._polling or self._complete_until >= self._until:
            return False
        room = self.queue.capacity - len(self.queue)
        if room >= self.queue.capacity - self.queue.capacity // LOW_WATER:
            return True
        return self._complete_until < now and room > 0 and room >= self.queue.capacity // 2

    async def _poll(self) -> None:
        """Read one page and hold what it says.  A store that does not answer is asked again."""
        self._polling = True
        self._polled_at = self._loop.time()
        now = self.now()
        until = now + self._window_us
        limit = self.queue.capacity
        questions = poller.queries(until, limit, self._ownership.all(), self._ownership.partitions)
        self._reads_out += 1
        try:
            answers = await self._provider.poll(questions)
        except StoreError as error:
            log.error("poll failed, the next one comes in time: %s", error)
            self._next_poll_at = self.now() + min(
                duration_us(self.options.poll_interval), duration_us(RECHECK) * 5
            )
        else:
            page = poller.plan(
                answers, now=now, until=until, limit=limit, by_priority=self.options.enable_priority
            )
            self._hold_page(page, until)
            self._next_poll_at = now + duration_us(self.options.poll_interval)
            self.polls += 1
        finally:
            self._read_over()
            self._polling = False
        self._kick()

    def _hold_page(self, page: poller.Page, until: int) -> None:
        self._until = until
        self._complete_until = page.complete_until
        for row in page.rows:
            if not self._outdated((row.grain_type, row.grain_key, row.name)):
                self._offer(row)

    def _read_over(self) -> None:
        self._reads_out -= 1
        if not self._reads_out:
            self._changed.clear()
            self._changed_grains.clear()

    def _outdated(self, key: Key) -> bool:
        """Did a commit change this reminder while the read that answers now was out?"""
        return key in self._changed or key[:2] in self._changed_grains

    def _offer(self, row: ReminderRow) -> None:
        if row.wake_at is not None:
            self._no_room(self.queue.offer(row, row.wake_at))

    def _no_room(self, row: ReminderRow | None) -> None:
        """A row that is not held: the table knows it, and the next refill must look for it."""
        if row is not None and row.wake_at is not None:
            self._complete_until = min(self._complete_until, row.wake_at - 1)

    async def _read_again(self, keys: list[Key]) -> None:
        """Replace stale entries by what the table says now."""
        self._reads_out += 1
        try:
            for key in keys:
                row = await self._provider.reminder(*key)
                if not self._outdated(key):
                    self._hold_again(key, row)
        except StoreError as error:
            log.error("a reminder could not be read again: %s", error)
            for key in keys:
                entry = self.queue.get(key)
                if entry is not None and entry.stale and entry.stage is Stage.OUT:
                    self.queue.put_back(entry, self._soon())
        finally:
            self._read_over()
        self._kick()

    def _hold_again(self, key: Key, row: ReminderRow | None) -> None:
        entry = self.queue.get(key)
        if row is None or row.wake_at is None or row.wake_at > self._until:
            self.queue.remove(key)
        elif entry is not None and entry.stale:
            self._no_room(self.queue.replace(row, row.wake_at))
        else:
            self._offer(row)

    def _soon(self) -> int:
        """Schedule time about a second of loop time from now."""
        per_us = self._clock.loop_seconds(1_000_000)
        return self.now() + int(RECHECK.total_seconds() / per_us * 1e6)

    # ---- committed changes

    def _committed(self, commit: Commit, verdict: Verdict) -> None:
        """Keep the queue true: called for every commit of this silo, in order, before its caller goes on."""
        if commit.grain is not None and commit.grain.destroy:
            self._forget_all(commit)
        if commit.settle is not None and verdict.settled:
            self._settled(commit, commit.settle)
        for change in commit.reminders:
            match change:
                case PutReminder(row, mode):
                    self._put(row, mode, verdict)
                case DeleteReminder(name):
                    self._forget((commit.grain_type, commit.grain_key, name))
                case DeleteOperation(operation):
                    self._forget_all(commit, operation)
                case EditReminder(name):
                    self._look_up((commit.grain_type, commit.grain_key, name))
        if self.permits.waiting or commit.settle is not None or commit.reminders:
            self._kick()

    def _note(self, key: Key) -> None:
        if self._reads_out:
            self._changed.add(key)

    def _settled(self, commit: Commit, settle: Settle) -> None:
        key = (commit.grain_type, commit.grain_key, settle.name)
        self._note(key)
        entry = self.queue.get(key)
        if entry is None or (entry.row.registration, entry.row.occurrence) != (
            settle.registration,
            settle.occurrence,
        ):
            return
        progress = settle.progress
        if progress is None or progress.wake_at is None or progress.wake_at > self._until:
            self.queue.remove(key)
        else:
            row = moved(entry.row, progress)
            self._no_room(self.queue.replace(row, progress.wake_at))

    def _put(self, row: ReminderRow, mode: PutMode, verdict: Verdict) -> None:
        key = (row.grain_type, row.grain_key, row.name)
        if row.name in verdict.kept:
            if mode is PutMode.KEEP_PROGRESS:
                self._look_up(key)
            return
        self._note(key)
        if row.wake_at is None or row.wake_at > self._until:
            self.queue.remove(key)
        else:
            self._no_room(self.queue.replace(row, row.wake_at))

    def _forget(self, key: Key) -> None:
        self._note(key)
        self.queue.remove(key)

    def _forget_all(self, commit: Commit, operation: str | None = None) -> None:
        grain = (commit.grain_type, commit.grain_key)
        for name in self.queue.names_of(grain):
            entry = self.queue.get((*grain, name))
            if entry is not None and operation in (None, entry.row.operation):
                self.queue.remove((*grain, name))
        if self._reads_out:
            # A read under way may bring rows of this grain that are gone; a fresh one will not.
            self._changed_grains.add(grain)
            self._next_poll_at = 0

    def _look_up(self, key: Key) -> None:
        """The row changed in the table in ways this silo has not computed: read it before it fires."""
        self._note(key)
        entry = self.queue.get(key)
        if entry is not None and entry.stage is not Stage.OUT:
            entry.stale = True
        if self._running:
            self._tasks.start(self._read_again([key]), "read again")

    # ---- to the grain

    def _deliver(self, entry: Entry, now: int) -> None:
        """Judge a due entry and send it on its way."""
        if entry.stale:
            self._tasks.start(self._read_again([entry.key]), "read again")
            return
        row = entry.row
        owned = self._ownership.owned(row.partition)
        if owned is None:
            self.queue.remove(entry.key)
            return
        operation = self._known_operation(row)
        if operation is None:
            self._advance_row(entry, replace(progress_of(row), wake_at=now + duration_us(UNKNOWN_TYPE_WAIT)))
            return
        try:
            judged = self.judge(row, owned)
        except InvalidSchedule as error:
            self._unreadable(entry, error)
            return
        if isinstance(judged, Deliver):
            self._submit(TickInFlight(self, entry, judged), operation)
        else:
            self._advance_row(entry, judged.progress)

    def judge(self, row: ReminderRow, owned: Owned) -> Judgement:
        return judge(
            row,
            now=self.now(),
            grace_us=duration_us(self.options.missed_grace),
            alive_until=owned.alive_until,
            ownership_began=owned.began_at,
            catch_up_max=self.options.catch_up_max,
        )

    def judge_again(self, tick: TickInFlight) -> Deliver:
        """The judgement as of now, when the turn begins: instants that passed in the queue are folded in."""
        owned = self._ownership.owned(tick.row.partition)
        judged = tick.judged if owned is None else self.judge(tick.row, owned)
        return judged if isinstance(judged, Deliver) else tick.judged

    def _unreadable(self, entry: Entry, error: InvalidSchedule) -> None:
        """A row whose schedule cannot be read is marked once and stops nobody else."""
        row = entry.row
        log.error(
            "reminder cannot be read and is marked failed grain=%s/%s name=%s: %s",
            printable(row.grain_type),
            printable(row.grain_key),
            printable(row.name),
            printable(str(error)),
        )
        note = f"unreadable: {error}"[:NOTE_CHARACTERS_MAX]
        self._advance_row(entry, replace(progress_of(row), wake_at=None, status=FAILED, note=note))

    def _known_operation(self, row: ReminderRow) -> str | None:
        """The method a row is delivered to; None, with one warning per kind, when this code has none."""
        known = self._catalog.known(row.grain_type)
        if known is not None:
            if row.operation == "receive_reminder":
                if known.receive_reminder is not None:
                    return row.operation
            elif (name := known.canonical_operation(row.operation)) is not None:
                return name
        kind = row.grain_type if known is None else f"{row.grain_type}.{row.operation}"
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(
                "reminders of %s wait: this silo does not serve it (first: grain=%s/%s name=%s); they are "
                "kept and looked at every %s",
                printable(kind),
                printable(row.grain_type),
                printable(row.grain_key),
                printable(row.name),
                UNKNOWN_TYPE_WAIT,
            )
        return None

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
            tick=tick,
        )
        self._catalog.submit(tick.call)

    def permit(self, tick: TickInFlight) -> Admission:
        """A permit for the tick's code, or a place among those that wait for one."""
        if not self._running:
            return Admission.WAIT
        if self._committer.batches_waiting <= 4 and self.permits.take(tick, self._loop.time()):
            return Admission.START
        self.permits.wait(tick, tick.entry.rank)
        return Admission.WAIT

    def code_ended(self, tick: TickInFlight) -> None:
        self.permits.give_back(tick)
        if self.permits.waiting:
            self._kick()

    def _start_permitted(self) -> None:
        """Let waiting ticks try again while permits are free and commits keep up."""
        self.permits.expire(self._loop.time())
        for _ in range(self.permits.total - self.permits.held):
            if self._committer.batches_waiting > 4:
                return
            tick = self.permits.next_waiting()
            if tick is None:
                return
            if tick.call is not None:
                self._catalog.submit(tick.call)

    def _tick_over(self, tick: TickInFlight, error: FarroError | None) -> None:
        """The tick's turn has ended.  When it committed, the listener has already moved the entry."""
        self.permits.give_back(tick)
        if error is None:
            self.delivered += 1
        elif isinstance(error, NOT_SETTLED):
            if not tick.entry.dead:
                tick.entry.stale = True
                self.queue.put_back(tick.entry, self._soon())
        else:
            self.failed += 1
            row = tick.entry.row
            progress = settle_failed(
                row,
                now=self.now(),
                max_attempts=self.options.max_attempts,
                chance=self._random,
                reason=str(error),
            )
            log.warning(
                "tick failed grain=%s/%s name=%s attempt=%d status=%s",
                printable(row.grain_type),
                printable(row.grain_key),
                printable(row.name),
                row.attempts + 1,
                progress.status,
            )
            self._advance_row(tick.entry, progress)
        self._kick()

    def _advance_row(self, entry: Entry, progress: Progress | None) -> None:
        """Move a row without a turn: a fenced row-only commit.  The listener moves the entry."""
        row = entry.row
        commit = Commit(
            partition=row.partition,
            epoch=self._ownership.epoch(row.partition),
            grain_type=row.grain_type,
            grain_key=row.grain_key,
            settle=Settle(row.name, row.registration, row.occurrence, progress),
        )
        future = self._committer.commit(commit)
        future.add_done_callback(lambda done: self._row_advanced(entry, done))

    def _row_advanced(self, entry: Entry, done: asyncio.Future[Verdict]) -> None:
        refused: Callable[[], Any] = done.exception
        if done.cancelled() or refused() is not None or not done.result().settled:
            if not entry.dead:
                entry.stale = True
                self.queue.put_back(entry, self._soon())
            self._kick()


def moved(row: ReminderRow, progress: Progress) -> ReminderRow:
    """The row after its progress was committed."""
    return replace(
        row,
        next_due_at=progress.next_due_at,
        wake_at=progress.wake_at,
        last_fire_at=progress.last_fire_at,
        occurrence=progress.occurrence,
        times_left=progress.times_left,
        attempts=progress.attempts,
        missed_count=progress.missed_count,
        first_missed_at=progress.first_missed_at,
        catch_up_left=progress.catch_up_left,
        status=progress.status,
        note=progress.note,
    )
