"""The silo's side of the wire: calls, limits, garbage, who may knock, and the end."""

from __future__ import annotations

import asyncio
import logging
from itertools import chain
from random import Random
from typing import Any

import aiohttp
import pytest

from farro.client.codec import Codec
from farro.client.protocol import PATH
from farro.silo.gateway.address import CannotListen
from farro.silo.gateway.websocket import Gateway
from tests.unit.silo.gateway.serving import Target, raw, serving

CALL, REPLY, ERROR, CANCEL, GOAWAY = 3, 4, 5, 6, 7


def call(call_id: Any = 1, method: str = "echo", args: Any = ("x",), **change: Any) -> list[Any]:
    fields = {"type": "echo", "key": "k", "kwargs": None, "timeout": 1000, "chain": None} | change
    arguments = list(args) if isinstance(args, tuple) else args
    return [
        *(CALL, call_id, fields["type"], fields["key"], method),
        *(arguments, fields["kwargs"], fields["timeout"], fields["chain"]),
    ]


async def test_a_batch_of_calls_is_answered_in_one_frame() -> None:
    async with serving() as (gateway, _), raw(gateway) as peer:
        await peer.send(*(call(number, args=(number,)) for number in range(1, 33)))
        assert await peer.receive() == [[REPLY, number, number] for number in range(1, 33)]


async def test_the_first_calls_of_a_long_batch_are_answered_while_the_others_are_worked_on() -> None:
    async with serving() as (gateway, _), raw(gateway) as peer:
        await peer.send(*(call(number, args=(number,)) for number in range(1, 101)))
        answers = [await peer.receive() for _ in range(4)]
        assert [len(frame) for frame in answers] == [32, 32, 32, 4]
        assert [*chain(*answers)] == [[REPLY, number, number] for number in range(1, 101)]


async def test_an_invocation_carries_deadline_and_chain() -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        before = asyncio.get_running_loop().time()
        await peer.send(call(chain=[["a", "1", "m", True]], timeout=5_000, kwargs={"n": 1}))
        await peer.receive()
        (seen,) = target.seen
        assert seen.chain == (("a", "1", "m", True),)
        assert seen.kwargs == {"n": 1}
        assert before + 5 <= seen.deadline <= asyncio.get_running_loop().time() + 5


async def test_errors_arrive_with_code_text_and_flags_whatever_their_text_holds_ser_011() -> None:
    async with serving() as (gateway, _), raw(gateway) as peer:
        await peer.send(call(method="fail"))
        ((kind, call_id, code, text, details),) = await peer.receive()
        assert (kind, call_id, code) == (ERROR, 1, "grain_call_failed")
        assert text == r"no \ud800 luck"
        assert details["remote_type"] == "ValueError" and details["turn_ran"] is False


async def test_a_bug_of_the_target_fails_that_call_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (gateway, _), raw(gateway) as peer:
        await peer.send(call(1, "crash"), call(2))
        crashed, answered = await peer.receive()
        assert crashed[:3] == [ERROR, 1, "error"]
        assert answered == [REPLY, 2, "x"]
    assert "a bug of the target" in caplog.text


async def test_a_result_too_large_for_a_frame_is_an_error_that_says_the_turn_ran() -> None:
    async with serving() as (gateway, _), raw(gateway) as peer:
        await peer.send(call(method="big"))
        ((kind, _, code, text, details),) = await peer.receive()
        assert (kind, code, details["turn_ran"]) == (ERROR, "invalid_payload", True)
        assert "the result takes" in text


async def test_a_cancel_reaches_its_call_and_no_other() -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        await peer.send(call(1, "hold"), call(2, "hold"), [CANCEL, 1], [CANCEL, 99])
        ((kind, call_id, code, *_),) = await peer.receive()
        assert (kind, call_id, code) == (ERROR, 1, "cancelled")
        assert len(target.held) == 1


