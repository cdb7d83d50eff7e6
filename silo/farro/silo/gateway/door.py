"""Who has connected but said nothing yet: a connection must ask for something soon, and few may wait.

The HTTP server behind it times what comes after a request, but not the wait for the first one.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from farro.silo.gateway.limits import GatewayOptions

log = logging.getLogger("farro.gateway")

_YOUNG_S = 1.0  # a new protocol is not among the connections until the loop has come round


class Door:
    """The protocol factory of the listening socket."""

    def __init__(self, server: web.Server, options: GatewayOptions) -> None:
        self._server = server
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._silent: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        """A protocol for a new connection; one that closes at once if ``connections_max`` are silent."""
        if len(self._silent) >= self._options.connections_max:
            self._forget_the_gone()
        if len(self._silent) >= self._options.connections_max:
            log.debug("refused a connection: %d others have not asked for anything yet", len(self._silent))
            return _Refused()
        protocol = self._server()
        self._silent[protocol] = self._loop.call_later(self._options.handshake_s, self._expire, protocol)
        return protocol

    def spoke(self, protocol: asyncio.BaseProtocol) -> None:
        """A whole request has come in on the connection."""
        timer = self._silent.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()

    def _expire(self, protocol: web.RequestHandler) -> None:
        del self._silent[protocol]
        if protocol.transport is not None:
            log.debug("closed a connection that asked for nothing in %g s", self._options.handshake_s)
            protocol.transport.abort()

    def _forget_the_gone(self) -> None:
        connected = set(self._server.connections)
        young = self._loop.time() + self._options.handshake_s - _YOUNG_S
        for protocol, timer in list(self._silent.items()):
            if protocol not in connected and timer.when() < young:
                self.spoke(protocol)


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
