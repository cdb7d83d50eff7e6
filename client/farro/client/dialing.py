"""Opening a connection: the address, the WebSocket, the handshake; one clear error for each way to fail."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
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

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
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
    on_goaway: Callable[[Connection, str], None],
) -> Connection:
    """A connection to that gateway, hello and welcome exchanged.

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
            info = await _shake_hands(socket, gateway, codec)
    except BaseException as error:
        if socket is not None:
            await socket.close()
        if isinstance(error, (FarroError, TimeoutError, aiohttp.ClientError, OSError)):
            raise _explained(gateway, error, timeout_s) from error
        raise
    return Connection(gateway, socket, codec, calls_max=info["calls_max"], on_goaway=on_goaway)


async def _shake_hands(socket: aiohttp.ClientWebSocketResponse, gateway: str, codec: Codec) -> dict[str, Any]:
    greeting = packed_message(codec, hello({"client": "farro-python"}))
    await socket.send_bytes(frames([greeting])[0])
    answer = await socket.receive()
    if answer.type is not aiohttp.WSMsgType.BINARY:
        reason = answer.extra or f"code {socket.close_code}"
        raise ProtocolError(f"{gateway} ended the handshake: {reason}")
    batch = messages_of(codec, answer.data)
    if len(batch) != 1:
        raise ProtocolError(f"{gateway} sent more than its welcome before any call")
    return check_welcome(batch[0])


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
    elif isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        problem = os.strerror(number) if number and number > 0 else str(error.os_error)
    else:
        problem = str(error) or type(error).__name__
    return SiloUnavailable(f"no silo at {gateway}: {problem}", turn_ran=False)
