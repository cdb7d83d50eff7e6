"""Opening a connection: the address, the WebSocket, the handshake; one clear error for each way to fail."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from farro.client.codec import Codec
from farro.client.connection import Connection
from farro.client.errors import FarroError, ProtocolError, SiloUnavailable
from farro.client.protocol import (
    FRAME_BYTES_MAX,
    PATH,
    check_welcome,
    frames,
    hello,
    messages_of,
    packed_message,
)
from farro.client.sockets import Socket

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
CLIENT_INFO = {"client": "farro-python"}
_CLOSE_S = 1.0  # how long a peer may take to answer our close; a frozen one never does


def gateway_url(url: str) -> str:
    """The address of a gateway in one form, ``http://HOST:PORT``.

    Raises ``ValueError`` for what is none: another scheme, a path, a password, no port.
    """
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.username or parts.password:
        raise ValueError("a gateway address takes no user or password; write http://HOST:PORT")
    if parts.scheme not in _SCHEMES or not parts.hostname or not port or parts.path.strip("/") or parts.query:
        raise ValueError(f"{url!r} is not the address of a gateway; write http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{_SCHEMES[parts.scheme]}://{host}:{port}"


async def dial(
    session: aiohttp.ClientSession,
    gateway: str,
    codec: Codec,
    *,
    timeout_s: float,
    heartbeat_s: float,
    info: dict[str, Any] = CLIENT_INFO,
) -> Connection:
    """A connection to that gateway, hello and welcome exchanged.  ``info`` says who calls.

    Raises :class:`SiloUnavailable` (nothing ran) or :class:`ProtocolError`, naming the address.
    """
    socket: aiohttp.ClientWebSocketResponse | None = None
    try:
        async with asyncio.timeout(timeout_s):
            socket = await session.ws_connect(
                gateway + PATH,
                max_msg_size=FRAME_BYTES_MAX + 1,
                heartbeat=heartbeat_s,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),  # pyright: ignore[reportCallIssue] - attrs class
            )
            connection = await greeted(socket, gateway, codec, info)
            connection.sign_when_quiet(socket.pong, heartbeat_s)
            return connection
    except BaseException as error:
        if socket is not None:
            await socket.close()
        if isinstance(error, (FarroError, TimeoutError, aiohttp.ClientError, OSError)):
            raise _explained(gateway, error, timeout_s) from error
        raise


async def greeted(socket: Socket, address: str, codec: Codec, info: dict[str, Any]) -> Connection:
    """The connection over an open socket: says hello and takes the welcome.  Closing is the caller's."""
    await socket.send_bytes(frames([packed_message(codec, hello(info))])[0])
    answer = await socket.receive()
    if answer.type is not aiohttp.WSMsgType.BINARY:
        reason = answer.extra or f"code {socket.close_code}"
        raise ProtocolError(f"{address} ended the handshake: {reason}")
    first, *more = messages_of(codec, answer.data)
    return Connection(address, socket, codec, check_welcome(first), more)


def _explained(gateway: str, error: BaseException, timeout_s: float) -> FarroError:
    if isinstance(error, FarroError):
        return error
    if isinstance(error, TimeoutError):
        problem = f"no answer within {timeout_s:g} s"
    elif isinstance(error, aiohttp.WSServerHandshakeError):
        problem = f"it answers, but not as a farro gateway (HTTP status {error.status})"
        if error.status == 503:
            problem = "the silo is shutting down or full"
        elif error.status == 403:
            problem = "it refuses this client's Host or Origin (HTTP status 403)"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        problem = f"its certificate is not trusted here: {error.certificate_error}"
    elif isinstance(error, aiohttp.ClientSSLError):
        problem = (
            "no TLS is spoken there; a silo is reached by http://HOST:PORT, https is for a proxy before it"
        )
    elif isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        problem = os.strerror(number) if number and number > 0 else str(error.os_error)
    else:
        problem = str(error) or type(error).__name__
    return SiloUnavailable(f"no silo at {gateway}: {problem}", turn_ran=False)
