"""What goes out on one connection: packed together, written a loop tick at a time.

Theory of operation.  Messages wait as they are until the writer comes, in the next tick, and become one frame
by one call of the packer.  What is packed is counted.  Nothing waits uncounted for long: while the writer is
held up by a slow peer, and when many messages come in one tick, they are packed at once.  The few messages
that keep a cluster together overtake the others at the next frame, so that a flood of calls does not hold
them up.

Whoever has nothing to send says from time to time that it is there.  The other side may be sending more
than its line carries in a heartbeat: its question for a sign of life would be stuck behind that, the answer
would come late, and it would give up a connection on which everything is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import ClientError

from farro.client.codec import Codec
from farro.client.errors import InvalidPayload
from farro.client.protocol import Message, frames, packed_message, packed_together

log = logging.getLogger("farro.wire")

_TOGETHER_MAX = 64  # messages that wait uncounted; more of them in one frame are hardly cheaper

_SIGN_EVERY = 0.5  # heartbeats between two looks: what was quiet for two of them is asked by the other side

Sign = Callable[[], Awaitable[None]]
Replace = Callable[[Message, InvalidPayload], Message | None]


def _nothing() -> None:
    """Where nobody wants to hear."""


class Outbox:
    """Sends messages by ``send``, which takes a frame.

    ``unfit`` says what goes out instead of a message that does not fit into a frame, if anything does.
    ``on_packed`` is called when :attr:`bytes` has grown, ``on_sending`` before all that was put so far is
    sent, ``on_sent`` after it.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        peer: str,
        codec: Codec,
        *,
        unfit: Replace,
        on_packed: Callable[[], None] = _nothing,
        on_sending: Callable[[], None] = _nothing,
        on_sent: Callable[[], None] = _nothing,
    ) -> None:
        self.bytes = 0  # packed and not sent yet
        self._send = send
        self._peer = peer
        self._codec = codec
        self._unfit = unfit
        self._on_packed = on_packed
        self._on_sending = on_sending
        self._on_sent = on_sent
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Message] = []
        self._frames: list[bytes] = []
        self._urgent: list[Message] = []
        self._sending = False
        self._closed = False
        self._wake: asyncio.Future[None] | None = None
        self._sign: Sign | None = None
        self._sign_s = 0.0
        self._sign_timer: asyncio.TimerHandle | None = None
        self._sign_due = False
        self._quiet = True  # since the last look of that timer
        self._sent: asyncio.Future[None] | None = None

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._frames and not self._urgent

    def put(self, message: Message) -> None:
        """Send it with what else this tick brings.  The values in it must not change any more."""
        if self._closed:
            return
        self._waiting.append(message)
        if self._wake is not None:
            self.wake_writer()
        if self._sending or len(self._waiting) >= _TOGETHER_MAX:
            self._pack()

    def put_first(self, message: Message) -> None:
        """Send it before everything that is not on its way yet.  For small messages, and few of them."""
        if not self._closed:
            self._urgent.append(message)
            self.wake_writer()

    def put_checked(self, message: Message) -> None:
        """:meth:`put` for a message nobody waits for: raises :class:`InvalidPayload` if it does not fit."""
        packed_message(self._codec, message)  # packed twice, to share the frame of the others
        self.put(message)

    def sign_when_quiet(self, sign: Sign, heartbeat_s: float) -> None:
        """Call ``sign``, which sends next to nothing, when nothing was sent for half a heartbeat.

        To be said before :meth:`write` begins.
        """
        self._sign, self._sign_s = sign, heartbeat_s * _SIGN_EVERY

    def wake_writer(self) -> None:
        wake, self._wake = self._wake, None
        release(wake)

    async def write(self) -> None:
        """Send what there is, all of it at a time, until :meth:`close`."""
        if self._sign is not None:
            self._look_later()
        try:
            await self._write()
        finally:
            if self._sign_timer is not None:
                self._sign_timer.cancel()

    def _look_later(self) -> None:
        self._sign_timer = self._loop.call_later(self._sign_s, self._look_if_quiet)

    def _look_if_quiet(self) -> None:
        self._sign_due = self._quiet and self._wake is not None
        self._quiet = True
        if self._sign_due:
            self.wake_writer()
        self._look_later()

    async def _write(self) -> None:
        while True:
            self._pack()
            if self._closed:
                return
            if not self._frames and not self._urgent and not self._sign_due:
                release(self._sent)
                self._wake = self._loop.create_future()
                await self._wake
                continue
            batch, self._frames = self._frames, []
            size = self.bytes
            self._sending = True
            self._quiet = self._quiet and not batch
            self._on_sending()
            try:
                if self._sign_due and self._sign is not None:
                    self._sign_due = False
                    await self._sign()
                for frame in batch:
                    if self._urgent:
                        await self._send_urgent()
                    await self._send(frame)
                if self._urgent:
                    await self._send_urgent()
            except (OSError, ClientError) as error:
                log.debug("writing to %s failed: %s", self._peer, error)
                self.close()  # who reads learns of the loss too, and says so to all who wait
                return
            self._sending = False
            self.bytes -= size
            release(self._sent)
            self._on_sent()

    async def wait_until_sent(self) -> None:
        """Until what is there now has been sent, or nothing will be any more."""
        if not self._closed:
            self._sent = self._loop.create_future()
            await self._sent

    def close(self) -> None:
        """Nothing is sent any more."""
        self._closed = True
        self._waiting.clear()
        self._frames.clear()
        self._urgent.clear()
        self.wake_writer()
        release(self._sent)

    async def _send_urgent(self) -> None:
        messages, self._urgent = self._urgent, []
        for frame in frames([packed_message(self._codec, each) for each in messages]):
            await self._send(frame)

    def _pack(self) -> None:
        if not self._waiting:
            return
        messages, self._waiting = self._waiting, []
        frame = packed_together(self._codec, messages)
        if frame is not None:
            self._add([frame])
        else:
            packed = [self._packed(each) for each in messages]
            self._add(frames([each for each in packed if each is not None]))

    def _packed(self, message: Message) -> bytes | None:
        try:
            return packed_message(self._codec, message)
        except InvalidPayload as problem:
            instead = self._unfit(message, problem)
            return None if instead is None else self._packed(instead)

    def _add(self, made: list[bytes]) -> None:
        self._frames += made
        self.bytes += sum(map(len, made))
        self._on_packed()


def release(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
