"""The client against a real gateway: calls, deadlines, cancellation, lost silos, several gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from farro.client.blocking import BlockingClient
from farro.client.client import Client
from farro.client.dialing import gateway_url
from farro.client.errors import (
    CallTimeout,
    GrainCallFailed,
    InvalidPayload,
    SiloStopping,
    SiloUnavailable,
)
from farro.client.protocol import PATH
from tests.support.ports import free_port
from tests.unit.silo.gateway.serving import Echo, Target, serving


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[Client, Target]]:
    async with serving() as (gateway, target), Client(gateway.address, **options) as client:
        yield client, target


async def test_typed_and_untyped_calls_give_their_results() -> None:
    async with connected() as (client, _):
        echo = client.grain(Echo, "a")
        assert await echo.add(2, 3) == 5
        assert await client.call("echo", "a", "echo", {1, 2}) == {1, 2}


async def test_calls_can_be_made_into_tasks_and_run_side_by_side() -> None:
    async with connected() as (client, _):
        echo = client.grain(Echo, "a")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(echo.add(number, 1)) for number in range(500)]
        assert [task.result() for task in tasks] == list(range(1, 501))


async def test_an_error_of_the_grain_arrives_as_its_class_with_its_flags() -> None:
    async with connected() as (client, _):
        with pytest.raises(GrainCallFailed) as failed:
            await client.grain(Echo, "a").fail()
        assert (failed.value.remote_type, failed.value.turn_ran) == ("ValueError", False)


async def test_a_value_that_does_not_fit_fails_its_own_call_only() -> None:
    async with connected() as (client, target):
        echo = client.grain(Echo, "a")
        with pytest.raises(InvalidPayload, match=r"Echo\.add\(right=…\)"):
            await echo.add(1, "x")  # type: ignore[arg-type]
        with pytest.raises(InvalidPayload, match=r"the call of echo\.echo takes"):
            await echo.echo(b"x" * (1 << 20))
        assert target.seen == []
        assert await echo.add(1, 1) == 2


async def test_a_megabyte_goes_both_ways() -> None:
    async with connected() as (client, _):
        value = os.urandom((1 << 20) - 200)
        assert await client.grain(Echo, "a").echo(value) == value


async def test_a_passed_deadline_is_unknown_and_its_late_answer_is_dropped_tra_009() -> None:
    async with connected() as (client, target):
        hurried = client.grain(Echo, "a", timeout=0.02)
        results = await asyncio.gather(*(hurried.hold() for _ in range(1_000)), return_exceptions=True)
        assert {type(result) for result in results} == {CallTimeout}
        assert {result.turn_ran for result in results if isinstance(result, CallTimeout)} == {None}
        await target.until(1_000)  # it takes 32 a tick; some may still be on their way
        target.release()
        assert await client.call("echo", "a", "add", 1, 2) == 3
        assert client.statistics().late_replies == 1_000
        assert client.statistics().calls_pending == 0


async def test_a_cancelled_caller_cancels_its_call_at_the_silo() -> None:
    async with connected() as (client, target):
        task = asyncio.create_task(asyncio.wait_for(client.grain(Echo, "a").hold(), 60))
        await target.until(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await target.until(0)
        assert target.seen[0].cancelled
        assert client.statistics().calls_pending == 0


async def test_more_calls_than_the_silo_allows_wait_for_room() -> None:
    async with (
        serving(calls_announced=4, calls_in_flight_max=4) as (gateway, _),
        Client(gateway.address) as client,
    ):
        echo = client.grain(Echo, "a")
        assert await asyncio.gather(*(echo.add(number, 0) for number in range(300))) == list(range(300))


async def test_a_call_that_does_not_fit_leaves_its_room_to_the_next() -> None:
    async with (
        serving(calls_announced=1, calls_in_flight_max=1) as (gateway, _),
        Client(gateway.address, timeout=10) as client,
    ):
        echo = client.grain(Echo, "a")
        calls = [echo.echo(bytes(1 << 20)), echo.echo("x")]
        refused, fits = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(refused, InvalidPayload)
        assert fits == "x"


async def test_calls_fail_one_after_the_other_each_at_its_own_deadline() -> None:
    async with connected() as (client, _):
        ended: list[int] = []

        async def hold(number: int) -> None:
            with pytest.raises(CallTimeout):
                await client.call("echo", "a", "hold", timeout=number / 100)
            ended.append(number)

        await asyncio.gather(*(hold(number) for number in (9, 3, 6, 1)))
        assert ended == [1, 3, 6, 9]


async def test_a_call_that_gets_no_room_before_its_deadline_never_ran() -> None:
    async with (
        serving(calls_announced=1, calls_in_flight_max=1) as (gateway, target),
        Client(gateway.address) as client,
    ):
        first = asyncio.create_task(client.call("echo", "a", "hold"))
        await target.until(1)
        with pytest.raises(CallTimeout) as refused:
            await client.call("echo", "a", "hold", timeout=0.05)
        assert (refused.value.turn_ran, refused.value.retry_safe) == (False, True)
        target.release()
        assert await first == "held"


async def test_nobody_at_the_address_is_one_clear_error_cli_007() -> None:
    port = free_port()
    with pytest.raises(
        SiloUnavailable, match=rf"no silo at http://127\.0\.0\.1:{port}: Connection refused"
    ) as no:
        async with Client(f"http://127.0.0.1:{port}"):
            pass
    assert no.value.turn_ran is False


async def test_a_server_that_never_answers_fails_within_the_connect_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(SiloUnavailable, match=r"no answer within 0\.1 s"):
            async with Client(f"127.0.0.1:{port}", connect_timeout=0.1):
                pass


async def test_a_web_server_that_is_no_gateway_is_named_as_such() -> None:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(SiloUnavailable, match="not as a farro gateway"):
            async with Client(f"127.0.0.1:{runner.addresses[0][1]}"):
                pass
    finally:
        await runner.cleanup()


async def test_a_peer_that_breaks_the_protocol_fails_the_calls_that_wait() -> None:
    async def liar(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.receive()
        await ws.send_bytes(b"\x91\x93\x02\x01\x81\xa9calls_max\x0a")
        await ws.receive()
        await ws.send_bytes(b"\x91\x93\x04\xcd\xff\xff\x01")  # an answer to a call that was never made
        await ws.receive()
        return ws

    app = web.Application()
    app.router.add_get(PATH, liar)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(f"127.0.0.1:{runner.addresses[0][1]}") as client:
            with pytest.raises(SiloUnavailable, match="broke the protocol") as lost:
                await client.call("echo", "a", "echo")
            assert lost.value.turn_ran is None
    finally:
        await runner.cleanup()


async def test_a_lost_silo_fails_what_is_out_at_once_and_later_calls_find_the_next() -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        gateway, target = await stack.enter_async_context(serving(listen=f"127.0.0.1:{port}"))
        client = await stack.enter_async_context(Client(gateway.address))
        held = asyncio.create_task(client.call("echo", "a", "hold"))
        await target.until(1)
        await gateway.stop(0)
        with pytest.raises(SiloUnavailable) as lost:
            await held
        assert (lost.value.turn_ran, lost.value.retry_safe) == (None, False)
        waiting = asyncio.create_task(client.call("echo", "a", "add", 1, 2))
        await stack.enter_async_context(serving(listen=f"127.0.0.1:{port}"))
        assert await waiting == 3
        assert client.statistics().connections_made == 2
        target.release()


async def test_while_no_silo_is_there_calls_wait_up_to_their_deadline_and_never_ran() -> None:
    async with serving() as (gateway, _), Client(gateway.address) as client:
        await gateway.stop(0)
        with pytest.raises(SiloUnavailable, match="not sent before its deadline") as lost:
            await client.call("echo", "a", "echo", timeout=0.2)
        assert (lost.value.turn_ran, lost.value.retry_safe) == (False, True)


async def test_a_draining_silo_finishes_its_calls_and_new_ones_go_elsewhere() -> None:
    async with serving() as (one, first), serving() as (two, second):
        async with Client(one.address, two.address) as client:
            held = asyncio.create_task(client.call("echo", "a", "hold"))
            await asyncio.wait(
                {asyncio.create_task(first.until(1)), asyncio.create_task(second.until(1))},
                return_when=asyncio.FIRST_COMPLETED,
            )
            draining, target = (one, first) if first.held else (two, second)
            stopping = asyncio.create_task(draining.stop(30))
            assert await client.call("echo", "b", "add", 20, 3) == 23
            assert client.statistics().connected_to != f"http://{draining.address}"
            target.release()
            assert await held == "held"
            await stopping
        for waiter in asyncio.all_tasks() - {asyncio.current_task()}:
            waiter.cancel()


async def test_a_refusal_that_says_the_turn_never_ran_is_tried_on_the_next_connection() -> None:
    async with connected() as (client, target):
        held = asyncio.create_task(client.call("echo", "a", "hold"))
        await target.until(1)
        target.release(SiloStopping("stopping"))
        await target.until(1)
        target.release()
        assert await held == "held"


async def test_leaving_fails_what_is_out_and_a_closed_client_says_so() -> None:
    async with serving() as (gateway, target):
        async with Client(gateway.address) as client:
            held = asyncio.create_task(client.call("echo", "a", "hold"))
            await target.until(1)
        with pytest.raises(SiloUnavailable, match="closed"):
            await held
        with pytest.raises(SiloUnavailable, match="closed") as late:
            await client.call("echo", "a", "echo")
        assert late.value.turn_ran is False
        target.release()


async def test_a_client_that_was_not_opened_says_how() -> None:
    with pytest.raises(SiloUnavailable, match="async with"):
        await Client("127.0.0.1:1").grain(Echo, "a").echo(1)


async def test_a_frozen_silo_is_noticed_within_two_heartbeats_tra_005() -> None:
    code = (
        "import asyncio\n"
        "from tests.unit.silo.gateway.serving import serving\n"
        "async def main():\n"
        "    async with serving() as (gateway, _):\n"
        "        print(gateway.address, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=Path.cwd()
    )
    try:
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        loop = asyncio.get_running_loop()
        async with Client(address, heartbeat=0.5) as client:
            held = [asyncio.create_task(client.call("echo", "a", "hold")) for _ in range(100)]
            await client.call("echo", "a", "echo")
            process.send_signal(signal.SIGSTOP)
            frozen_at = loop.time()
            results = await asyncio.gather(*held, return_exceptions=True)
            assert loop.time() - frozen_at < 4  # 2 heartbeats, with room for a busy machine
            assert {type(result) for result in results} == {SiloUnavailable}
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    "url", ["", "ftp://h:1", "http://h", "http://h:1/path", "http://user:pw@h:1", "http://:1", "h:x"]
)
def test_what_is_no_gateway_address_is_refused_without_printing_a_password(url: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT") as refused:
        gateway_url(url)
    assert "pw" not in str(refused.value)


def test_addresses_have_one_form() -> None:
    assert gateway_url("127.0.0.1:1") == gateway_url("ws://127.0.0.1:1/") == "http://127.0.0.1:1"
    assert gateway_url("https://[::1]:1") == "https://[::1]:1"
    with pytest.raises(ValueError, match="needs the address"):
        Client()


async def test_the_blocking_twin_returns_values_and_raises_the_same_errors() -> None:
    async with serving() as (gateway, _):

        def script() -> None:
            with BlockingClient(gateway.address) as client:
                echo = client.grain(Echo, "a")
                assert echo.add(2, 3) == 5
                assert client.call("echo", "a", "echo", 1.5) == 1.5
                with pytest.raises(GrainCallFailed):
                    echo.fail()
                with pytest.raises(CallTimeout):
                    echo.with_options(timeout=0.05).hold()
                assert client.statistics().connections_made == 1
            with pytest.raises(SiloUnavailable, match="not open"):
                echo.add(1, 1)
            client.close()

        await asyncio.to_thread(script)


def test_the_blocking_twin_fails_clearly_without_a_silo_and_leaves_no_thread() -> None:
    with (
        pytest.raises(SiloUnavailable, match="Connection refused"),
        BlockingClient(f"127.0.0.1:{free_port()}"),
    ):
        pass
