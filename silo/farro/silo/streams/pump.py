"""Brings the events of one stream to one subscribed grain type.

Theory of operation.  There is a *lane* for each partition of publishers that this silo owns.  When it has
something new, a task reads a page, brings each event to its grain as a turn, here or where that grain lives
(``subscribers``), waits for that turn's commit, and ends when nothing is left.  So events of one publisher
never overtake each other, and lanes do not wait for one another, except for one of a few places while they
hold a page.  A commit of this silo that carries events wakes their lanes.

A lane begins when its partition is taken, from where the store says that the subscription stands there, and
ends with the ownership.  An event may then be brought by two silos, but a next one never before the one
before it was consumed: the watermark of the subscriber never skips any.

The turn's commit moves the subscriber's watermark.  Whenever it is not certain that an event has not been
consumed (after a start, after a lost answer), the watermark is read before the event is brought again; an
event that slips through is a duplicate to the store, and its turn changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta

from farro.client.clock import duration_us
from farro.client.errors import InvalidPayload
from farro.client.identity import GrainId
from farro.client.streams import StoredEvent, StreamEvent, unpack_event
from farro.providers.errors import StoreError
from farro.providers.rows import EventRow, Verdict, Watermark
from farro.silo.activations.failures import printable
from farro.silo.grains.subscriptions import Subscription
from farro.silo.streams.core import (
    DISPATCH_TYPE,
    Fate,
    Place,
    StreamCore,
    begun_mark,
    positions_in,
    source_of,
)
from farro.silo.streams.subscribers import Subscribers

log = logging.getLogger("farro.streams")

RECHECK_S = 1.0  # of loop time: when an event whose commit was not taken is brought again
SAVE_S = 1.0  # of loop time: how often a busy lane that many grains share writes down where it is
RETRY_FIRST, RETRY_MAX = timedelta(seconds=1), timedelta(minutes=5)


class Lane:
    """The events of one partition of publishers, on their way."""

    __slots__ = (
        "attempts",
        "check_until",
        "cursor",
        "failing",
        "news",
        "over",
        "partition",
        "running",
        "saved",
        "saved_at",
    )

    def __init__(self, partition: int, cursor: int, check_until: int) -> None:
        self.partition = partition
        self.cursor = cursor  # every event up to it is done with
        self.check_until = check_until  # up to it, events may have been consumed already
        self.saved = cursor
        self.saved_at = float("-inf")  # loop time
        self.failing = 0  # the event that raised last
        self.attempts = 0
        self.running = False
        self.news = False
        self.over = False  # its partition is owned here no more


class Pump:
    """See the head of the file."""

    def __init__(self, core: StreamCore, subscribers: Subscribers, subscription: Subscription) -> None:
        self.subscription = subscription
        self._core = core
        self._subscribers = subscribers
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(core.options.in_flight_max)
        self._lanes: dict[int, Lane] = {}  # of the partitions served here
        self._early: set[int] = set()  # partitions with something new that are not served yet
        self._place: Place = (
            (subscription.grain_type, subscription.key)
            if subscription.key is not None
            else (DISPATCH_TYPE, f"{subscription.stream}>{subscription.grain_type}")
        )

    @property
    def _shared(self) -> bool:
        """Do the events of one lane go to many grains?  Then none of their watermarks says where it is."""
        return self.subscription.key is None

    # ---- partitions that come and go

    async def begin(self, partitions: Iterable[int]) -> bool:
        """Serve the publishers of partitions that were taken, from where the subscription stands there.

        False: where that is, is not settled yet; ask again.  Repeatable.  Raises what the store raises.
        """
        core, stream = self._core, self.subscription.stream
        positions = await self._read_positions()
        if self.subscription.after == "now" and positions is None:
            if not await self._subscribers.begin_now(self._place, stream):
                return False
            positions = await self._read_positions()
        heads = dict(await core.provider.stream_heads(stream))
        for partition in partitions:
            if partition not in self._lanes and core.ownership.owned(partition) is not None:
                self._begin_lane(partition, (positions or {}).get(partition, 0), heads.get(partition, 0))
        return True

    def _begin_lane(self, partition: int, cursor: int, head: int) -> None:
        self._lanes[partition] = Lane(partition, cursor, head if self._shared else 0)
        if head > cursor or partition in self._early:
            self._early.discard(partition)
            self.wake(partition)

    def end(self, partitions: Iterable[int]) -> None:
        """These partitions are owned no more: an event that is out is the last one brought from here."""
        for partition in partitions:
            self._early.discard(partition)
            lane = self._lanes.pop(partition, None)
            if lane is not None:
                lane.over = True

    async def _read_positions(self) -> dict[int, int] | None:
        """None: this subscription has never been served."""
        stream = self.subscription.stream
        watermarks = await self._core.provider.watermarks(*self._place)
        positions = positions_in(watermarks, stream)
        return positions if positions or begun_mark(stream).source in watermarks else None

    def cursor(self, partition: int) -> int:
        """Up to where the events of a partition are done with; 0 while nothing is known of it."""
        lane = self._lanes.get(partition)
        return 0 if lane is None else lane.cursor

    async def look(self) -> None:
        """Wake every lane that is behind: commits whose answers were lost told nobody."""
        for partition, head in await self._core.provider.stream_heads(self.subscription.stream):
            lane = self._lanes.get(partition)
            if lane is not None and head > lane.cursor:
                self.wake(partition)
        self.save()

    def save(self) -> None:
        """Write down where lanes are that many grains share."""
        for lane in self._lanes.values():
            self._save(lane)

    # ---- lanes

    def wake(self, partition: int) -> None:
        """There may be something new in a partition."""
        lane = self._lanes.get(partition)
        if lane is None:
            self._early.add(partition)
            return
        lane.news = True
        if not lane.running and self._core.running:
            lane.running = True
            name = f"stream {self.subscription.stream} {partition}"
            self._core.tasks.start(self._run(lane), name)

    async def _run(self, lane: Lane) -> None:
        try:
            while self._core.running and not lane.over:
                lane.news = False
                async with self._slots:
                    pause_s = await self._page(lane)
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
                elif not lane.news:
                    return
        finally:
            lane.running = False

    async def _page(self, lane: Lane) -> float | None:
        """Bring one page.  How long to wait before the next one; None when there was none."""
        core = self._core
        try:
            page = await core.provider.events(
                lane.partition, self.subscription.stream, lane.cursor, core.options.batch
            )
            for sequence, row in page:
                if not core.running or lane.over:
                    return None
                pause_s = await self._bring(lane, sequence, row)
                if pause_s:
                    return pause_s
        except StoreError as error:
            log.warning("stream %s cannot be read: %s", printable(self.subscription.stream), error)
            return RECHECK_S
        if page and self._loop.time() - lane.saved_at >= SAVE_S:
            self._save(lane)
        return 0.0 if page else None

    def _save(self, lane: Lane) -> None:
        if not self._shared or lane.saved == lane.cursor:
            return
        lane.saved, lane.saved_at = lane.cursor, self._loop.time()
        mark = Watermark(source_of(self.subscription.stream, lane.partition), lane.cursor)
        done = self._core.committer.commit(self._core.watermark_commit(self._place, lane.partition, mark))
        done.add_done_callback(_saved)

    # ---- one event

    async def _bring(self, lane: Lane, sequence: int, row: EventRow) -> float:
        """Have one event consumed or passed over; or how many seconds of loop time to wait for it."""
        stored = StoredEvent(lane.partition, sequence, row.at, row.payload)
        try:
            event = unpack_event(self._core.codec, row.stream, stored)
        except InvalidPayload as error:
            return await self._pass_over(lane, sequence, self._fixed_target(), f"it cannot be read: {error}")
        target = self._target(event)
        if target is None:
            return await self._pass_over(lane, sequence, None, "it names no publisher")
        mark = Watermark(source_of(row.stream, lane.partition), sequence)
        if sequence <= lane.check_until and await self._consumed(target, mark):
            return self._done(lane, sequence)
        brought = await self._subscribers.bring(target, self.subscription.method, row.stream, stored)
        if brought.fate in (Fate.CONSUMED, Fate.ALREADY):
            self._core.statistics.delivered += brought.fate is Fate.CONSUMED
            return self._done(lane, sequence)
        if brought.fate is Fate.FAILED:
            return await self._raised(lane, sequence, target, brought.reason)
        if brought.reason:
            log.info("event %s is brought again: %s", printable(event.id), printable(brought.reason))
        lane.check_until = max(lane.check_until, sequence)
        return RECHECK_S

    def _fixed_target(self) -> GrainId | None:
        key = self.subscription.key
        return None if key is None else GrainId(self.subscription.grain_type, key)

    def _target(self, event: StreamEvent) -> GrainId | None:
        if self.subscription.key is None and event.publisher is not None:
            return GrainId(self.subscription.grain_type, event.publisher.key)
        return self._fixed_target()

    async def _consumed(self, target: GrainId, mark: Watermark) -> bool:
        watermarks = await self._core.provider.watermarks(target.type, target.key)
        return watermarks.get(mark.source, 0) >= mark.position

    def _done(self, lane: Lane, sequence: int) -> float:
        lane.cursor = sequence
        lane.failing = lane.attempts = 0
        return 0.0

    async def _raised(self, lane: Lane, sequence: int, target: GrainId, error: str) -> float:
        core = self._core
        core.statistics.failed += 1
        lane.attempts = lane.attempts + 1 if lane.failing == sequence else 1
        lane.failing = sequence
        if lane.attempts >= core.options.max_attempts:
            return await self._pass_over(lane, sequence, target, f"it failed {lane.attempts} times: {error}")
        delay_us = min(duration_us(RETRY_FIRST) << min(lane.attempts - 1, 32), duration_us(RETRY_MAX))
        # up to a half less, so that many that failed together do not come back together
        return core.clock.loop_seconds(delay_us - int(delay_us * core.random.random() / 2))

    async def _pass_over(self, lane: Lane, sequence: int, target: GrainId | None, why: str) -> float:
        """Give an event up: the watermark moves by a row-only commit, the lane goes on."""
        core, stream = self._core, self.subscription.stream
        if target is not None and (
            lane.over or not await self._subscribers.pass_over(target, stream, lane.partition, sequence)
        ):
            return RECHECK_S
        core.statistics.passed_over += 1
        log.error(
            "event passed over stream=%s event=%d-%d subscriber=%s.%s: %s",
            printable(stream),
            lane.partition,
            sequence,
            printable(self.subscription.grain_type if target is None else str(target)),
            self.subscription.method,
            printable(why),
        )
        return self._done(lane, sequence)


def _saved(done: asyncio.Future[Verdict]) -> None:
    """A position that was not written costs a restart some look-ups and no event."""
    if not done.cancelled() and (error := done.exception()) is not None:
        log.info("the position of a subscription was not written: %s", error)
