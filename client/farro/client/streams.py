"""Streams: what an event is, how it is written down, and ``client.stream(name)`` that follows one.

A stream is a name.  Grains publish to it with the commit of their turn; the events of one grain stay in
order.  A reader asks the grain ``farro.streams`` for what comes after the positions it has reached, one per
partition of the publishers; an answer may take a while when there is nothing new.  A named consumer keeps its
positions in the grain ``farro.consumers/NAME``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar, cast

from farro.client.clock import from_us
from farro.client.codec import Codec
from farro.client.errors import (
    CallTimeout,
    CommitOutcomeUnknown,
    Conflict,
    Fenced,
    InvalidGrainId,
    InvalidPayload,
    Overloaded,
    SiloUnavailable,
    StorageUnavailable,
)
from farro.client.identity import GrainId, canonical_key
from farro.client.interface import grain_interface, interface_of
from farro.client.reference import Caller, reference

log = logging.getLogger("farro.client")

T = TypeVar("T")
After = Literal["now", "start"]

STREAM_BYTES_MAX = 200
PAGE_EVENTS = 100
WAIT_S = 8.0  # how long a silo holds a read that finds nothing: below what it logs as a slow turn
CALL_TIMEOUT_S = WAIT_S + 20.0
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0
GIVE_UP_S = 60.0  # of failures in a row
PASSING = (
    SiloUnavailable, CallTimeout, StorageUnavailable, Overloaded, CommitOutcomeUnknown, Fenced, Conflict
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event.  ``id`` is the same on every delivery: an idempotency key for the outside world.

    ``value`` is what was published; ``published_at`` the instant in its turn, aware UTC; ``publisher`` the
    grain whose turn it was.
    """

    stream: str
    value: Any
    published_at: datetime
    publisher: GrainId | None
    id: str


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it lies in the store: ``payload`` is what :func:`pack_event` made, ``at`` microseconds."""

    partition: int
    sequence: int
    at: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class EventPage:
    """An answer to a read.  ``trimmed``: partitions whose next events are gone, and where reading goes on."""

    events: list[StoredEvent]
    trimmed: dict[int, int]


def checked_stream(name: Any) -> str:
    """The stream name as given; :class:`InvalidPayload` for what cannot be one (no text, empty, too long)."""
    if not isinstance(name, str):
        raise InvalidPayload(f"a stream name must be str, not {type(name).__name__}")
    try:
        text = canonical_key(name, "stream name")
    except InvalidGrainId as error:
        raise InvalidPayload(str(error)) from None
    size = len(text.encode())
    if size > STREAM_BYTES_MAX:
        raise InvalidPayload(f"stream name is {size} bytes long; at most {STREAM_BYTES_MAX} are allowed")
    return text


def checked_after(after: Any) -> After:
    if after not in ("now", "start"):
        raise ValueError(f"after must be 'now' or 'start', not {after!r}")
    return cast(After, after)


def pack_event(codec: Codec, publisher: GrainId, value: Any) -> bytes:
    """The payload of an event.  :class:`InvalidPayload`, naming the path, for values that do not travel."""
    return codec.pack({"from": [publisher.type, publisher.key], "value": value}, "event")


def unpack_event(codec: Codec, stream: str, stored: StoredEvent) -> StreamEvent:
    """The event in a payload.  :class:`InvalidPayload` for bytes that :func:`pack_event` never made."""
    envelope = codec.unpack(stored.payload, "event")
    if type(envelope) is not dict or not {"from", "value"} <= envelope.keys():
        raise InvalidPayload(f"event {stored.sequence} of stream {stream!r} has no envelope")
    origin = envelope["from"]
    if origin is not None and (type(origin) is not list or [type(part) for part in origin] != [str, str]):
        raise InvalidPayload(f"event {stored.sequence} of stream {stream!r} names no publisher")
    return StreamEvent(
        stream=stream,
        value=envelope["value"],
        published_at=from_us(stored.at),
        publisher=None if origin is None else GrainId(*origin),
        id=f"{stream}/{stored.partition}-{stored.sequence}",
    )


@grain_interface("farro.streams")
class StreamsApi(Protocol):
    """What the grain ``farro.streams`` answers."""

    async def positions(self, stream: str, after: str) -> dict[int, int]: ...

    async def read(self, stream: str, positions: dict[int, int], limit: int, wait_s: float) -> EventPage: ...


@grain_interface("farro.consumers")
class ConsumersApi(Protocol):
    """What the grains ``farro.consumers/NAME`` answer."""

    async def begin(self, stream: str, after: str) -> dict[int, int]: ...

    async def acknowledge(self, stream: str, partition: int, sequence: int) -> None: ...


class EventStream:
    """Follows a stream: ``async for event in client.stream("orders")``.  Never ends by itself.

    Events of one publisher come in order.  Where it begins is settled by entering it (``async with``) or by
    the first ``anext``.  A failing connection or store is tried again for a minute, then its error is raised;
    iterating again goes on where it was.  One task at a time; cancelling an ``anext`` loses nothing.

    ``gaps`` counts how often events had been trimmed before they were read, ``unreadable`` the events that
    were passed over because no version of farro wrote them so.
    """

    def __init__(
        self,
        caller: Caller,
        stream: str,
        *,
        consumer: str | None = None,
        after: After = "now",
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self.stream = checked_stream(stream)
        self.gaps = 0
        self.unreadable = 0
        self._after = checked_after(after)
        self._consumer = None if consumer is None else canonical_key(consumer, "consumer name")
        self._is_open = is_open
        self._codec = Codec(caller)
        streams = reference(interface_of(StreamsApi), self.stream, caller, CALL_TIMEOUT_S)
        self._streams = cast(StreamsApi, streams)
        if self._consumer is not None:
            consumers = reference(interface_of(ConsumersApi), self._consumer, caller, CALL_TIMEOUT_S)
            self._consumers = cast(ConsumersApi, consumers)
        self._positions: dict[int, int] | None = None  # up to where the store has been read
        self._page: deque[StoredEvent] = deque()
        self._handed_out: StoredEvent | None = None
        self._busy = False
        self._closed = False

    async def __aenter__(self) -> EventStream:
        await self._begun()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the iteration.  The last event handed out does not count as consumed.  Repeatable."""
        self._closed = True

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> StreamEvent:
        """The next event, waiting for it.  For a named consumer, the one before is consumed now, durably."""
        if self._closed:
            raise StopAsyncIteration
        if self._busy:
            raise RuntimeError(f"stream {self.stream!r} is already being read; one task at a time")
        self._busy = True
        try:
            positions = await self._begun()
            await self._acknowledge()
            while True:
                if not self._page:
                    await self._read(positions)
                while self._page:
                    event = self._next()
                    if event is not None:
                        return event
        finally:
            self._busy = False

    def _next(self) -> StreamEvent | None:
        stored = self._page.popleft()
        try:
            event = unpack_event(self._codec, self.stream, stored)
        except InvalidPayload as error:
            self.unreadable += 1
            log.warning("event passed over: %s", ascii(str(error))[1:-1])
            return None
        self._handed_out = stored
        return event

    async def _begun(self) -> dict[int, int]:
        if self._positions is None:
            ask = self._streams.positions if self._consumer is None else self._consumers.begin
            self._positions = dict(await self._patiently(lambda: ask(self.stream, self._after)))
        return self._positions

    async def _acknowledge(self) -> None:
        done = self._handed_out
        if done is not None and self._consumer is not None:
            await self._patiently(
                lambda: self._consumers.acknowledge(self.stream, done.partition, done.sequence)
            )
        self._handed_out = None

    async def _read(self, positions: dict[int, int]) -> None:
        page = await self._patiently(lambda: self._streams.read(self.stream, positions, PAGE_EVENTS, WAIT_S))
        self.gaps += len(page.trimmed)
        positions |= page.trimmed
        for stored in page.events:
            positions[stored.partition] = stored.sequence
        self._page.extend(page.events)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Every call made here may be made twice; what may pass by itself is tried again, for a while."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + GIVE_UP_S
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return await ask()
            except PASSING:
                if not self._is_open() or loop.time() + pause_s > give_up_at:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