async def test_a_vanished_client_cancels_nothing() -> None:
    async with serving() as (gateway, target):
        async with raw(gateway) as peer:
            await peer.send(call(1, "hold"))
            await target.until(1)
        assert not target.held[0].cancelled
        target.release()


async def test_a_oneway_call_gets_no_answer_even_if_it_is_refused() -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        await peer.send(call(0), call(0, key=""), call(7))
        assert await peer.receive() == [[REPLY, 7, "x"]]
        assert len(target.seen) == 2


async def test_calls_beyond_the_bound_are_overloaded_and_the_rest_go_on() -> None:
    async with (
        serving(calls_in_flight_max=2, calls_announced=2) as (gateway, target),
        raw(gateway) as peer,
    ):
        await peer.send(*(call(number, "hold") for number in (1, 2, 3)))
        ((kind, call_id, code, _, details),) = await peer.receive()
        assert (kind, call_id, code) == (ERROR, 3, "overloaded")
        assert details["retry_safe"] is True
        target.release()
        assert await peer.receive() == [[REPLY, 1, "held"], [REPLY, 2, "held"]]


@pytest.mark.parametrize("change", [{"type": ""}, {"key": ""}, {"method": ""}, {"key": "k" * 513}])
async def test_a_call_for_no_grain_is_an_error_of_that_call(change: dict[str, Any]) -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        await peer.send(call(**change))
        ((kind, _, code, *_),) = await peer.receive()
        assert (kind, code) == (ERROR, "invalid_grain_id")
        assert target.seen == []


PACK = Codec().pack_wire
BROKEN: list[tuple[str, bytes, set[int]]] = [
    ("random", Random(7).randbytes(400), {1002, 1007}),
    ("truncated", PACK([call()])[:-3], {1007}),
    ("map", PACK({"a": 1}), {1002}),
    ("empty", b"", {1007}),
    ("no messages", PACK([]), {1002}),
    ("trailing", PACK([call()]) + b"\x01", {1007}),
    ("two envelopes", PACK([call()]) * 2, {1007}),
    ("duplicate keys", b"\x91\x82\x01\x01\x01\x02", {1007}),
    ("announced array", b"\xdd\xff\xff\xff\xff", {1007}),
    ("announced map", b"\xdf\xff\xff\xff\xff", {1007}),
    ("announced bytes", b"\xc6\xff\xff\xff\xff", {1007}),
    ("nested", b"\x91" * 100_000, {1007}),
    ("unknown kind", PACK([[99, 1]]), {1002}),
    ("a reply", PACK([[REPLY, 1, 2]]), {1002}),
    ("kind as text", PACK([["call", 1]]), {1002}),
    ("message as map", PACK([{1: 2}]), {1002}),
    ("id as text", PACK([call("1")]), {1002}),
    ("id negative", PACK([call(-1)]), {1002}),
    ("id too big", PACK([call(2**63)]), {1002}),
    ("id bool", PACK([call(True)]), {1002}),
    ("type as bytes", PACK([call(type=b"x")]), {1002}),
    ("args as text", PACK([call(args="x")]), {1002}),
    ("kwargs as list", PACK([call(kwargs=[])]), {1002}),
    ("timeout zero", PACK([call(timeout=0)]), {1002}),
    ("timeout float", PACK([call(timeout=1.5)]), {1002}),
    ("timeout forever", PACK([call(timeout=2**60)]), {1002}),
    ("chain as text", PACK([call(chain="x")]), {1002}),
    ("chain link short", PACK([call(chain=[["a", "b"]])]), {1002}),
    ("chain endless", PACK([call(chain=[["a", "b", "c", True]] * 300)]), {1002}),
    ("call short", PACK([call()[:-1]]), {1002}),
    ("cancel short", PACK([[CANCEL]]), {1002}),
    ("id in flight", PACK([call(1, "hold"), call(1, "hold")]), {1002}),
    ("second hello", PACK([[1, 1, 1, {}]]), {1002}),
]


