"""Reads the table: when a page is wanted, the page, and single rows whose commit's fate is unknown.

One page is out at a time.  A store that does not answer is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from farro.client.clock import Clock, duration_us, loop_us
from farro.client.reminders import ReminderPriority
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import ReminderRow
from farro.silo.options import ReminderOptions
from farro.silo.ownership import Ownership
from farro.silo.reminders import poller
from farro.silo.reminders.due_queue import Entry, Key
from farro.silo.reminders.held import HeldReminders
from farro.silo.reminders.judging import Judging
from farro.silo.reminders.statistics import ReminderStatistics
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.reminders")

REFILL_GAP_S = 0.05  # of loop time, between two polls of which the first brought less than a full page
BEHIND_GAP_S = 1.0  # of loop time, between two polls for what is due while there is little room for it
POLL_AGAIN_S = 5.0  # of loop time, after a poll that the store did not answer
ALL_PRIORITIES = len(ReminderPriority)


class Refill:
    def __init__(
        self,
        *,
        provider: Provider,
        clock: Clock,
        held: HeldReminders,
        judging: Judging,
        ownership: Ownership,
        options: ReminderOptions,
        statistics: ReminderStatistics,
        tasks: TaskOwner,
        adapt: Callable[[], None],
        try_later: Callable[[Entry], None],
        kick: Callable[[], None],
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._held = held
        self._judging = judging
        self._ownership = ownership
        self._options = options
        self._statistics = statistics
        self._tasks = tasks
        self._adapt = adapt
        self._try_later = try_later
        self._kick = kick
        self._loop = asyncio.get_running_loop()
        self._polling = False
        self._polled_at = float("-inf")  # loop time
        self._page_full = False  # the last page brought as many rows as it might
        self._next_poll_at = 0  # schedule time
        self._poll_asked = False  # what was asked for while a page is out wants another one
        self._caught_up = asyncio.Event()  # nothing is asked for that has not been read
        self._caught_up.set()
        self._window: timedelta | None = None  # how far the page that was asked for looks, if further
        self.healthy = True  # the last poll was answered

    def poll_soon(self, window: timedelta | None = None) -> None:
        """Read a page at the next opportunity: rows changed in ways no commit of this silo told.

        ``window``: how far that page looks ahead, if further than others.
        """
        self._poll_asked = True
        self._caught_up.clear()
        if window is not None:
            self._window = window
        self._kick()

    def look(self, now: int) -> None:
        """Begin to read a page if one is wanted."""
        if not self._polling and (priorities := self._wanted(now)):
            self._polling = True
            self._tasks.start(self.poll(priorities), "poll")

    def next_look(self, now: int, loop_now: float) -> float:
        """When to look again: the loop's time, infinity while a page is out, whose end looks itself."""
        if self._polling:
            return float("inf")
        at = min(self._next_poll_at, self._held.next_gap(now) or self._next_poll_at)
        return min(loop_now + self._clock.loop_seconds(at - now), max(self._refill_when(now), loop_now))

    def _wanted(self, now: int) -> int:
        """How many priorities to read now, the highest first; mostly none or all."""
        if now >= self._next_poll_at or self._held.page_outdated or self._poll_asked:
            return ALL_PRIORITIES
        if self._loop.time() < self._refill_when(now):
            return 0
        if self._held.wants_refill(now):
            return ALL_PRIORITIES
        return self._held.pressing(now) or ALL_PRIORITIES

    def _refill_when(self, now: int) -> float:
        """When to read the table although no poll is due: the loop's time, infinity for never."""
        if self._held.wants_refill(now):
            at_once = self._page_full and self._held.complete_until < now
            return self._polled_at if at_once else self._polled_at + REFILL_GAP_S
        if self._held.pressing(now):
            return self._polled_at + REFILL_GAP_S
        return self._polled_at + BEHIND_GAP_S if self._held.is_behind(now) else float("inf")

    async def poll(self, priorities: int = ALL_PRIORITIES, window: timedelta | None = None) -> None:
        """Read one page and hold what it says."""
        self._polling = True
        whole = priorities == ALL_PRIORITIES
        if whole:
            window, self._window = window or self._window, None
            self._poll_asked = False
        self._polled_at = self._loop.time()
        self._adapt()
        now = self._clock.now()
        until = now + duration_us(self._options.look_ahead_window)
        limit = self._held.queue.capacity
        questions = poller.queries(
            until if window is None else now + duration_us(window),
            limit,
            self._ownership.all(),
            self._ownership.partitions,
            priorities,
        )
        began = self._held.read_began()
        try:
            owns_some = bool(self._ownership.all())
            answers = await self._provider.poll(questions) if owns_some else [[] for _ in questions]
        except StoreError as error:
            log.error("poll failed; the next one comes soon: %s", error)
            self._statistics.poll_failures += 1
            self.healthy = False
            self._next_poll_at = self._clock.now() + loop_us(self._clock, POLL_AGAIN_S)
            if whole:
                self._window = window
            self._polled_at = self._loop.time() + POLL_AGAIN_S  # no refill is tried sooner either
        else:
            page = poller.plan(
                [self._judging.freed_until(rows, now, until) for rows in answers],
                now=now,
                until=until,
                limit=limit,
                by_priority=self._options.enable_priority,
                wait_max_us=duration_us(self._options.background_wait_max),
            )
            self._page_full = whole and len(page.rows) + len(page.aged) >= limit
            self._held.queue.advance(self._clock.now())
            for _ in self._held.hold_page(page, until, began):
                await asyncio.sleep(0)
            if whole:
                self._next_poll_at = now + duration_us(self._options.poll_interval)
            self._statistics.polls += owns_some
            self.healthy = True
            self._statistics.poll_rows += sum(map(len, answers))
            self._statistics.poll_seconds += self._loop.time() - self._polled_at
        finally:
            self._held.read_over()
            self._polling = False
            if not self._poll_asked:
                self._caught_up.set()
        self._kick()

    async def caught_up(self) -> None:
        """Wait until the last page that was asked for has been read."""
        await self._caught_up.wait()

    def read_again(self, keys: list[Key]) -> None:
        """Replace what is held of some reminders by what the table says now."""
        self._tasks.start(self._read_again(keys), "read again")

    async def _read_again(self, keys: list[Key]) -> None:
        began = self._held.read_began()
        try:
            # A load waits for whatever commit is still on its way, so that none lands behind these reads.
            await self._provider.load([key[:2] for key in keys])
            for key in keys:
                row: ReminderRow | None = await self._provider.reminder(*key)
                if row is not None:
                    if self._ownership.owned(row.partition) is None:
                        continue  # its entry went with the partition
                    row = self._judging.freed(row, self._clock.now())
                if not self._held.hold_again(key, row, began):
                    self.read_again([key])
        except Exception as error:
            fault = not isinstance(error, StoreError)
            log.error("a reminder could not be read again: %s", error, exc_info=fault)
            for key in keys:
                entry = self._held.queue.get(key)
                if entry is not None and entry.is_read_again:
                    self._try_later(entry)
        finally:
            self._held.read_over()
        self._kick()
