"""Brings the events of one stream to one subscribed grain type.

Theory of operation.  There is a *lane* for each partition of publishers that has something new: a task that
reads a page, brings each event to its grain as a turn, waits for that turn's commit, and ends when nothing is
left.  So events of one publisher never overtake each other, and lanes do not wait for one another, except
for one of a few places while they hold a page.  A commit of this silo that carries events wakes their lanes.

The turn's commit moves the subscriber's watermark.  Whenever it is not certain that an event has not been
consumed (after a start, after a lost answer), the watermark is read before the event is brought again; an
event that slips through is a duplicate to the store, and its turn changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from farro.client.clock import duration_us
from farro.client.errors import (
    AlreadyConsumed,
    CommitOutcomeUnknown,
    Conflict,
    FarroError,
    Fenced,
    GrainDestroyed,
    InvalidPayload,
    SiloStopping,
    StorageUnavailable,
)
from farro.client.identity import GrainId
from farro.client.streams import StoredEvent, StreamEvent, unpack_event
from farro.providers.errors import StoreError
from farro.providers.rows import EventRow, Outcome, Verdict, Watermark
from farro.silo.activations.failures import printable
from farro.silo.activations.invocation import Invocation
from farro.silo.grains.subscriptions import Subscription
from farro.silo.streams.core import (
    DISPATCH_TYPE,
    Place,
    StreamCore,
    begun_mark,
    positions_in,
    source_of,
)
from farro.silo.streams.delivery import EventDelivery

log = logging.getLogger("farro.streams")

RECHECK_S = 1.0  # of loop time: when an event whose commit was not taken is brought again
SAVE_S = 1.0  # of loop time: how often a busy lane that many grains share writes down where it is
RETRY_FIRST, RETRY_MAX = timedelta(seconds=1), timedelta(minutes=5)
NOT_CONSUMED = (
    Fenced, Conflict, StorageUnavailable, CommitOutcomeUnknown, SiloStopping, GrainDestroyed
)  # fmt: skip


class Lane:
    """The events of one partition of publishers, on their way."""

    __slots__ = (
        "attempts",
        "check_until",
        "cursor",
        "failing",
        "news",
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


class Pump:
    """See the head of the file."""

    def __init__(self, core: StreamCore, subscription: Subscription) -> None:
        self.subscription = subscription
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(core.options.in_flight_max)
        self._lanes: dict[int, Lane] = {}
        self._positions: dict[int, int] = {}  # as the store had them at the start
        self._place: Place = (
            (subscription.grain_type, subscription.key)
            if subscription.key is not None
            else (DISPATCH_TYPE, f"{subscription.stream}>{subscription.grain_type}")
        )

    @property
    def _shared(self) -> bool:
        """Do the events of one lane go to many grains?  Then none of their watermarks says where it is."""
        return self.subscription.key is None

    # ---- life

    async def open(self) -> None:
        """Find out where the subscription stands, and go on from there.  Raises what the store raises."""
        core, stream = self._core, self.subscription.stream
        heads = dict(await core.provider.stream_heads(stream))
        positions = await self._read_positions()
        if self.subscription.after == "now" and positions is None:
            marks = [Watermark(source_of(stream, each), head) for each, head in heads.items()]
            partition = core.ownership.partition_of(*self._place)
            await core.committer.commit(
                core.watermark_commit(self._place, partition, begun_mark(stream), *marks)
            )
            positions = heads | (await self._read_positions() or {})
        self._positions = positions or {}
        for partition in heads:
            self.wake(partition, check_until=heads[partition])

    async def _read_positions(self) -> dict[int, int] | None:
        """None: this subscription has never been served."""
        stream = self.subscription.stream
        watermarks = await self._core.provider.watermarks(*self._place)
        positions = positions_in(watermarks, stream)
        return positions if positions or begun_mark(stream).source in watermarks else None

    def cursor(self, partition: int) -> int:
        """Up to where the events of a partition are done with."""
        lane = self._lanes.get(partition)
        return self._positions.get(partition, 0) if lane is None else lane.cursor

    async def look(self) -> None:
        """Wake every lane that is behind: commits whose answers were lost told nobody."""
        for partition, head in await self._core.provider.stream_heads(self.subscription.stream):
            if head > self.cursor(partition):
                self.wake(partition)
        self.save()

    def save(self) -> None:
        """Write down where lanes are that many grains share."""
        for lane in self._lanes.values():
            self._save(lane)

    # ---- lanes

    def wake(self, partition: int, check_until: int = 0) -> None:
        """There may be something new in a partition."""
        lane = self._lanes.get(partition)
        if lane is None:
            cursor = self._positions.get(partition, 0)
            if check_until and check_until <= cursor:
                return
            lane = self._lanes[partition] = Lane(partition, cursor, check_until if self._shared else 0)
        lane.news = True
        if not lane.running and self._core.running:
            lane.running = True
            name = f"stream {self.subscription.stream} {partition}"
            self._core.tasks.start(self._run(lane), name)

    async def _run(self, lane: Lane) -> None:
        try:
            while self._core.running and self._core.ownership.owned(lane.partition) is not None:
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
                if not core.running:
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
        delivery = EventDelivery(self._core, event, mark)
        refused = await self._deliver(target, delivery)
        if delivery.dropped:
            return RECHECK_S
        if refused is None or isinstance(refused, AlreadyConsumed):
            self._core.statistics.delivered += refused is None
            return self._done(lane, sequence)
        if isinstance(refused, NOT_CONSUMED):
            lane.check_until = max(lane.check_until, sequence)
            return RECHECK_S
        return await self._raised(lane, sequence, target, refused)

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

    async def _deliver(self, target: GrainId, delivery: EventDelivery) -> FarroError | None:
        done: asyncio.Future[FarroError | None] = self._loop.create_future()

        def respond(_: object, error: FarroError | None) -> None:
            if not done.done():
                done.set_result(error)

        self._core.catalog.submit(
            Invocation(
                target.type,
                target.key,
                self.subscription.method,
                [],
                None,
                float("inf"),
                (),
                respond,
                external=False,
                delivery=delivery,
            )
        )
        return await done

    async def _raised(self, lane: Lane, sequence: int, target: GrainId, error: FarroError) -> float:
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
        if target is not None:
            mark = Watermark(source_of(stream, lane.partition), sequence)
            partition = core.ownership.partition_of(target.type, target.key)
            try:
                verdict = await core.committer.commit(
                    core.watermark_commit((target.type, target.key), partition, mark)
                )
            except FarroError as trouble:
                log.warning("event of stream %s is not passed over: %s", printable(stream), trouble)
                return RECHECK_S
            if verdict.outcome not in (Outcome.COMMITTED, Outcome.DUPLICATE):
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
