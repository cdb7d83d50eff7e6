"""The proxy that other tests spoil the network with does what it says, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import pytest

from tests.support.tcp_proxy import CUT, HELD_BYTES_MAX, Line, TcpProxy, tcp_proxy

SOON_S = 5.0


@asynccontextmanager
async def echo() -> AsyncGenerator[tuple[str, int]]:
    """A server that sends back what it gets, until the end comes."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        await asyncio.wait(tasks) if tasks else None


class Peer:
    """One connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        async with asyncio.timeout(SOON_S):
            return await self.reader.readexactly(len(data))

    async def is_silent(self, for_s: float = 0.1) -> bool:
        try:
            async with asyncio.timeout(for_s):
                await self.reader.readexactly(1)
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def peer(proxy: TcpProxy) -> AsyncGenerator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


async def test_it_passes_everything_on_both_ways_and_ends_as_the_ends_do() -> None:
    data = Random(1).randbytes(3 * HELD_BYTES_MAX)
    async with echo() as target, tcp_proxy(target) as proxy, peer(proxy) as one:
        one.writer.write(data)
        one.writer.write_eof()
        async with asyncio.timeout(SOON_S):
            assert await one.reader.read(-1) == data, "and then the end, which the server sent after ours"
        assert proxy.connections_made == 1


async def test_delay_holds_every_answer_up_and_jitter_never_changes_the_order() -> None:
    loop = asyncio.get_running_loop()
    async with echo() as target, tcp_proxy(target, Random(1)) as proxy, peer(proxy) as one:
        assert await one.ask(b"quick") == b"quick"
        proxy.become(up=Line(delay_s=0.1), down=Line(delay_s=0.1))
        begun = loop.time()
        await one.ask(b"slow")
        assert loop.time() - begun >= 0.2
        proxy.become(up=Line(jitter_s=0.02), down=Line(jitter_s=0.02))
        numbers = b"".join(number.to_bytes(2, "big") for number in range(500))
        for start in range(0, len(numbers), 2):
            one.writer.write(numbers[start : start + 2])
            await asyncio.sleep(0)
        async with asyncio.timeout(SOON_S):
            assert await one.reader.readexactly(len(numbers)) == numbers


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_cut_is_silence_and_what_was_held_goes_on_when_it_heals(direction: str) -> None:
    async with echo() as target, tcp_proxy(target) as proxy, peer(proxy) as one:
        await one.ask(b"before")
        proxy.become(**{direction: CUT})
        one.writer.write(b"held")
        assert await one.is_silent()
        proxy.heal()
        async with asyncio.timeout(SOON_S):
            assert await one.reader.readexactly(4) == b"held"


async def test_a_connection_made_through_a_cut_hears_nothing_until_it_heals() -> None:
    async with echo() as target, tcp_proxy(target) as proxy:
        proxy.become(up=CUT, down=CUT)
        async with peer(proxy) as one:
            one.writer.write(b"hello")
            assert await one.is_silent()
            proxy.heal()
            async with asyncio.timeout(SOON_S):
                assert await one.reader.readexactly(5) == b"hello"


async def test_who_sends_into_a_cut_feels_it_after_a_while() -> None:
    async with echo() as target, tcp_proxy(target) as proxy, peer(proxy) as one:
        proxy.become(up=CUT)
        chunk = bytes(65536)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                for _ in range(64 * HELD_BYTES_MAX // len(chunk)):
                    one.writer.write(chunk)
                    await one.writer.drain()


async def test_a_thin_line_takes_its_time() -> None:
    loop = asyncio.get_running_loop()
    async with echo() as target, tcp_proxy(target) as proxy, peer(proxy) as one:
        proxy.become(up=Line(bytes_per_s=1_000_000))
        begun = loop.time()
        for _ in range(4):
            await one.ask(bytes(50_000))
        assert loop.time() - begun >= 0.15, "three of the four waited for the one before"


async def test_a_reset_reaches_both_ends_also_through_a_cut() -> None:
    async with echo() as target, tcp_proxy(target) as proxy, peer(proxy) as one, peer(proxy) as other:
        await one.ask(b"a"), await other.ask(b"b")
        proxy.become(up=CUT, down=CUT)
        one.writer.write(b"never")
        assert proxy.reset() == 2
        for each in (one, other):
            with pytest.raises(ConnectionResetError):
                await each.reader.readexactly(1)
        proxy.heal()
        async with peer(proxy) as later:
            assert await later.ask(b"fresh") == b"fresh"
        assert proxy.connections_made == 3


async def test_it_refuses_and_listens_again_on_its_port() -> None:
    async with echo() as target, tcp_proxy(target) as proxy, peer(proxy) as one:
        await one.ask(b"in time")
        port = proxy.port
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert await one.ask(b"still here") == b"still here"
        await proxy.listen()
        assert proxy.port == port
        async with peer(proxy) as later:
            assert await later.ask(b"back") == b"back"


async def test_a_target_that_is_not_there_is_a_reset() -> None:
    async with tcp_proxy(("127.0.0.1", 1)) as proxy, peer(proxy) as one:
        with pytest.raises(ConnectionResetError):
            await one.reader.readexactly(1)
    async with tcp_proxy(None) as proxy, peer(proxy) as one:
        with pytest.raises(ConnectionResetError):
            await one.reader.readexactly(1)


async def test_its_end_ends_its_connections() -> None:
    async with echo() as target:
        async with tcp_proxy(target) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"x")
            await reader.readexactly(1)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        assert proxy.open_connections == 0


async def test_its_end_also_ends_who_waits_for_a_target_that_does_not_accept() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [
            await asyncio.open_connection(*full.getsockname())
        ]  # the queue has place for one more at most
        async with tcp_proxy(full.getsockname()) as proxy:
            peers = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(3)]
            while proxy.connections_made < len(peers):  # noqa: ASYNC110 - it counts, and tells nobody
                await asyncio.sleep(0)
        for reader, writer in peers:
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.close()
        for _, writer in fillers:
            writer.close()
