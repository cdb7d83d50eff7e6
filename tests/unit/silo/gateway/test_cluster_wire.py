"""Version 2 of the wire at the gateway: peers, maps, news; version 1 beside it; bound before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from farro.client.client import Client
from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.protocol import PATH, frames, messages_of, packed_message
from farro.silo.gateway.address import CannotListen
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.websocket import Gateway
from tests.unit.silo.gateway.serving import Echo, Raw, Target, raw, serving

HELLO, WELCOME, CALL, REPLY, ERROR, CANCEL, GOAWAY, MAP, NEWS = range(1, 10)
FACTS: dict[str, Any] = {"silo": 1, "service": "test"}
PEER: dict[str, Any] = {"silo": 2, "service": "test"}
CODEC = Codec()


def a_map(view: int) -> ClusterMap:
    return ClusterMap(view, 2, {1: "http://127.0.0.1:1"}, (1, 0))


def told(view: int) -> list[Any]:
    return [MAP, view, 2, {1: "http://127.0.0.1:1"}, [1, 0]]


@asynccontextmanager
async def greeted(gateway: Gateway, high: int = 2, **info: Any) -> AsyncIterator[tuple[Raw, list[Any]]]:
    """A peer or client that has said hello, and the messages it was answered with."""
    async with raw(gateway, greet=False) as peer:
        await peer.send([HELLO, 1, high, info])
        yield peer, await peer.receive()


def a_call(call_id: int = 1, method: str = "echo") -> list[Any]:
    return [CALL, call_id, "echo", "k", method, ["x"], None, 1_000, None]


# ---- maps


async def test_a_client_is_told_the_map_after_the_welcome_and_at_every_change() -> None:
    async with serving(facts=FACTS) as (gateway, _):
        gateway.publish(a_map(3))
        async with greeted(gateway) as (peer, (welcome, first)):
            assert welcome[:2] == [WELCOME, 2]
            assert first == told(3)
            gateway.publish(a_map(5))
            assert await peer.receive() == [told(5)]
            gateway.publish(a_map(4))  # late news is no news
            await peer.send(a_call())
            assert await peer.receive() == [[REPLY, 1, "x"]]


async def test_a_silo_that_is_taken_for_dead_goes_on_under_its_new_number() -> None:
    async with serving(facts=FACTS) as (gateway, _):
        gateway.publish(a_map(3), 7)
        async with greeted(gateway) as (_, (welcome, _map)):
            assert welcome[2]["silo"] == 7


# ---- version 1 beside version 2


async def test_a_client_of_version_1_is_served_and_told_nothing_it_does_not_know() -> None:
    async with serving(facts=FACTS) as (gateway, target):
        gateway.publish(a_map(3))
        async with greeted(gateway, high=1, **PEER) as (peer, answer):
            assert [message[:2] for message in answer] == [[WELCOME, 1]]
            gateway.publish(a_map(4))
            await peer.send(a_call())
            assert await peer.receive() == [[REPLY, 1, "x"]]
            assert not target.seen[0].forwarded, "version 1 has no peers"
            await peer.send([NEWS, 4])
            assert await peer.closed() == 1002


async def test_a_client_of_a_later_version_is_answered_in_this_one() -> None:
    async with serving(facts=FACTS) as (gateway, _), greeted(gateway, high=9) as (_, (welcome,)):
        assert welcome[1] == 2


@asynccontextmanager
async def an_old_silo(*after_welcome: list[Any]) -> AsyncIterator[str]:
    """A silo as version 1 had it: looks at the versions only, and answers every call with its arguments."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        async for frame in ws:
            answers: list[list[Any]] = []
            for message in messages_of(CODEC, frame.data):
                if message[0] == HELLO:
                    assert message[1] <= 1 <= message[2]
                    answers += [[WELCOME, 1, {"calls_max": 10}], *after_welcome]
                else:
                    assert message[0] == CALL and len(message) == 9
                    answers.append([REPLY, message[1], message[5]])
            await ws.send_bytes(frames([packed_message(CODEC, answer) for answer in answers])[0])
        return ws

    app = web.Application()
    app.router.add_get(PATH, serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_client_works_with_a_silo_of_version_1() -> None:
    async with an_old_silo() as address, Client(address) as client:
        assert await client.call("echo", "k", "echo", 1) == [1]
        assert client.statistics().view is None


@pytest.mark.parametrize("message", [told(1), [NEWS, 1]])
async def test_a_silo_of_version_1_sends_no_messages_of_version_2(message: list[Any]) -> None:
    async with an_old_silo(message) as address, Client(address, timeout=0.2) as client:
        await _until_lost(client)


async def _until_lost(client: Client) -> None:
    """Every connection ends at once; the client goes on trying."""
    async with asyncio.timeout(10):
        while client.statistics().connections_made < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)


