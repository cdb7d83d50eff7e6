"""One WebSocket to one silo: coalesced writes, pending replies, deadlines, room.

Theory of operation.  The calls of one loop tick go out together, by the outbox, whose writer task is the only
one that writes; a call that does not fit into a frame fails by itself.  The reader task resolves futures by
id.  One timer serves all deadlines: it is set for the first, and looks through the calls that are out when it
rings.  The call's future and its deadline are all that is kept of it.

When the connection ends, for whatever reason, everything that waits on it fails at once: calls that were
never handed to the socket with ``turn_ran=False``, the others with ``turn_ran=None``.

Clients use it, and silos among themselves: a *link* is a connection that forwards calls with the chain they
came with.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.errors import (
    CallTimeout,
    FarroError,
    InvalidPayload,
    Overloaded,
    ProtocolError,
    SiloUnavailable,
)
from farro.client.outbox import Outbox
from farro.client.protocol import (
    CALL,
    CANCEL,
    CLUSTER_VERSION,
    ERROR,
    GOAWAY,
    MAP,
    NEWS,
    REPLY,
    REQUEST_VERSION,
    Message,
    Welcome,
    check_map,
    check_news,
    error_of,
    goaway_reason,
    messages_of,
    reply_id,
)
from farro.client.queueing import Queue
from farro.client.requests import Request
from farro.client.sockets import Socket

log = logging.getLogger("farro.client")

OUTGOING_BYTES_MAX = 16 << 20
WAITING_CALLS_MAX = 100_000
_REST_S_PER_CALL = 5e-6  # between two looks at the deadlines; a look takes a twentieth of that per call
_FLUSH_ON_CLOSE_S = 1.0


Chain = list[tuple[str, str, str, bool]] | tuple[tuple[str, str, str, bool], ...]


class Connection:
    """A connection after its handshake.  :meth:`run` lives as long as it does.

    ``on_goaway``, ``on_map`` and ``on_news`` may be set before that: they are told when no more calls should
    be sent here, and what the silo says of the cluster.
    """

    def __init__(
        self, address: str, socket: Socket, codec: Codec, greeting: Welcome, early: Sequence[Message] = ()
    ) -> None:
        self.address = address
        self.version = greeting.version
        self.facts = greeting.facts
        self.draining = False
        self.late_replies = 0
        self.on_goaway: Callable[[Connection, str], None] = _not_asked
        self.on_map: Callable[[Connection, ClusterMap], None] = _not_asked
        self.on_news: Callable[[Connection, int], None] = _not_asked
        self._socket = socket
        self._early = early  # came in one frame with the welcome
        self._codec = codec
        self._calls_max = greeting.calls_max
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self._last_id = 0
        self._sent_through = 0  # ids up to here may have left
        self._written_through = 0  # ids up to here have left
        self._outbox = Outbox(
            socket.send_bytes,
            address,
            codec,
            unfit=self._refuse,
            on_sending=self._begin_sending,
            on_sent=self._end_sending,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf
        self._room = Queue(self._make_room)
        self._broken: str | None = None
        self._drained = False

    # ---- calls

    @property
    def silo(self) -> int:
        """The number of the silo at the other end; 0 when it does not say."""
        number = self.facts.get("silo")
        return number if type(number) is int else 0

    @property
    def pending(self) -> int:
        """Calls that wait for an answer."""
        return len(self._pending)

    @property
    def usable(self) -> bool:
        return self._broken is None and not self.draining

    @property
    def ended(self) -> bool:
        """Nothing is answered any more."""
        return self._broken is not None

    @property
    def full(self) -> bool:
        """No call may be sent now; wait in :meth:`wait_for_room`."""
        return (
            len(self._pending) >= self._calls_max
            or self._outbox.bytes > OUTGOING_BYTES_MAX
            or len(self._room.places) > 0
        )

    async def wait_for_room(self) -> None:
        """Until one more call may be sent, first come first served, or the connection is no longer usable."""
        if len(self._room.places) >= WAITING_CALLS_MAX:
            raise Overloaded(f"{WAITING_CALLS_MAX:,} calls already wait to be sent to {self.address}")
        await self._room.wait()

    def send_call(
        self,
        grain_type: str,
        key: str,
        method: str,
        args: list[Any],
        kwargs: dict[str, Any] | None,
        timeout_s: float,
        deadline: float,
        oneway: bool,
        chain: Chain = (),
        request: Request | None = None,
    ) -> tuple[int, asyncio.Future[Any] | None]:
        """Queue a call for this loop tick's frame.

        ``chain``: the calls that wait for this one.  ``request``: what makes it one, which only version 2
        carries (:class:`ProtocolError` otherwise).  ``deadline`` is ``timeout_s`` from now in loop time.
        Returns the call's id and the future of its wire result; for ``oneway`` there is none.  The future
        fails with the silo's error, with :class:`CallTimeout`, or with :class:`SiloUnavailable`.
        """
        if self._broken is not None:
            raise SiloUnavailable(self._broken, turn_ran=False)
        if request is not None and self.version < REQUEST_VERSION:
            raise ProtocolError(
                f"{self.address} speaks version {self.version} of the protocol, which carries no requests; "
                f"{grain_type}.{method} was not sent: upgrade that silo"
            )
        call_id = 0 if oneway else self._last_id + 1
        timeout_ms = int(timeout_s * 1000) or 1
        links = list(map(list, chain)) if chain else None
        message = [CALL, call_id, grain_type, key, method, args, kwargs, timeout_ms, links]
        if request is not None:
            message.append([request.id, request.again])
        if oneway:
            self._outbox.put_checked(message)
            return 0, None
        self._last_id = call_id
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[call_id] = future, deadline
        if deadline < self._due_at:
            self._arm(deadline)
        self._outbox.put(message)
        return call_id, future

    def cancel_call(self, call_id: int) -> None:
        """Nobody waits for this call any more; the silo is told."""
        if self._pending.pop(call_id, None) is not None and self._broken is None:
            self._put_cancel(call_id)
            self._make_room()
            self._end_if_drained()

    def ask_to_cancel(self, call_id: int) -> None:
        """Tell the silo that nobody wants this call any more, and go on waiting for what it answers."""
        if call_id in self._pending and self._broken is None:
            self._put_cancel(call_id)

    def _put_cancel(self, call_id: int) -> None:
        if call_id <= self._written_through:
            self._outbox.put_first([CANCEL, call_id])
        else:
            self._outbox.put([CANCEL, call_id])  # it must not overtake its call

    def tell_news(self, view: int) -> None:
        """Tell a peer that there is a newer view of the cluster.  Goes before all calls."""
        if self._broken is None and self.version >= CLUSTER_VERSION:
            self._outbox.put_first([NEWS, view])

    # ---- life

    async def run(self) -> str:
        """Read and write until the connection ends; returns why.  Nothing is pending afterwards."""
        writer = self._loop.create_task(self._write(), name=f"farro writer {self.address}")
        reason = "the connection was closed"
        try:
            reason = await self._read()
        finally:
            writer.cancel()
            self._fail_all(reason)
            await asyncio.wait({writer})
            await self._socket.close()
        return reason

    def abandon(self, reason: str) -> None:
        """Everything that waits fails now.  Who runs the connection is to cancel :meth:`run`."""
        self._fail_all(reason)

    async def close(self) -> None:
        """Close what never ran."""
        await self._socket.close()

    async def finish_writing(self) -> None:
        """Wait, for a second at most, until what was queued has been handed to the socket."""
        if not self._outbox.empty:
            try:
                async with asyncio.timeout(_FLUSH_ON_CLOSE_S):
                    await self._outbox.wait_until_sent()
            except TimeoutError:
                log.debug("%s does not read; what is queued for it is dropped", self.address)

    async def _write(self) -> None:
        """Write until nothing more will be sent; one that has drained then says so to the silo."""
        await self._outbox.write()
        if self._drained:
            await self._socket.close()

    async def _read(self) -> str:
        try:
            self._take(self._early)
            return await self._read_frames()
        except (ProtocolError, InvalidPayload) as error:
            log.warning("%s broke the protocol: %s", self.address, error)
            await self._socket.close(code=aiohttp.WSCloseCode.PROTOCOL_ERROR)
            return f"{self.address} broke the protocol: {error}"

    async def _read_frames(self) -> str:
        receive, codec = self._socket.receive, self._codec
        while True:
            message = await receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                self._take(messages_of(codec, message.data))
            elif message.type is aiohttp.WSMsgType.ERROR:
                return f"the connection to {self.address} was lost: {message.data}"
            elif message.type is aiohttp.WSMsgType.TEXT:
                await self._socket.close(code=aiohttp.WSCloseCode.UNSUPPORTED_DATA)
                return f"{self.address} sent text; is it a farro silo?"
            else:
                code = self._socket.close_code
                extra = f": {message.extra}" if message.extra else ""
                return f"{self.address} closed the connection (code {code}{extra})"

    def _take(self, messages: Sequence[Message]) -> None:
        pending = self._pending
        for message in messages:
            kind = message[0]
            if kind == REPLY and len(message) == 3 and type(message[1]) is int:
                found = pending.pop(message[1], None)
                if found is None or found[0].done():
                    self._late(message[1])
                else:
                    found[0].set_result(message[2])
            elif kind in (REPLY, ERROR):
                call_id = reply_id(message)
                error = error_of(message)
                found = pending.pop(call_id, None)
                if found is None or found[0].done():
                    self._late(call_id)
                else:
                    found[0].set_exception(error)
            elif kind == GOAWAY:
                self.drain(goaway_reason(message))
            elif kind == MAP and self.version >= CLUSTER_VERSION:
                self.on_map(self, check_map(message))
            elif kind == NEWS and self.version >= CLUSTER_VERSION:
                self.on_news(self, check_news(message))
            else:
                raise ProtocolError(f"a silo does not send messages of kind {kind}")
        if self._room.places:
            self._make_room()
        if self.draining:
            self._end_if_drained()
        self._outbox.wake_writer()  # behind the callers just answered: what they ask next goes out this tick

    def _late(self, call_id: int) -> None:
        if not 0 < call_id <= self._last_id:
            raise ProtocolError(f"an answer to call {call_id}, which was never made")
        self.late_replies += 1

    def _fail_all(self, reason: str) -> None:
        """Everything that waits fails now; there is nobody left who could answer."""
        if self._broken is not None:
            return
        self._broken = reason
        self.drain(reason)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for call_id, (future, _) in pending.items():
            if not future.done():
                turn_ran = None if call_id <= self._sent_through else False
                future.set_exception(SiloUnavailable(reason, turn_ran=turn_ran))
        self._outbox.close()
        self._room.admit(WAITING_CALLS_MAX)

    def drain(self, reason: str) -> None:
        """The silo takes no more calls: those that are out go on, those that wait for room look elsewhere."""
        if not self.draining:
            self.draining = True
            self._room.admit(WAITING_CALLS_MAX)
            self.on_goaway(self, reason)
            self._end_if_drained()

    def _end_if_drained(self) -> None:
        """Go, now that all is answered.  The silo waits for it: breaking off itself, it might miss a call."""
        if self.draining and not self._pending and self._outbox.empty:
            self._drained = self._broken is None
            self._fail_all(f"{self.address} takes no more calls")

    def _make_room(self) -> None:
        if self._outbox.bytes <= OUTGOING_BYTES_MAX:
            self._room.admit(self._calls_max - len(self._pending))

    # ---- writing

    def _begin_sending(self) -> None:
        self._sent_through = self._last_id

    def _end_sending(self) -> None:
        self._written_through = self._sent_through
        self._end_if_drained()
        if self._room.places:
            self._make_room()

    def _refuse(self, message: Message, problem: InvalidPayload) -> None:
        """A call that does not fit into a frame fails; nothing goes out instead."""
        found = self._pending.pop(message[1], None)
        if found is not None and not found[0].done():
            found[0].set_exception(problem)
        self._make_room()

    # ---- deadlines

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._due_at = math.inf
        now = self._loop.time()
        pending = self._pending
        for call_id in [each for each, (_, deadline) in pending.items() if deadline <= now]:
            future, _ = pending.pop(call_id)
            if not future.done():
                turn_ran = None if call_id <= self._sent_through else False
                future.set_exception(_timed_out(self.address, turn_ran))
        if pending:
            first = min([deadline for _, deadline in pending.values()])
            self._arm(max(first, now + _REST_S_PER_CALL * len(pending)))
        self._make_room()
        self._end_if_drained()


def _not_asked(connection: Connection, what: object) -> None:
    """Where nobody wants to hear."""


def _timed_out(address: str, turn_ran: bool | None) -> FarroError:
    if turn_ran is None:
        return CallTimeout(
            f"no answer from {address} before the deadline; the turn may have run or still run"
        )
    return CallTimeout(f"the call could not be sent to {address} before its deadline", turn_ran=False)
