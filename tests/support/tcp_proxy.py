"""A TCP proxy that spoils the network between two real processes: delay, loss of contact, resets.

Theory of operation.  TCP never loses a byte within a connection that lives: a lost packet comes later.  So a
*cut* line holds what it is given and hands it on when the cut ends, exactly as retransmission would; a
connection that is opened through a cut line is accepted and hears nothing.  What ends connections is
:meth:`TcpProxy.reset` (RST to both ends) and :meth:`TcpProxy.refuse` (nobody listens).  Each direction has
its own :class:`Line`; changing it is felt at once by the connections that exist.  A direction holds at most
``HELD_BYTES_MAX`` bytes and then reads no more, so that a sender behind a cut feels back-pressure.

It runs in the event loop of the test that controls it, and listens on 127.0.0.1 only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

CHUNK_BYTES = 64 * 1024
HELD_BYTES_MAX = 4 * 1024 * 1024  # beyond it the sender waits
CONNECT_MAX_S = 5.0
RST = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends RST


@dataclass(frozen=True, slots=True)
class Line:
    """What one direction is like.  ``bytes_per_s`` None: as fast as it goes.

    Each chunk takes ``delay_s`` and up to ``jitter_s`` more; chunks never overtake each other.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    cut: bool = False


CLEAR = Line()
CUT = Line(cut=True)


class _Direction:
    """One direction of one connection: reads, holds, writes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line, chance: Random
    ) -> None:
        self._reader, self._writer = reader, writer
        self._line = line
        self._chance = chance
        self._held: deque[tuple[float, bytes]] = deque()  # (when it may go on, what); b"" is the end
        self._held_bytes = 0
        self._last_at = 0.0
        self._changed = asyncio.Event()

    def become(self, line: Line) -> None:
        self._line = line
        self._changed.set()

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._held_bytes > HELD_BYTES_MAX:
                await self._wait()
            data = await self._reader.read(CHUNK_BYTES)
            line = self._line
            at = loop.time() + line.delay_s + self._chance.random() * line.jitter_s
            self._last_at = max(self._last_at, at)
            self._held.append((self._last_at, data))
            self._held_bytes += len(data)
            self._changed.set()
            if not data:
                return

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._held or self._line.cut:
                await self._wait()
                continue
            at, data = self._held[0]
            if (left := at - loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._wait()
                continue
            self._held.popleft()
            self._held_bytes -= len(data)
            self._changed.set()  # the reader may wait for room
            if not data:
                self._writer.write_eof()
                return
            self._writer.write(data)
            await self._writer.drain()
            if rate := self._line.bytes_per_s:
                await asyncio.sleep(len(data) / rate)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class _Connection:
    """Both directions of one connection; ends when both have ended, or when either end breaks."""

    def __init__(
        self, near: asyncio.StreamWriter, far: asyncio.StreamWriter, up: _Direction, down: _Direction
    ) -> None:
        self._writers = (near, far)
        self._task = asyncio.current_task()
        self.up, self.down = up, down

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for direction in (self.up, self.down):
                    tasks.create_task(direction.read())
                    tasks.create_task(direction.write())
        except* OSError:
            self._abort()  # one end broke off: the other learns it the same way
        finally:
            for writer in self._writers:
                writer.close()

    def reset(self) -> None:
        self._abort()
        if self._task is not None:
            self._task.cancel()  # it may wait for a cut to end

    def _abort(self) -> None:
        for writer in self._writers:
            _send_rst(writer)


def _send_rst(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    writer.transport.abort()


class TcpProxy:
    """Listens on a port of its own and passes everything to ``target``, by the lines ``up`` and ``down``.

    *up* is from whoever connects to the target.  Use through :func:`tcp_proxy`.
    """

    def __init__(self, target: tuple[str, int] | None = None, chance: Random | None = None) -> None:
        self.target = target
        self.port = 0
        self.connections_made = 0
        self._chance = chance or Random(0)
        self._up = self._down = CLEAR
        self._server: asyncio.Server | None = None
        self._closed = False
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    # ---- what the network is like

    def become(self, *, up: Line | None = None, down: Line | None = None) -> None:
        """Change one direction or both; None leaves it as it is."""
        self._up = up or self._up
        self._down = down or self._down
        for connection in self._connections:
            connection.up.become(self._up)
            connection.down.become(self._down)

    def heal(self) -> None:
        """Both directions are clear again; what was held goes on."""
        self.become(up=CLEAR, down=CLEAR)

    def reset(self) -> int:
        """Break every connection that exists, with RST at both ends; how many there were."""
        broken = list(self._connections)
        for connection in broken:
            connection.reset()
        return len(broken)

    def refuse(self) -> None:
        """Stop listening: new connections are refused, as where no process listens.  Existing ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def listen(self) -> None:
        """Listen, on the port of the first time.  Repeatable."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End every connection.  It does not listen again."""
        self._closed = True
        self.refuse()
        self.reset()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- connections

    async def _accept(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._closed:  # accepted just before the end
                raise asyncio.CancelledError
            await self._pass_on(near_reader, near)
        except asyncio.CancelledError:
            # by reset() or close(), perhaps before the target was reached; not raised, since asyncio's server
            # would log a task that ends cancelled
            _send_rst(near)
        finally:
            self._tasks.discard(task)

    async def _pass_on(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        try:
            if self.target is None:
                raise ConnectionRefusedError
            async with asyncio.timeout(CONNECT_MAX_S):
                far_reader, far = await asyncio.open_connection(*self.target)
        except OSError:  # TimeoutError is one
            _send_rst(near)
            return
        connection = _Connection(
            near,
            far,
            _Direction(near_reader, far, self._up, self._chance),
            _Direction(far_reader, near, self._down, self._chance),
        )
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


@asynccontextmanager
async def tcp_proxy(
    target: tuple[str, int] | None = None, chance: Random | None = None
) -> AsyncGenerator[TcpProxy]:
    """A proxy that listens; every connection through it is reset when the block ends."""
    proxy = TcpProxy(target, chance)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
