"""Connections without sockets: a pipe with faults, and a network of them.

Theory of operation.  A pipe has two ends, each a :class:`~farro.client.sockets.Socket`.  A frame that is sent
arrives after the pipe's delay, never before one that was sent earlier.  All of it happens on the loop, so
that it takes virtual time and the same program does the same every time.

A pipe can be *cut* (both ends learn of it at once: a killed process), or go *silent* in one direction (what
is sent is lost and nobody learns of it: a frozen machine, a lost packet filter).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohttp import WSMessage, WSMsgType

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.connection import Connection
from farro.client.dialing import greeted
from farro.client.errors import SiloUnavailable
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.session import CallTarget, Shared
from farro.silo.gateway.sessions import Sessions
from farro.silo.tasks import TaskOwner

UNREAD_BYTES_MAX = 1 << 20  # a sender waits while the other end has left more than this unread

Delay = Callable[[], float]


def at_once() -> float:
    """The delay of a pipe that has none."""
    return 0.0


class PipeEnd:
    """One end of a pipe; see :class:`~farro.client.sockets.Socket`."""

    def __init__(self, delay: Delay) -> None:
        self.other: PipeEnd = self
        self.silent = False  # what is sent from here is lost
        self.close_code: int | None = None
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[WSMessage] = deque()
        self._unread = 0
        self._under_way: deque[WSMessage] = deque()
        self._last_arrival = 0.0
        self._ended = False
        self._changed: asyncio.Event = asyncio.Event()

    # ---- a socket

    async def send_bytes(self, data: bytes, /) -> None:
        while not self._ended and self.other._unread > UNREAD_BYTES_MAX:
            self._changed.clear()
            await self._changed.wait()
        if self._ended:
            raise ConnectionResetError("the pipe has ended")
        if not self.silent:
            self._send(WSMessage(WSMsgType.BINARY, data, None), len(data))

    async def receive(self) -> WSMessage:
        while not self._inbox and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        if not self._inbox:
            return WSMessage(WSMsgType.CLOSED, None, None)
        message = self._inbox.popleft()
        if message.type is WSMsgType.BINARY:
            self._unread -= len(message.data)
            self.other._changed.set()
        elif message.type is WSMsgType.CLOSE:
            self._end(message.data)
        return message

    async def close(self, *, code: int = 1000, message: bytes = b"") -> bool:
        if self._ended:
            return False
        self._end(int(code))
        if not self.silent:
            self._send(WSMessage(WSMsgType.CLOSE, int(code), message.decode()), 0)
        return True

    # ---- inside

    def _send(self, message: WSMessage, size: int) -> None:
        self.other._unread += size
        self._last_arrival = max(self._last_arrival, self._loop.time() + self._delay())
        self._under_way.append(message)
        self._loop.call_at(self._last_arrival, self._bring)

    def _bring(self) -> None:
        """The next one arrives.  Not "this one": timers for one instant ring in any order."""
        self.other._arrive(self._under_way.popleft())

    def _arrive(self, message: WSMessage) -> None:
        if not self._ended:
            self._inbox.append(message)
            self._changed.set()

    def _end(self, code: int | None) -> None:
        self._ended = True
        self.close_code = code
        self._inbox.clear()
        self._changed.set()
        self.other._changed.set()

    def break_off(self, problem: Exception) -> None:
        if not self._ended:
            self._end(1006)
            self._inbox.append(WSMessage(WSMsgType.ERROR, problem, None))


class Pipe:
    """Two ends: ``near`` of who dialled, ``far`` of the other.  ``delay()``: seconds of the next frame."""

    def __init__(self, delay: Delay = at_once) -> None:
        self.near, self.far = PipeEnd(delay), PipeEnd(delay)
        self.near.other, self.far.other = self.far, self.near

    def cut(self) -> None:
        """Both ends learn at once that it broke; what was under way is lost.  Repeatable."""
        self.near.break_off(ConnectionResetError("the pipe was cut"))
        self.far.break_off(ConnectionResetError("the pipe was cut"))


class PipeGateway:
    """A gateway that is reached through a :class:`PipeNetwork` only; else as the one with a socket."""

    def __init__(
        self,
        network: PipeNetwork,
        listen: str,
        target: CallTarget,
        codec: Codec,
        *,
        options: GatewayOptions | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.address = listen
        self._network = network
        self._shared = Shared(target, codec, options or GatewayOptions(), dict(facts or {}))
        self._sessions: Sessions | None = None
        self._stopping = False

    @property
    def connections(self) -> int:
        return len(self._sessions or ())

    async def bind(self) -> None:
        self._network.gateways[f"http://{self.address}"] = self
        self._tasks = TaskOwner("pipes")

    async def start(self, silo: int | None = None) -> None:
        if self._network.gateways.get(f"http://{self.address}") is not self:
            await self.bind()
        self._know(silo)
        self._sessions = Sessions(self._shared)

    def on_news(self, tell: Callable[[int], None]) -> None:
        self._shared.on_news = tell

    def publish(self, cluster: ClusterMap, silo: int | None = None) -> None:
        self._know(silo)
        if self._sessions is not None:
            self._sessions.publish(cluster)
        else:
            self._shared.map = cluster

    def _know(self, silo: int | None) -> None:
        if silo is not None:
            self._shared.facts["silo"] = silo

    def accept(self, pipe: Pipe, peer: str) -> bool:
        """Serve the far end; False when nobody is served here (any more)."""
        if self._sessions is None or self._stopping:
            return False
        self._tasks.start(self._sessions.serve(pipe.far, peer, pipe.cut), f"session {peer}")
        return True

    async def stop(self, grace: float) -> None:
        if self._stopping:
            return
        self._stopping = True
        if self._network.gateways.get(f"http://{self.address}") is self:
            del self._network.gateways[f"http://{self.address}"]
            if self._sessions is not None:
                await self._sessions.stop(grace)
            await self._tasks.stop()


class PipeNetwork:
    """Who can be dialled, and every pipe that was made: ``(dialler, address, pipe)``.

    ``delay(dialler, address)`` is asked for each new pipe; ``refuses(dialler, address)`` says whom nobody can
    reach now.
    """

    def __init__(self, delay: Callable[[str, str], Delay] | None = None) -> None:
        self.gateways: dict[str, PipeGateway] = {}
        self.pipes: list[tuple[str, str, Pipe]] = []
        self.refuses: Callable[[str, str], bool] = lambda dialler, address: False
        self._delay: Callable[[str, str], Delay] = delay or _always_at_once

    async def dial(self, dialler: str, address: str, codec: Codec, info: dict[str, Any]) -> Connection:
        """A connection from ``dialler`` to ``http://HOST:PORT``; :class:`SiloUnavailable` as over sockets."""
        gateway = self.gateways.get(address)
        pipe = Pipe(self._delay(dialler, address))
        if gateway is None or self.refuses(dialler, address) or not gateway.accept(pipe, dialler):
            raise SiloUnavailable(f"no silo at {address}: Connection refused", turn_ran=False)
        self.pipes.append((dialler, address, pipe))
        try:
            return await greeted(pipe.near, address, codec, info)
        except OSError as error:
            raise SiloUnavailable(f"no silo at {address}: {error}", turn_ran=False) from error

    def cut(self, between: str, address: str) -> None:
        """Cut every pipe from that dialler to that address."""
        for dialler, dialled, pipe in self.pipes:
            if (dialler, dialled) == (between, address):
                pipe.cut()


def _always_at_once(dialler: str, address: str) -> Delay:
    return at_once