@pytest.mark.parametrize(("data", "codes"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
async def test_garbage_closes_that_connection_with_one_log_line_and_the_silo_lives_tra_012(
    data: bytes, codes: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (gateway, target):
        async with raw(gateway) as bystander:
            async with raw(gateway) as peer:
                await peer.socket.send_bytes(data)
                assert await peer.closed() in codes
            lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(lines) == 1 and lines[0].exc_info is None
            await bystander.send(call())
            assert await bystander.receive() == [[REPLY, 1, "x"]]
        target.release()


async def test_a_text_frame_is_refused_before_and_after_hello() -> None:
    async with serving() as (gateway, _):
        async with raw(gateway) as peer:
            await peer.socket.send_str("hello")
            assert await peer.closed() == 1003
        async with raw(gateway, greet=False) as peer:
            await peer.socket.send_str("hello")
            assert await peer.closed() in (1002, 1003)


@pytest.mark.parametrize("first", [call(), [1, 3, 4, {}], [1, 0, 1, {}], [1, 1], [1, 1, 1, []]])
async def test_a_connection_begins_with_a_hello_in_a_version_both_speak(first: list[Any]) -> None:
    async with serving() as (gateway, _), raw(gateway, greet=False) as peer:
        await peer.send(first)
        assert await peer.closed() == 1002


async def test_a_client_that_says_nothing_is_let_go() -> None:
    async with serving(handshake_s=0.05) as (gateway, _), raw(gateway, greet=False) as peer:
        assert await peer.closed() == 1002


async def connected(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = gateway.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def test_a_connection_that_asks_for_nothing_is_let_go() -> None:
    async with serving(handshake_s=0.05) as (gateway, _):
        for beginning in (b"", b"GET /health HTTP/1.1\r\nHost: "):
            reader, writer = await connected(gateway)
            writer.write(beginning)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            await hang_up(writer)


async def test_a_connection_that_was_opened_outlives_the_handshake_time() -> None:
    async with serving(handshake_s=0.05) as (gateway, _), raw(gateway) as peer:
        reader, writer = await connected(gateway)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        await hang_up(writer)
        await peer.send(call())
        assert await peer.receive() == [[REPLY, 1, "x"]]


async def test_connections_that_are_no_clients_are_bounded_apart_from_the_clients() -> None:
    async with serving(connections_max=2) as (gateway, _), raw(gateway) as peer:
        silent = [await connected(gateway) for _ in range(2)]
        refused, writer = await connected(gateway)
        assert await asyncio.wait_for(refused.read(), 5) == b""
        await hang_up(writer)
        await peer.send(call())
        assert await peer.receive() == [[REPLY, 1, "x"]]
        silent[0][1].write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await silent[0][0].read()).startswith(b"HTTP/1.1 200")
        async with raw(gateway) as another:
            await another.send(call())
            assert await another.receive() == [[REPLY, 1, "x"]]
        for _, each in silent:
            await hang_up(each)


async def test_a_client_that_leaves_too_many_answers_unread_is_let_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bound = 4 << 20
    async with serving(unread_bytes_max=bound) as (gateway, target), raw(gateway) as peer:
        transport = peer.socket._conn.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.pause_reading()
        await peer.send(*(call(number, "hold") for number in range(1, 101)))
        await target.until(100)
        held = target.held[:]
        target.held.clear()
        for each in held:
            each.respond(b"x" * 500_000, None)
            await asyncio.sleep(0)
        transport.resume_reading()
        await peer.closed()
        async with raw(gateway) as another:
            await another.send(call())
            assert await another.receive() == [[REPLY, 1, "x"]]
    assert f"more than {bound} bytes of answers unread" in caplog.text


async def test_a_frame_above_the_limit_closes_with_1009_tra_002() -> None:
    async with serving() as (gateway, _), raw(gateway) as peer:
        await peer.socket.send_bytes(b"x" * ((1 << 20) + 2))
        assert await peer.closed() == 1009


async def test_a_message_without_end_closes_with_1009_tra_002() -> None:
    async with serving() as (gateway, _):
        host, port = gateway.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET {PATH} HTTP/1.1\r\nHost: {gateway.address}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        chunk = 64 * 1024
        header = b"\xff" + chunk.to_bytes(8, "big") + bytes(4)
        for number in range(16):
            writer.write((b"\x02" if number == 0 else b"\x00") + header + bytes(chunk))
        writer.write(b"\x00\x8a" + bytes(4) + bytes(10))
        answer = await reader.read()
        assert b"\x03\xf1" in answer  # 1009
        writer.close()


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_web_page_may_not_connect_unless_its_origin_is_allowed_sec_005(origin: str) -> None:
    async with serving() as (gateway, _):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with raw(gateway, headers={"Origin": origin}):
                pass
        assert refused.value.status == 403
    async with serving(allowed_origins=(origin,)) as (gateway, _), raw(gateway, headers={"Origin": origin}):
        pass


async def test_health_answers_and_only_loopback_names_count_as_host() -> None:
    async with serving() as (gateway, _), aiohttp.ClientSession() as session:
        url = f"http://{gateway.address}/health"
        async with session.get(url) as answer:
            assert (answer.status, await answer.json()) == (
                200,
                {"status": "ok", "connections": 0, "silo": "test"},
            )
        for host, status in (
            ("evil.example", 403),
            ("localhost:9", 200),
            ("[::1]:9", 200),
            ("10.0.0.1", 403),
        ):
            async with session.get(url, headers={"Host": host}) as answer:
                assert answer.status == status
        async with session.get(f"http://{gateway.address}/nothing") as answer:
            assert answer.status == 404


async def test_a_port_in_use_is_one_error_with_address_and_port() -> None:
    async with serving() as (gateway, _):
        with pytest.raises(CannotListen, match=f"{gateway.address} is already in use"):
            async with serving(listen=gateway.address):
                pass


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:1", "example.org:1"])
async def test_beyond_loopback_the_way_in_is_named_sec_004(listen: str) -> None:
    with pytest.raises(CannotListen, match=r"TLS and authentication .*--allow-insecure-bind"):
        Gateway(listen, Target(), Codec())


async def test_the_insecure_bind_can_be_asked_for() -> None:
    async with serving(listen="0.0.0.0:0", allow_insecure_bind=True) as (gateway, _):
        assert gateway.address.startswith("0.0.0.0:")


@pytest.mark.parametrize(
    "listen", ["", "11111", "127.0.0.1", "127.0.0.1:x", "::1:80", "[::1]", "h:70000", "h:²"]
)
async def test_what_is_no_address_is_refused_with_the_form(listen: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|65535"):
        Gateway(listen, Target(), Codec())


async def test_stopping_answers_what_is_in_flight_takes_nothing_new_and_closes_with_1001_cli_005() -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        await peer.send(call(1, "hold"))
        await target.until(1)
        stopping = asyncio.create_task(gateway.stop(30))
        assert [message[0] for message in await peer.receive()] == [GOAWAY]
        await peer.send(call(2))
        ((_, call_id, code, _, details),) = await peer.receive()
        assert (call_id, code, details["turn_ran"], details["retry_safe"]) == (
            2,
            "silo_stopping",
            False,
            True,
        )
        target.release()
        assert await peer.receive() == [[REPLY, 1, "held"]]
        assert await peer.closed() == 1001
        await stopping


async def test_stopping_does_not_wait_longer_than_its_grace() -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        await peer.send(call(1, "hold"))
        await target.until(1)
        stopping = asyncio.create_task(gateway.stop(0.05))
        assert await peer.closed() == 1001
        await stopping
        target.release()
