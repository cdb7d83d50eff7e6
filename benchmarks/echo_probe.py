"""The limit of calls between two processes: a WebSocket echo of aiohttp with coalesced writes, nothing else.

What a call costs at least: 64 callers each send sixteen bytes and wait for them to return; all messages
of one loop tick share a frame, both ways.  No encoding, no dispatch, no deadline.  Client calls are measured
as a ratio to this, in the same run.

``python -m benchmarks.echo_probe`` prints the rate; other benchmarks await :func:`echo_rate`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

IN_FLIGHT = 64
MESSAGE_BYTES = 16
FRAME_BYTES_MAX = 1 << 20


class EchoClient:
    """Sends messages that begin with their id, and resolves their futures as they come back."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._pending: dict[bytes, asyncio.Future[None]] = {}
        self._outgoing: list[bytes] = []
        self._wake: asyncio.Future[None] = self._loop.create_future()
        self._last = 0

    def echo(self) -> asyncio.Future[None]:
        self._last += 1
        message = self._last.to_bytes(MESSAGE_BYTES, "big")
        future = self._pending[message] = self._loop.create_future()
        self._outgoing.append(message)
        if not self._wake.done():
            self._wake.set_result(None)
        return future

    async def write(self) -> None:
        while True:
            await self._wake
            self._wake = self._loop.create_future()
            batch, self._outgoing = self._outgoing, []
            await self._socket.send_bytes(b"".join(batch))

    async def read(self) -> None:
        async for message in self._socket:
            frame = message.data
            for start in range(0, len(frame), MESSAGE_BYTES):
                self._pending.pop(frame[start : start + MESSAGE_BYTES]).set_result(None)


async def _echo(request: web.Request) -> web.WebSocketResponse:
    """Takes a frame apart and puts it together again, as a server that looks at its messages has to."""
    socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES_MAX, compress=False)
    await socket.prepare(request)
    async for message in socket:
        frame = message.data
        messages = [frame[start : start + MESSAGE_BYTES] for start in range(0, len(frame), MESSAGE_BYTES)]
        await socket.send_bytes(b"".join(messages))
    return socket


async def serve() -> None:
    """Echo until stdin closes; the first line on stdout is the port."""
    app = web.Application()
    app.router.add_get("/", _echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


@asynccontextmanager
async def _server() -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


async def echo_rate(seconds: float = 2.0, in_flight: int = IN_FLIGHT) -> float:
    """Round trips per second with that many in flight, between this process and one it starts."""
    async with (
        _server() as port,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/", max_msg_size=FRAME_BYTES_MAX, compress=0) as socket,
    ):
        client = EchoClient(socket)
        workers = [asyncio.create_task(client.write()), asyncio.create_task(client.read())]
        try:
            await _run(client, min(0.2, seconds), in_flight)  # warm up
            return await _run(client, seconds, in_flight)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)


async def _run(client: EchoClient, seconds: float, in_flight: int) -> float:
    start = time.perf_counter()
    until = start + seconds

    async def caller() -> int:
        count = 0
        while time.perf_counter() < until:
            await client.echo()
            count += 1
        return count

    counts = await asyncio.gather(*(caller() for _ in range(in_flight)))
    return sum(counts) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--serve", action="store_true", help="be the server of a probe")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
    else:
        rate = asyncio.run(echo_rate(options.seconds, options.in_flight))
        sys.stdout.write(f"{rate:,.0f} round trips/s, {options.in_flight} in flight\n")


if __name__ == "__main__":
    main()
