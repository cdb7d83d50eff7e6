"""A due entry on its way: judged, sent to its grain under a permit, and moved on when its turn has ended.

A tick is an ordinary message to its grain.  What needs no turn (a skip, a failed attempt, a row nobody can
read) is a row-only commit.  Either way the entry moves when the committer tells of the commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from farro.client.clock import Clock, duration_us, loop_us
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
from farro.client.reminders import MissedReminderAction
from farro.providers.rows import FAILED, Commit, EventRow, Outcome, Progress, ReminderRow, Settle, Verdict
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.activations.failures import printable
from farro.silo.activations.invocation import Admission, Invocation
from farro.silo.options import ReminderOptions
from farro.silo.ownership import Owned, Ownership
from farro.silo.reminders import statistics
from farro.silo.reminders.due_queue import Entry, Key
from farro.silo.reminders.held import HeldReminders
from farro.silo.reminders.judging import UNKNOWN_TYPE_WAIT, Judging
from farro.silo.reminders.permits import Permits
from farro.silo.reminders.repair import repaired
from farro.silo.reminders.ticks import TickInFlight, missed_event
from farro.silo.schedules.missed import NOTE_CHARACTERS_MAX, Skip, progress_of, settle_failed

log = logging.getLogger("farro.reminders")

RECHECK_S = 1.0  # of loop time: when an entry whose commit was not taken is looked at again
RECHECK_MAX_S = 30.0
COMMIT_BATCHES_WAITING_MAX = 4  # beyond it no further tick begins: the store sets the pace
NOT_SETTLED = (
    Conflict, StorageUnavailable, CommitOutcomeUnknown, SiloStopping, GrainDestroyed
)  # fmt: skip


class Firing:
    def __init__(
        self,
        *,
        clock: Clock,
        codec: Codec,
        catalog: Catalog,
        committer: Committer,
        ownership: Ownership,
        options: ReminderOptions,
        random: Random,
        held: HeldReminders,
        judging: Judging,
        permits: Permits[TickInFlight],
        counted: statistics.ReminderStatistics,
        read_again: Callable[[list[Key]], None],
        kick: Callable[[], None],
    ) -> None:
        self.options = options
        self.codec = codec
        self.now = clock.now
        self.judging = judging
        self.running = False  # else no tick begins
        self._clock = clock
        self._catalog = catalog
        self._committer = committer
        self._ownership = ownership
        self._random = random
        self._held = held
        self._queue = held.queue
        self._permits = permits
        self._statistics = counted
        self._read_again = read_again
        self._kick = kick
        self._loop_time = asyncio.get_running_loop().time
        self._begun: set[TickInFlight] = set()  # ticks whose turns have begun and not ended

    # ---- to the grain

    def deliver(self, entry: Entry) -> None:
        """Judge a due entry and send it on its way."""
        if entry.stale:
            self._read_again([entry.key])
            return
        row = entry.row
        owned = self._ownership.owned(row.partition)
        if owned is None:
            self._queue.remove(entry.key)
            return
        operation = self.judging.known_operation(row)
        if operation is None:
            wait_until = self.now() + duration_us(UNKNOWN_TYPE_WAIT)
            self._advance_row(entry, replace(progress_of(row), wake_at=wait_until))
            return
        now = self.now()
        if row.next_due_at is None:
            self._advance_row(entry, repaired(row, now).progress)
            return
        try:
            judged = self.judging.judge(row, owned, now)
        except (InvalidSchedule, ValueError, OverflowError) as error:
            self._unreadable(entry, error)
            return
        if isinstance(judged, Skip):
            self._skip(entry, judged)
            return
        tick = TickInFlight(self, entry, judged, now, owned)
        tick.call = Invocation(
            row.grain_type,
            row.grain_key,
            operation,
            [],
            None,
            float("inf"),
            (),
            partial(self._tick_over, tick),
            external=False,
            delivery=tick,
        )
        self._catalog.submit(tick.call)

    def permit(self, tick: TickInFlight) -> Admission:
        """A permit for the tick's code, or a place among those that wait for one."""
        if not self.running:
            tick.chosen = False
            self._queue.park(tick.entry, tick.go_on)
            return Admission.WAIT
        is_next = tick.chosen or self._queue.passes(tick.entry)
        tick.chosen = False
        if is_next and self._store_keeps_up() and self._permits.take(tick, self._loop_time()):
            self._begun.add(tick)
            return Admission.START
        self._queue.park(tick.entry, tick.go_on)
        self._kick()
        return Admission.WAIT

    def look_again(self, entry: Entry) -> None:
        """Its row changed in ways unknown here before its tick began, perhaps by a cancel: read it first."""
        self._held.distrust(entry)
        self._queue.put_back(entry, self.now())
        self._kick()

    def go_on(self, tick: TickInFlight) -> None:
        """A permit is free, and the tick is the one to have it."""
        tick.chosen = True
        if tick.call is not None:
            self._catalog.submit(tick.call)

    def begin_some(self, most: int) -> bool:
        """Send on what is due and what waited for a permit; may there be more to send?"""
        queue = self._queue
        for _ in range(most):
            may_start = bool(queue.parked) and self._may_start()
            if (entry := queue.take(may_start)) is None:
                return False
            if entry.go_on is None or entry.stale:
                self.deliver(entry)
            else:
                entry.go_on()
        return True

    def _may_start(self) -> bool:
        self._permits.expire(self._loop_time())
        return self._permits.free and self._store_keeps_up()

    def _store_keeps_up(self) -> bool:
        """May another tick begin?  While the store takes nothing, one at a time finds out when it does."""
        committer = self._committer
        if committer.failures_in_a_row:
            return not self._permits.held
        return committer.batches_waiting <= COMMIT_BATCHES_WAITING_MAX

    def has_begun(self, row: ReminderRow) -> bool:
        """A turn for the occurrence that the row owes runs, or waits for its commit."""
        wanted = (row.grain_type, row.grain_key, row.name, row.registration, row.occurrence)
        return any(
            (*tick.entry.key, tick.row.registration, tick.row.occurrence) == wanted for tick in self._begun
        )

    # ---- and back

    def check_still_owned(self, row: ReminderRow, owned: Owned) -> None:
        """Raises :class:`Fenced` for a tick that outlived its ownership.

        Were the partition lost and taken again while the code ran, its commit would pass the fence although
        another owner may have delivered the same occurrence meanwhile.
        """
        if self._ownership.epoch(row.partition) != owned.epoch:
            raise Fenced(f"the partition of {row.grain_type}/{row.grain_key} was lost while its tick ran")

    def code_ended(self, tick: TickInFlight) -> None:
        self._permits.give_back(tick)
        if self._queue.parked:
            self._kick()

    def _tick_over(self, tick: TickInFlight, _: object, error: FarroError | None) -> None:
        """The tick's turn has ended.  When it committed, the listener has already moved the entry."""
        self._permits.give_back(tick)
        self._begun.discard(tick)
        if error is None:
            if tick.began_at:
                self._delivered(tick)
        elif isinstance(error, Fenced):
            self._held.let_go(tick.entry)
        elif isinstance(error, NOT_SETTLED):
            self.try_later(tick.entry)
        else:
            self._failed(tick, error)
        self._kick()

    def _delivered(self, tick: TickInFlight) -> None:
        row, counted = tick.row, self._statistics
        due_at = row.wake_at if row.wake_at is not None else tick.judged.due_at
        counted.on_time(row, tick.began_at - due_at, self.judging.grace_us)
        counted.overrun += tick.overrun
        # What the row carried before was counted when it was passed over.
        if passed := tick.judged.missed_count - row.missed_count:
            counted.missed[MissedReminderAction(row.action)] += passed
        counted.tick(row, tick.began_at, statistics.DELIVERED)

    def _failed(self, tick: TickInFlight, error: FarroError) -> None:
        row = tick.entry.row
        progress = settle_failed(
            row,
            now=self.now(),
            max_attempts=self.options.max_attempts,
            chance=self._random,
            reason=str(error),
        )
        self._statistics.failed += 1
        self._statistics.retried += progress.attempts > 0 and progress.status != FAILED
        self._statistics.tick(row, tick.began_at or self.now(), statistics.FAILED, str(error))
        log.warning(
            "tick failed grain=%s/%s name=%s attempt=%d status=%s",
            printable(row.grain_type),
            printable(row.grain_key),
            printable(row.name),
            row.attempts + 1,
            progress.status,
        )
        self._advance_row(tick.entry, progress)

    def try_later(self, entry: Entry) -> None:
        """Nobody knows what became of the entry's commit: read its row again in a while."""
        if not entry.dead:
            self._held.distrust(entry)
            wait_s = min(RECHECK_S * 2 ** min(self._committer.failures_in_a_row, 5), RECHECK_MAX_S)
            self._queue.put_back(entry, self.now() + loop_us(self._clock, wait_s))

    # ---- without a turn

    def _skip(self, entry: Entry, judged: Skip) -> None:
        row, now = entry.row, self.now()
        action = MissedReminderAction(row.action)
        self._statistics.missed[action] += judged.missed
        self._statistics.tick(row, now, statistics.SKIPPED, f"{judged.missed} missed, {action.name}")
        events: tuple[EventRow, ...] = ()
        if judged.notify:
            events = (self.missed_event(row, judged.first_missed_at, judged.missed),)
        self._advance_row(entry, judged.progress, events)

    def missed_event(self, row: ReminderRow, first_due_at: int, count: int) -> EventRow:
        return missed_event(self.codec, self.options.missed_stream, row, first_due_at, count, self.now())

    def _unreadable(self, entry: Entry, error: Exception) -> None:
        """A row whose schedule cannot be read is marked once and stops nobody else."""
        row = entry.row
        self._statistics.unreadable += 1
        log.error(
            "reminder cannot be read and is marked failed grain=%s/%s name=%s: %s",
            printable(row.grain_type),
            printable(row.grain_key),
            printable(row.name),
            printable(str(error)),
        )
        note = f"unreadable: {error}"[:NOTE_CHARACTERS_MAX]
        self._advance_row(entry, replace(progress_of(row), wake_at=None, status=FAILED, note=note))

    def _advance_row(
        self, entry: Entry, progress: Progress | None, events: tuple[EventRow, ...] = ()
    ) -> None:
        """Move a row without a turn: a fenced row-only commit.  The listener moves the entry."""
        row = entry.row
        settle = Settle(row.name, row.registration, row.occurrence, progress)
        self.commit_row(row, settle, events).add_done_callback(lambda done: self._row_advanced(entry, done))

    def commit_row(
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
        if done.cancelled() or done.exception() is not None:
            self.try_later(entry)
        elif done.result().outcome is Outcome.FENCED:
            self._held.let_go(entry)
        elif not done.result().settled:
            self.try_later(entry)
        else:
            return
        self._kick()
