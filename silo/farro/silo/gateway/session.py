"""One client's or peer's connection, seen from the silo: calls in, answers out.

Theory of operation.  The handler coroutine reads; every call of a frame is given to the target at once,
without a task, and its ``respond`` puts the answer into the outbox, so that all answers of one loop tick
share a frame.  A client that does not read its answers is not read from, and let go when the answers to
what it has asked already pass a bound.  When the client is gone, the calls it made go on: nobody listens to
the answers, nothing is cancelled.

A *peer* is another silo, which forwards calls.  Those are not forwarded again (the target sees it by
``Invocation.forwarded``), and a peer is sent news of the cluster where a client is sent the map.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from aiohttp import WSCloseCode, WSMsgType

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.errors import (
    FarroError,
    InvalidGrainId,
    InvalidPayload,
    Overloaded,
    ProtocolError,
    SiloStopping,
)
from farro.client.outbox import Outbox, Sign, release
from farro.client.protocol import (
    CALL,
    CANCEL,
    CLUSTER_VERSION,
    ERROR,
    GOAWAY,
    NEWS,
    REPLY,
    REQUEST_VERSION,
    Hello,
    Message,
    bad_target,
    check_call,
    check_cancel,
    check_hello,
    check_news,
    map_message,
    messages_of,
    request_of,
    welcome,
)
from farro.client.requests import Request
from farro.client.sockets import Socket
from farro.silo.activations.invocation import Invocation
from farro.silo.gateway.answers import as_farro_error, sendable_error
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.placement import PARTITION_TYPE

log = logging.getLogger("farro.gateway")

CALLS_A_TICK = 32  # taken from one client; half of that costs a tenth more, twice that leaves a core idle


class CallTarget(Protocol):
    """The silo's core, as the gateway sees it."""

    def submit(self, call: Invocation) -> None:
        """Take a call.  Its ``respond`` is called exactly once, possibly before this returns."""
        ...


def _not_asked(view: int) -> None:
    """Where nobody wants to hear."""


@dataclass(slots=True)
class Shared:
    """What all sessions of a gateway have in common.

    ``facts`` go into the welcome; ``silo`` and ``service`` of them are what a peer must have meant.
    ``on_news(view)``: a peer has heard of that view of the cluster.
    """

    target: CallTarget
    codec: Codec
    options: GatewayOptions
    facts: dict[str, Any]
    on_news: Callable[[int], None] = _not_asked
    map: ClusterMap | None = None


