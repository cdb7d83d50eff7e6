"""A person runs a silo: it starts, is called, is killed, comes back, and is stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Generator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

from farro.client import (
    Client,
    GrainCallFailed,
    InvalidPayload,
    NoSuchMethod,
    StorageUnavailable,
    UnknownGrainType,
)
from farro.client.errors import CommitOutcomeUnknown, FarroError, InvalidGrainId
from farro.silo.cli.stopping import SAME_ACT_S
from tests.acceptance.processes import GRAINS, NotReady, Serve, SiloProcess, farro, obey_permissions, silos
from tests.acceptance.served_grains import Bell, Counter, Store

STORE = ("--store", "sqlite:///farro.db")
PROTOCOL = "/farro/v1"


@pytest.fixture
def serve(tmp_path: Path) -> Generator[Serve]:
    with silos(tmp_path) as start:
        yield start


async def rings(client: Client, key: str, at_least: int) -> int:
    """Wait until that bell has rung so often; the fact is in the grain."""
    async with asyncio.timeout(20):
        while (rung := await client.grain(Bell, key).rung()) < at_least:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.02)
    return rung


# ---------------------------------------------------------------- life and death


async def test_a_silo_says_one_line_when_it_is_ready_and_answers(serve: Serve) -> None:
    silo = serve()
    assert silo.lines == [
        f"farro silo 1 ready at {silo.url}, store sqlite:///{silo.errors_path.parent / 'farro.db'}, "
        "grains: bells, blobs, counters, values"
    ]
    async with Client(silo.url) as client:
        assert await client.grain(Counter, "a").add(5) == 5
    assert silo.errors == ""


async def test_state_and_ticks_go_on_after_a_kill(serve: Serve) -> None:
    first = serve(GRAINS, *STORE, "--demo-clock", "2026-03-01T00:00:00Z:20")
    async with Client(first.url) as client:
        await client.grain(Counter, "a").add(5)
        await client.grain(Bell, "tower").ring_every(5)  # 60 in the absence: FIRE_ALL delivers up to 100
        before = await rings(client, "tower", 2)
        first.kill()
    second = serve(GRAINS, *STORE, "--demo-clock", "2026-03-01T00:05:00Z:20")
    async with Client(second.url) as client:
        assert await client.grain(Counter, "a").value() == 5
        await rings(client, "tower", before + 50)
        due = await client.grain(Bell, "tower").due()
    steps = {after - earlier for earlier, after in pairwise(due)}
    assert steps == {timedelta(seconds=5)}, "each instant once and in order, also those of the absence"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_lets_the_running_turn_finish_and_exits_with_0(
    serve: Serve, number: signal.Signals
) -> None:
    silo = serve()
    async with Client(silo.url) as client:
        slow = asyncio.ensure_future(client.grain(Counter, "a").add_slowly(0.5))
        await client.grain(Counter, "b").add()  # sent after it, so it has begun
        silo.signal(number)
        assert await slow == 1
        assert await asyncio.to_thread(silo.wait_end) == 0
    assert number.name in silo.lines[1]
    assert silo.lines[-1] == "farro silo 1: stopped"
    assert silo.errors == ""


async def test_CLI_005_a_client_sees_close_1001(serve: Serve) -> None:
    silo = serve()
    async with aiohttp.ClientSession() as session, session.ws_connect(silo.url + PROTOCOL) as socket_:
        silo.signal(signal.SIGTERM)
        while (message := await socket_.receive(timeout=15)).type is aiohttp.WSMsgType.BINARY:
            continue
        assert socket_.close_code == 1001, message
    assert await asyncio.to_thread(silo.wait_end) == 0


async def test_a_turn_that_does_not_end_is_cut_off_at_the_stop_limit(serve: Serve) -> None:
    silo = serve(GRAINS, *STORE, "--stop-timeout", "0.5")
    async with Client(silo.url) as client:
        hung = asyncio.ensure_future(client.grain(Counter, "a").add_slowly(600))
        await client.grain(Counter, "b").add()
        silo.signal(signal.SIGTERM)
        assert await asyncio.to_thread(silo.wait_end, 8) == 0
        with pytest.raises(FarroError):
            await hung
    assert "cut off" in silo.errors or "in flight" in silo.errors


async def test_a_second_signal_ends_it_at_once_with_a_code_that_is_not_0(serve: Serve) -> None:
    silo = serve(GRAINS, *STORE, "--stop-timeout", "600")
    async with Client(silo.url) as client:
        hung = asyncio.ensure_future(client.grain(Counter, "a").add_slowly(600))
        await client.grain(Counter, "b").add()
        silo.signal(signal.SIGTERM)
        await asyncio.to_thread(silo.wait_line, re.compile("second signal"))
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(silo.process.wait, SAME_ACT_S)
        silo.signal(signal.SIGTERM)
        assert await asyncio.to_thread(silo.wait_end, 5) == 128 + signal.SIGTERM
        with pytest.raises(FarroError):
            await hung


async def test_a_turn_that_blocks_the_loop_cannot_keep_the_process_alive(serve: Serve) -> None:
    silo = serve(GRAINS, *STORE, "--stop-timeout", "0.3")
    async with Client(silo.url) as client:
        blocked = asyncio.ensure_future(client.grain(Counter, "a").block(600))
        await asyncio.to_thread(silo.wait_line, re.compile("the loop is blocked"))
        silo.signal(signal.SIGTERM)
        assert await asyncio.to_thread(silo.wait_end, 10) == 1
        with pytest.raises(FarroError):
            await blocked
    assert "something blocks" in silo.lines[-1]


def test_a_silo_ends_with_the_parent_that_holds_its_stdin(serve: Serve) -> None:
    silo = serve()
    assert silo.process.stdin is not None
    silo.process.stdin.close()
    assert silo.process.wait(15) == 0


# ---------------------------------------------------------------- what cannot start


def refused(serve: Serve, *arguments: str) -> tuple[int, str]:
    """The exit code and the one line on stderr of a silo that does not start."""
    silo = serve(*arguments, ready=False)
    with pytest.raises(NotReady):
        silo.wait_ready()
    lines = silo.errors.splitlines()
    assert len([line for line in lines if line.startswith("Error: ")]) == 1, silo.errors
    assert "Traceback" not in silo.errors
    return silo.process.wait(10), lines[-1]


def test_a_port_in_use_is_one_clear_error(serve: Serve, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = farro("silo", GRAINS, *STORE, "--listen", address, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {address} is already in use")
    assert len(done.stderr.splitlines()) == 1


def test_a_second_silo_on_the_file_joins_the_first(serve: Serve) -> None:
    assert (serve().number, serve().number) == (1, 2)


def test_a_store_of_a_killed_silo_is_free_at_once(serve: Serve) -> None:
    serve().kill()
    assert serve().number == 2


def test_a_file_that_may_not_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "farro.db").touch(mode=0o000)
    done = farro("silo", GRAINS, *STORE, "--listen", "127.0.0.1:0", folder=tmp_path, before=obey_permissions)
    assert done.returncode == 1 and "permission" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_other_addresses_than_loopback_have_to_be_asked_for(tmp_path: Path) -> None:
    done = farro("silo", GRAINS, *STORE, "--listen", "0.0.0.0:0", folder=tmp_path)
    assert done.returncode == 2 and "--allow-insecure-bind" in done.stderr
    assert not (tmp_path / "farro.db-wal").exists()


# ---------------------------------------------------------------- bad input, and the silo lives on


async def test_bad_input_is_one_clear_error_each_and_the_silo_lives_on(shared: SiloProcess) -> None:
    silo = shared
    async with Client(silo.url) as client:
        bad: list[tuple[type[Exception], str, tuple[object, ...]]] = [
            (InvalidPayload, "amount", ("counters", "a", "add", "five")),
            (InvalidPayload, "add", ("counters", "a", "add", 1, 2)),
            (UnknownGrainType, "nobody", ("nobody", "a", "add")),
            (NoSuchMethod, "no method", ("counters", "a", "subtract")),
            (NoSuchMethod, "no method", ("counters", "a", "_private")),
            (NoSuchMethod, "no method", ("counters", "a", "__init__")),
            (NoSuchMethod, "no method", ("counters", "a", "on_activate")),
            (InvalidGrainId, "key", ("counters", "", "add")),
            (InvalidGrainId, "key", ("counters", "k" * 10_000, "add")),
            (InvalidPayload, "bytes", ("values", "a", "echo", b"x" * (2 << 20))),
        ]
        for error, says, call in bad:
            with pytest.raises(error, match=says):
                await client.call(*call)  # type: ignore[arg-type]
        with pytest.raises(GrainCallFailed, match="on purpose"):
            await client.grain(Counter, "fails").fail()
        assert await client.grain(Counter, "fails").add() == 1
    assert silo.process.poll() is None
    assert "on purpose" in silo.errors
    assert not [line for line in silo.errors.splitlines() if line.startswith("ERROR forged")]


async def test_malformed_frames_close_their_connection_and_no_other(shared: SiloProcess) -> None:
    silo = shared
    async with Client(silo.url) as client, aiohttp.ClientSession() as session:
        for garbage in (b"", b"\xc1", b"\x93\x01\x02", b"\xdd\xff\xff\xff\xff", os.urandom(4096)):
            async with session.ws_connect(silo.url + PROTOCOL) as socket_:
                await socket_.send_bytes(garbage)
                async with asyncio.timeout(10):
                    while (await socket_.receive()).type is aiohttp.WSMsgType.BINARY:
                        continue
                assert socket_.close_code in (1002, 1003, 1007, 1009)
        assert await client.grain(Counter, "unharmed").add() == 1


async def test_a_full_disk_fails_that_call_only_and_needs_no_restart(serve: Serve) -> None:
    silo = serve(file_bytes_max=3 << 20)
    async with Client(silo.url) as client:
        assert await client.grain(Counter, "a").add(7) == 7
        failures = 0
        for place in range(8):
            try:
                await client.grain(Store, f"b{place}").put(700_000)
            except (StorageUnavailable, CommitOutcomeUnknown) as error:
                assert "farro.db" in str(error)
                failures += 1
        assert failures > 0, "the limit was never reached"
        assert await client.grain(Counter, "a").value() == 7
        sizes = [await client.grain(Store, f"b{place}").size() for place in range(8)]
        assert 0 < sum(1 for size in sizes if size) <= 8 - failures
    silo.signal(signal.SIGTERM)
    assert await asyncio.to_thread(silo.wait_end) in (0, 1)
    after = serve()
    async with Client(after.url) as client:
        assert await client.grain(Counter, "a").add() == 8
