"""What a simulated silo has instead of sockets: frames over a wire, a gateway there, a way out."""

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
from farro.silo.cluster.death import KNOCK_S
from farro.silo.cluster.links import DIAL_TIMEOUT_S
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.session import CallTarget, Shared
from farro.silo.gateway.sessions import Sessions
from farro.silo.tasks import TaskOwner
from farro.silo.testing.simulated_network import CLOSED, End, Host, SimulatedNetwork

PULSE_S = 3.0
"""How often an end asks whether the other one still answers; one that twice does not is given up."""


class SimulatedSocket:
    """A :class:`~farro.client.sockets.Socket` on one end of a wire.  Made on the loop of its host."""

    def __init__(self, end: End[Any]) -> None:
        self.close_code: int | None = None
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[WSMessage] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._ended = False
        self._silent = False
        self._pulse = self._loop.call_later(PULSE_S, self._feel)
        end.receive(self._take)

    async def send_bytes(self, data: bytes, /) -> None:
        if self._ended:
            raise ConnectionResetError("the wire has ended")
        self._end.send(bytes(data))

    async def receive(self) -> WSMessage:
        while not self._inbox:
            if self._ended:
                return WSMessage(WSMsgType.CLOSED, None, None)
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._inbox.popleft()

    async def close(self, *, code: int = 1000, message: bytes = b"") -> bool:
        if self._ended:
            return False
        self._end.send((int(code), message.decode()))
        self._over(int(code))
        return True

    def abort(self) -> None:
        """End it without a word to whoever reads here."""
        self._broken("it was given up")

    def _take(self, message: Any) -> None:
        if self._ended:
            return
        if message is CLOSED:
            self._broken("the other end is gone")
        elif isinstance(message, bytes):
            self._inbox.append(WSMessage(WSMsgType.BINARY, message, None))
            self._wake()
        else:
            code, reason = message
            self._inbox.append(WSMessage(WSMsgType.CLOSE, code, reason))
            self._over(code)

    def _feel(self) -> None:
        """Instead of pings: whoever would not answer one is silent."""
        silent = self._end.is_silent
        if silent and self._silent:
            self._broken("the other end does not answer")
        else:
            self._silent = silent
            self._pulse = self._loop.call_later(PULSE_S, self._feel)

    def _broken(self, reason: str) -> None:
        if not self._ended:
            self._inbox.append(WSMessage(WSMsgType.ERROR, ConnectionResetError(reason), None))
            self._over(1006)

    def _over(self, code: int) -> None:
        self._ended = True
        self.close_code = code
        self._pulse.cancel()
        self._end.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class SimulatedGateway:
    """A gateway that is reached through a :class:`SimulatedNetwork` only."""

    def __init__(
        self,
        network: SimulatedNetwork,
        host: Host,
        target: CallTarget,
        codec: Codec,
        *,
        options: GatewayOptions | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self._network = network
        self._host = host
        self._shared = Shared(target, codec, options or GatewayOptions(), dict(facts or {}))
        self._sessions: Sessions | None = None
        self._early: list[End[Any]] = []  # who came before the start
        self._stopping = False

    @property
    def address(self) -> str:
        return self._host.address

    @property
    def connections(self) -> int:
        return len(self._sessions or ())

    async def bind(self) -> None:
        self._tasks = TaskOwner("wires")
        self._host.accept = self._accept
        self._network.listen(self._host)

    async def start(self, silo: int | None = None) -> None:
        self._know(silo)
        self._sessions = Sessions(self._shared)
        early, self._early = self._early, []
        for end in early:
            self._accept(end)

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

    def _accept(self, end: End[Any]) -> None:
        if self._stopping:
            end.close()
        elif self._sessions is None:
            self._early.append(end)
        else:
            socket = SimulatedSocket(end)
            self._tasks.start(self._sessions.serve(socket, end.peer, socket.abort), f"session {end.peer}")

    async def stop(self, grace: float) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._network.close(self._host)
        if self._sessions is not None:
            await self._sessions.stop(grace)
        await self._tasks.stop()


class WayOut:
    """How the process of ``host`` reaches others."""

    def __init__(self, network: SimulatedNetwork, host: Host) -> None:
        self._network = network
        self._host = host
        self.codec: Codec | None = None  # once the gateway is made

    async def dial(self, address: str, info: dict[str, Any]) -> Connection:
        """A connection to ``http://HOST:PORT``; :class:`SiloUnavailable` as over sockets."""
        assert self.codec is not None
        socket: SimulatedSocket | None = None
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                end = await self._open(address.removeprefix("http://"))
                if end is None:
                    raise SiloUnavailable(f"no silo at {address}: Connection refused", turn_ran=False)
                socket = SimulatedSocket(end)
                return await greeted(socket, address, self.codec, info)
        except BaseException as error:
            if socket is not None:
                await socket.close()
            if isinstance(error, (TimeoutError, OSError)) and not isinstance(error, SiloUnavailable):
                raise SiloUnavailable(f"no silo at {address}: {error}", turn_ran=False) from error
            raise

    async def refuses(self, address: str) -> bool:
        """Does that machine say that nobody listens at ``HOST:PORT``?"""
        try:
            async with asyncio.timeout(KNOCK_S):
                end = await self._open(address)
        except TimeoutError:
            return False
        if end is None:
            return True
        end.close()
        return False

    async def _open(self, address: str) -> End[Any] | None:
        opened: asyncio.Future[End[Any] | None] = asyncio.get_running_loop().create_future()

        def done(end: End[Any] | None) -> None:
            if not opened.done():
                opened.set_result(end)
            elif end is not None:
                end.close()

        self._network.connect(self._host, address, done)
        return await opened
