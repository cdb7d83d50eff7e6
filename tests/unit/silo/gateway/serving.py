"""A gateway with a small target behind it, and a client that speaks raw frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp

from farro.client.codec import Codec
from farro.client.errors import CallCancelled, FarroError, GrainCallFailed
from farro.client.interface import grain_interface
from farro.client.protocol import PATH, frames, hello, messages_of, packed_message
from farro.silo.activations.invocation import Invocation
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.websocket import Gateway


@grain_interface("echo")
class Echo(Protocol):
    """What :class:`Target` answers."""

    async def echo(self, value: Any) -> Any: ...

    async def add(self, left: int, right: int) -> int: ...

    async def fail(self) -> None: ...

    async def hold(self) -> str: ...


class Target:
    """Answers ``echo`` and ``add`` at once, fails ``fail``, and keeps ``hold`` until :meth:`release`."""

    def __init__(self) -> None:
        self.held: list[Invocation] = []
        self.seen: list[Invocation] = []
        self._changed = asyncio.Event()

    def submit(self, call: Invocation) -> None:
        self.seen.append(call)
        if call.method == "hold":
            self.held.append(call)
            call.cancel_running = lambda: self._cancelled(call)
        elif call.method == "fail":
            call.respond(None, GrainCallFailed("no \ud800 luck", remote_type="ValueError"))
        elif call.method == "crash":
            raise RuntimeError("a bug of the target")
        elif call.method == "big":
            call.respond(b"x" * (1 << 20), None)
        elif call.method == "add":
            call.respond(sum(call.args), None)
        else:
            call.respond(call.args[0] if call.args else None, None)
        self._changed.set()

    def _cancelled(self, call: Invocation) -> None:
        self.held.remove(call)
        call.respond(None, CallCancelled("cancelled"))
        self._changed.set()

    async def until(self, held: int) -> None:
        """Wait until exactly that many calls are held."""
        while len(self.held) != held:
            self._changed.clear()
            await self._changed.wait()

    def release(self, error: FarroError | None = None) -> None:
        held, self.held = self.held, []
        for call in held:
            call.respond(None if error else "held", error)


@asynccontextmanager
async def serving(
    target: Target | None = None,
    listen: str = "127.0.0.1:0",
    facts: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Gateway, Target]]:
    target = target or Target()
    gateway = Gateway(
        listen, target, Codec(), options=GatewayOptions(**options), facts=facts or {"silo": "test"}
    )
    await gateway.start()
    try:
        yield gateway, target
    finally:
        await gateway.stop(0)


class Raw:
    """A WebSocket that sends what it is told and unpacks what comes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.codec = Codec()

    async def send(self, *messages: list[Any]) -> None:
        await self.socket.send_bytes(frames([packed_message(self.codec, list(m)) for m in messages])[0])

    async def receive(self) -> list[list[Any]]:
        message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.BINARY, message
        return messages_of(self.codec, message.data)

    async def closed(self) -> int | None:
        """The code with which the other side closes; frames before that are skipped."""
        while (await self.socket.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
        return self.socket.close_code


@asynccontextmanager
async def raw(gateway: Gateway, *, greet: bool = True, **options: Any) -> AsyncIterator[Raw]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://{gateway.address}{PATH}", **options) as socket,
    ):
        peer = Raw(socket)
        if greet:
            await peer.send(hello({}))
            ((kind, version, info),) = await peer.receive()
            assert (kind, version, info["silo"]) == (2, 2, "test")
        yield peer
