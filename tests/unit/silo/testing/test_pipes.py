"""Pipes: in order, after a delay, cut, silent, closed once; and a connection and a session on them."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from aiohttp import WSMsgType

from farro.client.codec import Codec
from farro.client.dialing import CLIENT_INFO
from farro.client.errors import CallTimeout, SiloUnavailable
from farro.silo.testing.pipes import UNREAD_BYTES_MAX, Pipe, PipeNetwork
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.cluster.routing import SmallSilo, address, until


async def test_frames_arrive_in_order_each_after_its_delay(virtual: VirtualClock) -> None:
    chance = Random(5)
    pipe = Pipe(lambda: chance.uniform(0, 1))
    loop = asyncio.get_running_loop()
    for number in range(50):
        await pipe.near.send_bytes(bytes([number]))
    assert loop.time() == 0
    assert [(await pipe.far.receive()).data for _ in range(50)] == [bytes([number]) for number in range(50)]
    assert 0 < loop.time() <= 1


async def test_a_sender_waits_for_a_reader_that_is_far_behind(virtual: VirtualClock) -> None:
    pipe = Pipe()
    await pipe.near.send_bytes(bytes(UNREAD_BYTES_MAX + 1))
    second = asyncio.create_task(pipe.near.send_bytes(b"x"))
    done, _ = await asyncio.wait({second}, timeout=5)
    assert not done
    await pipe.far.receive()
    await second


async def test_a_cut_is_known_at_both_ends_at_once(virtual: VirtualClock) -> None:
    pipe = Pipe()
    await pipe.near.send_bytes(b"lost")
    reading = asyncio.create_task(pipe.near.receive())
    pipe.cut()
    pipe.cut()
    assert (await reading).type is WSMsgType.ERROR
    assert (await pipe.far.receive()).type is WSMsgType.ERROR
    assert (await pipe.far.receive()).type is WSMsgType.CLOSED
    with pytest.raises(ConnectionResetError):
        await pipe.near.send_bytes(b"x")
    assert pipe.near.close_code == 1006


async def test_a_close_arrives_after_what_was_sent_and_a_second_one_says_nothing(
    virtual: VirtualClock,
) -> None:
    pipe = Pipe()
    await pipe.near.send_bytes(b"last")
    assert await pipe.near.close(code=1001, message=b"bye") is True
    assert await pipe.near.close(code=1002) is False
    assert (await pipe.far.receive()).data == b"last"
    end = await pipe.far.receive()
    assert (end.type, end.data, end.extra, pipe.far.close_code) == (WSMsgType.CLOSE, 1001, "bye", 1001)
    assert await pipe.far.close() is False
    assert (await pipe.far.receive()).type is WSMsgType.CLOSED
    assert (await pipe.near.receive()).type is WSMsgType.CLOSED


async def test_a_half_open_pipe_loses_what_is_sent_and_calls_end_at_their_deadline(
    virtual: VirtualClock,
) -> None:
    network = PipeNetwork()
    silo = SmallSilo(network, 1, [*range(8)])
    await silo.gateway.start()
    connection = await network.dial("client", address(1), Codec(), CLIENT_INFO)
    running = asyncio.create_task(connection.run())
    loop = asyncio.get_running_loop()

    def call(method: str) -> asyncio.Future[object]:
        _, answer = connection.send_call("echo", "k", method, ["x"], None, 5.0, loop.time() + 5, False)
        assert answer is not None
        return answer

    assert await call("echo") == "x"
    network.pipes[0][2].far.silent = True
    with pytest.raises(CallTimeout) as late:
        await call("echo")
    assert late.value.turn_ran is None
    assert len(silo.seen) == 2, "it ran; only the answer was lost"
    out = call("hold")
    await until(lambda: silo.held)
    network.cut("client", address(1))
    with pytest.raises(SiloUnavailable) as lost:
        await out
    assert lost.value.turn_ran is None
    assert "cut" in await running
    silo.release()
    await silo.close()