# ---- peers


async def test_a_peers_calls_are_known_and_it_is_told_news_instead_of_the_map() -> None:
    async with serving(facts=FACTS) as (gateway, target):
        heard: asyncio.Queue[int] = asyncio.Queue()
        gateway.on_news(heard.put_nowait)
        gateway.publish(a_map(3))
        async with greeted(gateway, **PEER) as (peer, answer):
            assert [message[0] for message in answer] == [WELCOME]
            await peer.send(a_call())
            assert await peer.receive() == [[REPLY, 1, "x"]]
            assert target.seen[0].forwarded and not target.seen[0].external
            await peer.send([NEWS, 8])
            assert await heard.get() == 8
            gateway.publish(a_map(9))
            assert await peer.receive() == [[NEWS, 9]]


@pytest.mark.parametrize(
    "info",
    [
        {"silo": 2, "service": "another"},
        {"silo": 1, "service": "test"},  # its own number
        {"silo": 0, "service": "test"},
        {"silo": -1, "service": "test"},
        {"silo": "2", "service": "test"},
        {"silo": True, "service": "test"},
        {"silo": 2},
        {"silo": 2, "service": ""},
        {"silo": 2, "service": 7},
    ],
)
async def test_a_peer_that_meant_another_silo_is_turned_away(info: dict[str, Any]) -> None:
    async with serving(facts=FACTS) as (gateway, _), raw(gateway, greet=False) as peer:
        await peer.send([HELLO, 1, 2, info])
        assert await peer.closed() == 1002


async def test_what_else_a_hello_says_is_not_looked_at() -> None:
    async with serving(facts=FACTS) as (gateway, _), greeted(gateway, colour="blue", **PEER) as (_, answer):
        assert answer[0][0] == WELCOME


@pytest.mark.parametrize(
    "message", [[NEWS], [NEWS, "1"], [NEWS, -1], [NEWS, True], [NEWS, 1, 2], told(1), [10, 1]]
)
async def test_bad_news_and_what_peers_do_not_send_close_the_connection(message: list[Any]) -> None:
    async with serving(facts=FACTS) as (gateway, _), greeted(gateway, **PEER) as (peer, _):
        await peer.send(message)
        assert await peer.closed() == 1002


async def test_a_client_has_no_news() -> None:
    async with serving(facts=FACTS) as (gateway, _), greeted(gateway) as (peer, _):
        await peer.send([NEWS, 1])
        assert await peer.closed() == 1002


# ---- bound before it serves


async def test_a_port_is_taken_by_bind_and_whoever_comes_waits_until_it_serves() -> None:
    gateway = Gateway("127.0.0.1:0", Target(), Codec(), facts=FACTS)
    await gateway.bind()
    try:
        other = Gateway(gateway.address, Target(), Codec())
        with pytest.raises(CannotListen, match="already in use"):
            await other.bind()
        assert await health(gateway) == (503, "starting")
        client = Client(gateway.address)
        opening = asyncio.create_task(client.open())
        await health(gateway)
        assert not opening.done()
        await gateway.start(5)
        await opening
        assert await health(gateway) == (200, "ok")
        assert await client.grain(Echo, "k").add(1, 2) == 3
        await client.close()
    finally:
        await gateway.stop(0)


async def test_who_waits_too_long_for_a_silo_that_starts_is_refused() -> None:
    gateway = Gateway("127.0.0.1:0", Target(), Codec(), options=GatewayOptions(handshake_s=0.05))
    await gateway.bind()
    try:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"http://{gateway.address}{PATH}")
        assert refused.value.status == 503
    finally:
        await gateway.stop(0)


async def test_a_silo_that_fails_to_start_leaves_nobody_waiting() -> None:
    gateway = Gateway("127.0.0.1:0", Target(), Codec())
    await gateway.bind()
    async with aiohttp.ClientSession() as session:
        waiting = asyncio.create_task(session.ws_connect(f"http://{gateway.address}{PATH}"))
        await health(gateway)
        await gateway.stop(0)
        with pytest.raises((aiohttp.WSServerHandshakeError, aiohttp.ClientConnectionError)):
            await waiting


async def health(gateway: Gateway) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{gateway.address}/health") as response,
    ):
        return response.status, (await response.json())["status"]
