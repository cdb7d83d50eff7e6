"""The listening socket of a silo: HTTP in, WebSocket sessions, health; bind, start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.protocol import FRAME_BYTES_MAX, PATH
from farro.silo.gateway.address import ListenAddress, host_allowed
from farro.silo.gateway.http_log import server_logger
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.session import CallTarget, Shared
from farro.silo.gateway.sessions import CLOSE_S, Sessions

log = logging.getLogger("farro.gateway")

_BACKLOG = 128  # connections that the system keeps until they are accepted
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """Lets clients and peers call a silo.

    ``listen`` is ``HOST:PORT`` (port 0: the system chooses; :attr:`address` tells).  ``facts`` go into the
    welcome and ``/health``: plain values, of which ``silo`` and ``service`` must be what a peer meant.
    :meth:`bind` takes the port before the silo has written anything to its store; who comes before
    :meth:`start` waits for it.
    """

    def __init__(
        self,
        listen: str,
        target: CallTarget,
        codec: Codec,
        *,
        options: GatewayOptions | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self._options = options or GatewayOptions()
        self._options.validate()
        self._listen = ListenAddress.parse(listen)
        self._listen.check_allowed(self._options.allow_insecure_bind)
        self._shared = Shared(target, codec, self._options, dict(facts or {}))
        codec.pack(self._shared.facts, "facts")  # what does not fit is said here, not in every welcome
        self._sessions: Sessions | None = None
        self._address: ListenAddress | None = None
        self._stopping = False

    @property
    def address(self) -> str:
        """``HOST:PORT`` as bound.  ``RuntimeError`` before that."""
        if self._address is None:
            raise RuntimeError("the gateway has not been bound")
        return str(self._address)

    @property
    def connections(self) -> int:
        return len(self._sessions or ())

    async def bind(self) -> None:
        """Listen, but serve nobody yet.  Raises :class:`CannotListen`, naming address and port.

        It listens in earnest: a port that is only bound shows to nobody else that it is taken.
        """
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(PATH, self._connect)
        app.router.add_get("/health", self._health)
        self._decided = asyncio.Event()  # it serves, or never will
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=server_logger(),
            handle_signals=False,
            shutdown_timeout=CLOSE_S,
            keepalive_timeout=self._options.handshake_s,  # also for the first request
        )
        await self._runner.setup()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._accept, self._listen.host, self._listen.port, reuse_address=True, backlog=_BACKLOG
            )
        except OSError as error:
            await self._runner.cleanup()
            raise self._listen.refused(error) from error
        self._address = ListenAddress(*self._server.sockets[0].getsockname()[:2])

    async def start(self, silo: int | None = None) -> None:
        """Serve from now on, as silo number ``silo`` if there is one; binds first, if that was not done."""
        if self._address is None:
            await self.bind()
        self._know(silo)
        self._sessions = Sessions(self._shared)
        self._decided.set()

    def on_news(self, tell: Callable[[int], None]) -> None:
        """Be told the number of the view that a peer has heard of."""
        self._shared.on_news = tell

    def publish(self, cluster: ClusterMap, silo: int | None = None) -> None:
        """Tell clients, those to come as well, what the cluster looks like now; a peer hears that it changed.

        ``silo``: this silo's number, from now on in every welcome.  Any time, and repeatable; a view older
        than the last one is not told.
        """
        self._know(silo)
        if self._sessions is not None:
            self._sessions.publish(cluster)
        else:
            self._shared.map = cluster

    def _know(self, silo: int | None) -> None:
        if silo is not None:
            self._shared.facts["silo"] = silo

    async def stop(self, grace: float) -> None:
        """Stop listening, tell clients to go, answer what is in flight for ``grace`` seconds, close (1001).

        Until then everybody is served, however much the silo drains.  Repeatable.
        """
        if self._address is None or self._stopping:
            return
        self._stopping = True
        self._decided.set()
        self._server.close()
        if self._sessions is not None:
            await self._sessions.stop(grace)
        await self._runner.cleanup()

    # ---- requests

    def _accept(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection.  Those without a session have a bound of their own, so that
        ``/health`` answers when ``connections_max`` clients are there."""
        server = self._runner.server
        if server is None or len(server.connections) - self.connections >= self._options.connections_max:
            log.debug("refused a connection: too many others have not become clients")
            return _Refused()
        return server()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Host on everything; nobody's web page gets further."""
        if not host_allowed(request.headers.get("Host", ""), self._listen, self._options.allowed_hosts):
            raise web.HTTPForbidden(text="this Host is not served here; see allowed_hosts\n")
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        serving = self._sessions is not None and not self._stopping
        status = "ok" if serving else "stopping" if self._stopping else "starting"
        return web.json_response(
            {"status": status, "connections": self.connections, **self._shared.facts},
            status=200 if serving else 503,
        )

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._options.allowed_origins:
            raise web.HTTPForbidden(text="this Origin may not connect; see allowed_origins\n")
        sessions = await self._serving()
        transport = request.transport
        if transport is None:
            raise web.HTTPServiceUnavailable(text="gone again\n")
        socket = web.WebSocketResponse(
            max_msg_size=FRAME_BYTES_MAX + 1,
            heartbeat=self._options.heartbeat_s,
            compress=False,
            timeout=CLOSE_S,
        )
        try:
            await socket.prepare(request)
        except ConnectionResetError:
            log.debug("%s went during the handshake", request.remote)
            return web.Response()  # which nobody reads; the socket cannot be answered with
        await sessions.serve(socket, request.remote or "somebody", transport.abort, socket.pong)
        return socket

    async def _serving(self) -> Sessions:
        """The sessions, once there are any; 503 when there are too many, or none in the handshake's time."""
        try:
            async with asyncio.timeout(self._options.handshake_s):
                await self._decided.wait()
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text="starting\n") from None
        sessions = self._sessions
        if self._stopping or sessions is None or len(sessions) >= self._options.connections_max:
            raise web.HTTPServiceUnavailable(text="stopping, or no connection free\n")
        return sessions


class _Refused(asyncio.Protocol):
    """Closes the connection it is given."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
