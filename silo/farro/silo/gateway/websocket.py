"""The listening socket of a silo: HTTP in, WebSocket sessions, health; start and stop."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import WSCloseCode, web

from farro.client.codec import Codec
from farro.client.protocol import FRAME_BYTES_MAX, PATH
from farro.silo.gateway.address import CannotListen, ListenAddress, host_allowed
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.session import CallTarget, Session
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.gateway")

_BACKLOG = 128  # connections that the system keeps until they are accepted
_CLOSE_S = 1.0  # how long a client may take to answer our close
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """Lets clients call ``target``.

    ``listen`` is ``HOST:PORT`` (port 0: the system chooses; :attr:`address` tells).  ``facts`` go into the
    welcome and ``/health``: plain values such as the silo's name.
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
        self._target = target
        self._codec = codec
        self._facts = facts or {}
        codec.pack(self._facts, "facts")  # what does not fit is said here, not in every welcome
        self._sessions: set[Session] = set()
        self._address: ListenAddress | None = None
        self._stopping = False

    @property
    def address(self) -> str:
        """``HOST:PORT`` as bound.  ``RuntimeError`` before the start."""
        if self._address is None:
            raise RuntimeError("the gateway has not been started")
        return str(self._address)

    @property
    def connections(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Bind and listen.  Raises :class:`CannotListen`, naming address and port."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(PATH, self._connect)
        app.router.add_get("/health", self._health)
        self._tasks = TaskOwner("gateway")
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_CLOSE_S,
            keepalive_timeout=self._options.handshake_s,  # also for the first request
        )
        await self._runner.setup()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._accept, self._listen.host, self._listen.port, reuse_address=True, backlog=_BACKLOG
            )
        except OSError as error:
            await self._runner.cleanup()
            raise CannotListen(_bind_problem(self._listen, error)) from error
        self._address = ListenAddress(*self._server.sockets[0].getsockname()[:2])

    async def stop(self, grace: float) -> None:
        """Stop listening, tell clients to go, answer what is in flight for ``grace`` seconds, close (1001).

        Repeatable.
        """
        if self._address is None or self._stopping:
            return
        self._stopping = True
        self._server.close()
        sessions = list(self._sessions)
        for session in sessions:
            session.go_away("the silo is stopping")
        try:
            async with asyncio.timeout(grace):
                for session in sessions:
                    await session.wait_until_quiet()
        except TimeoutError:
            log.warning("the gateway stopped with calls in flight after %g s of grace", grace)
        for session in self._sessions:
            self._tasks.start(session.close(WSCloseCode.GOING_AWAY, "the silo has stopped"), "close")
        await self._tasks.wait(2 * _CLOSE_S)
        await self._tasks.stop()
        await self._runner.cleanup()

    # ---- requests

    def _accept(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection.  Those without a session have a bound of their own, so that
        ``/health`` answers when ``connections_max`` clients are there."""
        server = self._runner.server
        if server is None or len(server.connections) - len(self._sessions) >= self._options.connections_max:
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
        status = "stopping" if self._stopping else "ok"
        return web.json_response(
            {"status": status, "connections": len(self._sessions), **self._facts},
            status=503 if self._stopping else 200,
        )

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._options.allowed_origins:
            raise web.HTTPForbidden(text="this Origin may not connect; see allowed_origins\n")
        if self._stopping or len(self._sessions) >= self._options.connections_max:
            raise web.HTTPServiceUnavailable(text="stopping, or no connection free\n")
        transport = request.transport
        if transport is None:
            raise web.HTTPServiceUnavailable(text="gone again\n")
        socket = web.WebSocketResponse(
            max_msg_size=FRAME_BYTES_MAX + 1,
            heartbeat=self._options.heartbeat_s,
            compress=False,
            timeout=_CLOSE_S,
        )
        await socket.prepare(request)
        greeting = {**self._facts, "calls_max": self._options.calls_announced}
        session = Session(
            socket,
            request.remote or "somebody",
            self._target,
            self._codec,
            self._options,
            greeting,
            transport.abort,
        )
        self._sessions.add(session)
        writer = self._tasks.start(session.write(), f"writer {session.peer}")
        try:
            await session.read()
        finally:
            self._sessions.discard(session)
            writer.cancel()
        return socket


class _Refused(asyncio.Protocol):
    """Closes the connection it is given."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _bind_problem(listen: ListenAddress, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{listen} is already in use by another process; stop it, or listen on another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{listen} is not an address of this machine"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{listen} may not be used by this user; choose a port above 1023"
    return f"cannot listen on {listen}: {error.strerror or error}"