class Session:
    """See the head of the file."""

    def __init__(
        self,
        socket: Socket,
        peer: str,
        shared: Shared,
        abort: Callable[[], None],
        sign: Sign | None = None,
    ) -> None:
        self.peer = peer
        self._socket = socket
        self._shared = shared
        self._target = shared.target
        self._codec = shared.codec
        self._options = shared.options
        self._hello: Hello | None = None
        self._from_peer = False
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[int, Invocation] = {}
        self._in_flight_bytes = 0
        self._taken_this_tick = 0
        self._oneway_id = 0
        self._outbox = Outbox(
            socket.send_bytes,
            peer,
            shared.codec,
            unfit=self._instead_of,
            on_packed=self._check_unread,
            on_sent=self._settle,
        )
        if sign is not None:
            self._outbox.sign_when_quiet(sign, shared.options.heartbeat_s)
        self._quiet: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._stopping = False
        self._gone = False

    # ---- life

    async def read(self) -> None:
        """Serve the client until it goes, breaks the rules, or is told to go."""
        try:
            await self._greet()
            while True:
                message = await self._socket.receive()
                if message.type is WSMsgType.BINARY:
                    await self._take(message.data)
                elif message.type is WSMsgType.TEXT:
                    await self._refuse(
                        WSCloseCode.UNSUPPORTED_DATA, "text frames are not part of the protocol"
                    )
                    return
                else:
                    self._say_why_it_ended(message)
                    return
        except ProtocolError as error:
            await self._refuse(WSCloseCode.PROTOCOL_ERROR, str(error))
        except InvalidPayload as error:
            await self._refuse(WSCloseCode.INVALID_TEXT, str(error))
        finally:
            self._gone = True
            self._outbox.close()
            release(self._quiet)
            self._ended.set()

    async def write(self) -> None:
        """Send the answers, until the client is gone."""
        await self._outbox.write()

    def go_away(self, reason: str) -> None:
        """Take no more calls; those in flight are still answered."""
        self._stopping = True
        if self._hello is not None:
            self._outbox.put([GOAWAY, reason])

    def publish(self, cluster: ClusterMap) -> None:
        """Tell what the cluster looks like now, if the other side understands."""
        if self._hello is None or self._hello.version < CLUSTER_VERSION:
            return
        if self._hello.silo:
            self._outbox.put_first([NEWS, cluster.view])
        else:
            self._outbox.put(map_message(cluster))  # in its place, and so counted with what is unread

    async def wait_until_quiet(self) -> None:
        """Until every call is answered and every answer written, or the client is gone."""
        while not self._gone and (self._in_flight or not self._outbox.empty):
            self._quiet = self._loop.create_future()
            await self._quiet

    async def wait_until_gone(self) -> None:
        """Until the other side has closed, as one does that speaks version 2 and was told to go.

        It may have sent calls before it was told: who breaks off first leaves it in doubt about them.
        """
        if self._hello is not None and self._hello.version >= CLUSTER_VERSION:
            await self._ended.wait()

    async def close(self, code: WSCloseCode, reason: str) -> None:
        await self._socket.close(code=code, message=reason.encode()[:120])

    # ---- reading

    async def _greet(self) -> None:
        try:
            async with asyncio.timeout(self._options.handshake_s):
                message = await self._socket.receive()
        except TimeoutError:
            raise ProtocolError(f"no hello within {self._options.handshake_s:g} s") from None
        if message.type is WSMsgType.TEXT:
            raise ProtocolError("text frames are not part of the protocol")
        if message.type is not WSMsgType.BINARY:
            return  # gone again; the next receive says how
        batch = messages_of(self._codec, message.data)
        hello = check_hello(batch[0])
        self._check_meant(hello)
        self._hello = hello
        self._from_peer = hello.silo > 0
        greeting = {**self._shared.facts, "calls_max": self._options.calls_announced}
        self._outbox.put(welcome(hello.version, greeting))
        if self._shared.map is not None and not hello.silo:
            self.publish(self._shared.map)
        if self._stopping:
            self.go_away("the silo is stopping")
        self._take_batch(batch[1:], len(message.data) // len(batch))

    def _check_meant(self, hello: Hello) -> None:
        """Another service's silo, or this one itself, has got hold of a wrong address."""
        facts = self._shared.facts
        if hello.silo and hello.service != facts.get("service"):
            raise ProtocolError(
                f"silo {hello.silo} of service {hello.service[:80]!r} called service {facts.get('service')!r}"
            )
        if hello.silo and hello.silo == facts.get("silo"):
            raise ProtocolError(f"silo {hello.silo} called itself, or another silo goes by its number")

    async def _take(self, frame: bytes) -> None:
        """A long frame is taken in parts: the client works on the first answers while the rest runs.

        Without that, client and silo wait for each other in turns, and use one core between them.
        """
        batch = messages_of(self._codec, frame)
        share = len(frame) // len(batch)
        for start in range(0, len(batch), CALLS_A_TICK):
            part = batch[start : start + CALLS_A_TICK]
            if self._taken_this_tick >= CALLS_A_TICK:
                await asyncio.sleep(0)
                self._taken_this_tick = 0
            self._taken_this_tick += len(part)
            self._take_batch(part, share)
            self._outbox.wake_writer()  # in line behind the turns just begun: their answers go out this tick
            if not self._gone and self._outbox.bytes > self._options.outgoing_bytes_max:
                await self._outbox.wait_until_sent()

    def _take_batch(self, batch: list[Message], share: int) -> None:
        now = self._loop.time()
        for message in batch:
            if self._gone:
                return
            if message[0] == CALL:
                check_call(message)
                self._call(message, share, now)
            elif message[0] == CANCEL:
                found = self._in_flight.get(check_cancel(message))
                if found is not None:
                    found.cancel()
            elif message[0] == NEWS and self._from_peer:
                self._shared.on_news(check_news(message))
            else:
                raise ProtocolError(f"a client does not send messages of kind {message[0]}")

    def _call(self, message: Message, share: int, now: float) -> None:
        request: Request | None = None
        if len(message) > 9:
            assert self._hello is not None
            if self._hello.version < REQUEST_VERSION:
                raise ProtocolError(f"version {self._hello.version} of the protocol carries no requests")
            request = request_of(message)
        _, call_id, grain_type, key, method, args, kwargs, timeout_ms, chain = message
        in_flight = self._in_flight
        if call_id == 0:
            self._oneway_id -= 1
            call_id = self._oneway_id
        elif call_id in in_flight:
            raise ProtocolError(f"call {call_id} is already in flight on this connection")
        options = self._options
        full = (
            len(in_flight) >= options.calls_in_flight_max
            or self._in_flight_bytes > options.in_flight_bytes_max
        )
        problem = bad_target(grain_type, key, method)
        if grain_type == PARTITION_TYPE and not self._from_peer:
            problem = f"grain type {PARTITION_TYPE!r} is for the silos of a cluster alone"
        if full or self._stopping or problem is not None:
            if call_id > 0:
                self._outbox.put(sendable_error(call_id, self._refusal(full, problem)))
            return
        call = Invocation(
            grain_type,
            key,
            method,
            args,
            kwargs,
            now + timeout_ms / 1000,
            () if chain is None else tuple(map(tuple, chain)),
            partial(self._respond, call_id, share),
        )
        call.request = request
        if self._from_peer:
            call.forwarded, call.external = True, False
        in_flight[call_id] = call
        self._in_flight_bytes += share
        try:
            self._target.submit(call)
        except Exception as error:  # the target's answer to a call it cannot take; the others go on
            if call_id in in_flight:
                self._respond(call_id, share, None, as_farro_error(error, call))

    def _refusal(self, full: bool, problem: str | None) -> FarroError:
        if self._stopping:
            return SiloStopping("the silo is stopping and takes no new calls")
        if full or problem is None:
            return Overloaded("too many calls in flight on this connection")
        return InvalidGrainId(problem)

    # ---- answering

    def _respond(self, call_id: int, share: int, wire: Any, error: FarroError | None) -> None:
        del self._in_flight[call_id]
        self._in_flight_bytes -= share
        if self._gone or call_id < 0:
            self._settle()
        elif error is None:
            self._outbox.put([REPLY, call_id, wire])
        else:
            self._outbox.put(sendable_error(call_id, error))

    def _instead_of(self, message: Message, problem: InvalidPayload) -> Message:
        """An answer that does not fit into a frame: what tells the caller so."""
        if message[0] == REPLY:
            problem.turn_ran = True
            return sendable_error(message[1], problem)
        if message[0] == ERROR:
            log.warning("an error for %s was sent without its details: %s", self.peer, problem)
            return [*message[:4], {name: message[4][name] for name in ("turn_ran", "retry_safe")}]
        raise problem

    def _check_unread(self) -> None:
        """Drop what the client does not read.  A close frame would wait behind it, so there is none."""
        if self._gone or self._outbox.bytes <= self._options.unread_bytes_max:
            return
        log.warning(
            "let %s go: it left more than %d bytes of answers unread",
            self.peer,
            self._options.unread_bytes_max,
        )
        self._gone = True
        self._outbox.close()
        self._abort()
        release(self._quiet)

    def _settle(self) -> None:
        if self._quiet is not None and not self._in_flight and self._outbox.empty:
            release(self._quiet)

    # ---- ending

    async def _refuse(self, code: WSCloseCode, reason: str) -> None:
        log.warning("closed the connection of %s (%d): %s", self.peer, code, ascii(reason)[1:-1])
        await self.close(code, reason)

    def _say_why_it_ended(self, message: Any) -> None:
        code = self._socket.close_code
        if message.type is WSMsgType.ERROR:
            log.warning("lost the connection of %s (%s): %s", self.peer, code, ascii(str(message.data))[1:-1])
        else:
            log.debug("%s went (code %s)", self.peer, code)
