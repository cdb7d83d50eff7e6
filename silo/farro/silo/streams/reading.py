"""Reads streams for clients: pages after given positions, held back a while when there is nothing new."""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import Literal

from farro.client.errors import InvalidPayload, Overloaded, StorageUnavailable
from farro.client.streams import EventPage, StoredEvent, checked_stream
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.silo.activations.failures import printable
from farro.silo.streams.core import TRIMMED_TYPE, StreamCore

PAGE_BYTES_MAX = 512 * 1024  # half a frame of the wire
PAGE_EVENTS_MAX = 1_000
WAIT_S_MAX = 30.0
READER_TYPE = "farro.streams"
WATCH_S = 0.2  # of loop time, between two looks at what other silos have committed

log = logging.getLogger("farro.streams")


class StreamReader:
    def __init__(self, core: StreamCore) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._heads: dict[str, list[tuple[int, int]]] = {}  # of streams that are waited for, when looked at
        self._watching = False

    # ---- wake

    def wake(self, stream: str) -> None:
        """Something was committed to the stream."""
        for waiter in self._waiting.get(stream, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wake_all(self) -> None:
        for stream in self._waiting:
            self.wake(stream)

    def leave(self, partitions: frozenset[int]) -> None:
        """Readers served in partitions that go are answered, to ask again where these are served next.

        Else each would hold up the hand-over of its partition for as long as nothing is published.
        """
        for stream in self._waiting:
            if self._partition_of(stream) in partitions:
                self.wake(stream)

    def _partition_of(self, key: str) -> int:
        """Where the grain of that key is; readers call the one that is named as their stream."""
        return self._core.ownership.partition_of(READER_TYPE, key)

    # ---- what other silos commit

    def others_publish(self) -> None:
        """Not every partition is owned here (any more): look at the heads of what is waited for.

        The commits of other silos tell nothing here.  While a reader waits and there is another owner, one
        indexed read for each stream that is waited for, a few times a second, finds them; else none.
        """
        if self._waiting and not self._watching and not self._owns_all and self._core.running:
            self._watching = True
            self._core.tasks.start(self._watch(), "watch streams")

    @property
    def _owns_all(self) -> bool:
        ownership = self._core.ownership
        return len(ownership.all()) == ownership.partitions

    async def _watch(self) -> None:
        try:
            while self._waiting and not self._owns_all and self._core.running:
                for stream in list(self._waiting):
                    await self._look_at_heads(stream)
                await asyncio.sleep(WATCH_S)
        finally:
            self._watching = False
            self._heads.clear()

    async def _look_at_heads(self, stream: str) -> None:
        try:
            heads = await self._core.provider.stream_heads(stream)
        except StoreError as error:
            log.info("stream %s could not be looked at: %s", printable(stream), error)
            return
        if stream not in self._waiting:
            self._heads.pop(stream, None)
        elif self._heads.get(stream) != heads:  # the first look may come after an event that nobody saw
            self._heads[stream] = heads
            self.wake(stream)

    # ---- read

    async def positions(self, stream: str, after: Literal["now", "start"]) -> dict[int, int]:
        """Where a new reader begins: behind the last event of each partition, or before what is retained."""
        stream = checked_stream(stream)
        try:
            if after == "now":
                return dict(await self._core.provider.stream_heads(stream))
            return await trimmed(self._core.provider, stream)
        except StoreError as error:
            raise StorageUnavailable(f"stream {stream!r} could not be read: {error}") from error

    async def read(
        self, key: str, stream: str, positions: dict[int, int], limit: int, wait_s: float
    ) -> EventPage:
        """The events after ``positions`` (absent: from the first), at most ``limit`` and half a frame.

        Nothing new: waits until something is, at most ``wait_s`` seconds and while the grain ``key`` that was
        called lives here; the page may then be empty.
        Raises :class:`Overloaded` beyond ``readers_max`` readers.
        """
        stream = checked_stream(stream)
        if not 1 <= limit <= PAGE_EVENTS_MAX or not 0 <= wait_s <= WAIT_S_MAX:
            raise InvalidPayload(
                f"a read takes limit 1 to {PAGE_EVENTS_MAX} and wait_s 0 to {WAIT_S_MAX:g}, "
                f"not {limit} and {wait_s:g}"
            )
        if self._count >= self._core.options.readers_max:
            raise Overloaded(
                f"{self._count} readers already wait for streams here (StreamOptions.readers_max)",
                retry_after=1.0,
            )
        self._count += 1
        waiters = self._waiting.setdefault(stream, set())
        until = self._loop.time() + wait_s
        self.others_publish()
        try:
            while True:
                # before looking: what is committed while the store is read must not pass unheard
                waiter = self._loop.create_future()
                waiters.add(waiter)
                try:
                    page = await self._look(stream, positions, limit)
                    left_s = until - self._loop.time()
                    if page.events or page.trimmed or left_s <= 0 or not self._may_hold(key):
                        self._core.statistics.reads += bool(page.events)
                        return page
                    await asyncio.wait((waiter,), timeout=left_s)
                    if not waiter.done():
                        return page
                finally:
                    waiters.discard(waiter)
        finally:
            self._count -= 1
            if not waiters and self._waiting.get(stream) is waiters:
                del self._waiting[stream]
                self._heads.pop(stream, None)

    def _may_hold(self, key: str) -> bool:
        return self._core.running and self._core.ownership.serves(self._partition_of(key))

    async def _look(self, stream: str, positions: dict[int, int], limit: int) -> EventPage:
        provider = self._core.provider
        try:
            heads = await provider.stream_heads(stream)
            behind = {part: positions.get(part, 0) for part, head in heads if head > positions.get(part, 0)}
            if not behind:
                return EventPage([], {})
            marks = await trimmed(provider, stream)
            gone = {part: marks[part] for part, position in behind.items() if marks.get(part, 0) > position}
            share = max(1, limit // len(behind))  # the pages of many partitions together stay near the limit
            pages = []
            for partition, position in (behind | gone).items():
                rows = await provider.events(partition, stream, position, share)
                pages.append([StoredEvent(partition, number, row.at, row.payload) for number, row in rows])
        except StoreError as error:
            raise StorageUnavailable(f"stream {stream!r} could not be read: {error}") from error
        return EventPage(_together(pages, limit), gone)


async def trimmed(provider: Provider, stream: str) -> dict[int, int]:
    """Partition → the last event of the stream that was trimmed there."""
    marks = await provider.watermarks(TRIMMED_TYPE, stream)
    return {int(partition): position for partition, position in marks.items()}


def _together(pages: list[list[StoredEvent]], limit: int) -> list[StoredEvent]:
    """By age, each partition in its own order whatever its clock said; as many as one reply carries."""
    chosen: list[StoredEvent] = []
    size = 0
    for event in heapq.merge(*pages, key=lambda each: each.at):
        size += len(event.payload) + 64
        if chosen and (size > PAGE_BYTES_MAX or len(chosen) >= limit):
            break
        chosen.append(event)
    return chosen
