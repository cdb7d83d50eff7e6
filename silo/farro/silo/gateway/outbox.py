"""What goes out to one client: packed together, written a loop tick at a time.

Theory of operation.  Answers wait as messages until the writer comes, in the next tick, and become one frame
by one call of the packer.  What is packed is counted.  Nothing waits uncounted for long: while the writer is
held up by a slow client, and when many answers come in one tick, they are packed at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import ClientError, web

from farro.client.codec import Codec
from farro.client.errors import FarroError, InvalidPayload
from farro.client.protocol import (
    REPLY,
    Message,
    error_message,
    frames,
    packed_message,
    packed_together,
)

log = logging.getLogger("farro.gateway")

_TOGETHER_MAX = 64  # answers that wait uncounted; more of them in one frame are hardly cheaper
_ERROR_CHARACTERS_MAX = 16_384


class Outbox:
    """``unread_bytes_max`` bounds what waits: beyond it ``on_overflow`` is called."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        peer: str,
        codec: Codec,
        unread_bytes_max: int,
        on_overflow: Callable[[], None],
        on_empty: Callable[[], None],
    ) -> None:
        self.bytes = 0  # packed and not written yet
        self._socket = socket
        self._peer = peer
        self._codec = codec
        self._unread_bytes_max = unread_bytes_max
        self._on_overflow = on_overflow
        self._on_empty = on_empty
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Message] = []
        self._frames: list[bytes] = []
        self._writing = False
        self._closed = False
        self._wake: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._frames

    def put(self, message: Message) -> None:
        """Send it with what else this tick brings.  The values in it must not change any more."""
        if self._closed:
            return
        self._waiting.append(message)
        if self._wake is not None:
            self.wake_writer()
        if self._writing or len(self._waiting) >= _TOGETHER_MAX:
            self._pack()

    def wake_writer(self) -> None:
        wake, self._wake = self._wake, None
        release(wake)

    async def write(self) -> None:
        """Send what there is, all of it at a time, until :meth:`close`."""
        while not self._closed:
            if self._waiting:
                self._pack()
            if not self._frames:
                self._on_empty()
                self._wake = self._loop.create_future()
                await self._wake
                continue
            batch, self._frames = self._frames, []
            size = self.bytes
            self._writing = True
            try:
                for frame in batch:
                    await self._socket.send_bytes(frame)
            except (OSError, ClientError) as error:
                log.debug("writing to %s failed: %s", self._peer, error)
                return
            self._writing = False
            self.bytes -= size
            release(self._drained)

    async def wait_until_drained(self) -> None:
        self._drained = self._loop.create_future()
        await self._drained

    def close(self) -> None:
        """Nothing is sent any more."""
        self._closed = True
        self._waiting.clear()
        self._frames.clear()
        release(self._wake)
        release(self._drained)

    def _pack(self) -> None:
        messages, self._waiting = self._waiting, []
        frame = packed_together(self._codec, messages)
        made = [frame] if frame is not None else frames([self._packed(each) for each in messages])
        self._frames += made
        self.bytes += sum(map(len, made))
        if self.bytes > self._unread_bytes_max:
            self._on_overflow()

    def _packed(self, message: Message) -> bytes:
        """One answer by itself: where it does not fit, what tells the caller so."""
        try:
            return packed_message(self._codec, message)
        except InvalidPayload as problem:
            if message[0] == REPLY:
                problem.turn_ran = True
                return self._packed(sendable_error(message[1], problem))
            log.warning("an error for %s was sent without its details: %s", self._peer, problem)
            flags = {name: message[4][name] for name in ("turn_ran", "retry_safe")}
            return packed_message(self._codec, [*message[:4], flags])


def sendable_error(call_id: int, error: FarroError) -> Message:
    """The text of somebody's exception may be anything; the wire takes valid Unicode of a bounded length."""
    message = error_message(call_id, error)
    message[3] = message[3][:_ERROR_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
    return message


def release(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
