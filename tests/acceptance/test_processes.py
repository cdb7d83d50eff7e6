"""Several silo processes over one store, as a person runs and operates them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from farro.client import Client
from tests.acceptance.processes import FARRO, GRAINS, Outcome, farro, farro_here
from tests.acceptance.programs import Program, has_ended
from tests.acceptance.served_grains import Counter
from tests.support.ports import free_port, free_ports
from tests.support.servers import Server

Start = Callable[..., Program]
CALLERS = 4


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'farro.db'}"
    server: Server = request.getfixturevalue("postgres_server")
    return f"postgresql://farro@127.0.0.1:{server.port}/postgres?schema=s{uuid.uuid4().hex}"


@pytest.fixture
def start(tmp_path: Path, store: str) -> Generator[Start]:
    """Starts ``farro silo`` and waits until it is ready; it is gone afterwards."""
    programs: list[Program] = []

    def started(*arguments: str, ready: str = "processes ready") -> Program:
        program = Program([*FARRO, "silo", GRAINS, "--store", store, *arguments], tmp_path)
        programs.append(program)
        program.wait_line(ready)
        return program

    yield started
    for program in programs:
        if program.process.poll() is None:
            program.stop()
        program.close()


def addresses(program: Program) -> list[str]:
    return program.lines[-1].partition(" ready at ")[2].split(", ")


async def run(*arguments: str, store: str) -> Outcome:
    """A ``farro`` command in a thread of this process."""
    return await asyncio.to_thread(farro_here, *arguments, "--store", store)


async def silos(store: str, *options: str) -> list[dict[str, Any]]:
    done = await run("cluster", "status", "--json", *options, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)["silos"]
    return found


async def status_until(store: str, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    async with asyncio.timeout(40):
        while not holds(found := await silos(store)):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.1)
    return found


def balanced(found: list[dict[str, Any]]) -> bool:
    return len(found) > 1 and all(each["partitions"] for each in found)


@contextlib.asynccontextmanager
async def callers(urls: list[str]) -> AsyncGenerator[Callable[[], int]]:
    """Clients that add to counters all the time; none of their calls may fail, and none be lost."""
    done = [0] * CALLERS
    going = True

    async def add(number: int) -> None:
        async with Client(*urls, timeout=20) as client:
            while going:
                key = f"{number}-{done[number] % 20}"
                count = await client.grain(Counter, key).add()
                assert count == done[number] // 20 + 1, "lost, or done twice"
                done[number] += 1
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(add(number))
        yield lambda: sum(done)
        going = False


async def more(count: Callable[[], int], by: int) -> None:
    """Wait until so many more calls have succeeded."""
    wanted = count() + by
    async with asyncio.timeout(30):
        while count() < wanted:  # noqa: ASYNC110 - other tasks count
            await asyncio.sleep(0.02)


# ---------------------------------------------------------------- start and stop


async def test_processes_share_a_store_and_stop_together(start: Start, store: str) -> None:
    first = free_ports(3)
    program = start("--processes", "3", "--listen", f"127.0.0.1:{first}")
    urls = addresses(program)
    assert urls == [f"http://127.0.0.1:{port}" for port in range(first, first + 3)]
    found = await status_until(store, balanced)
    assert [each["status"] for each in found] == ["active"] * 3
    assert [each["says"]["stage"] for each in found] == ["healthy"] * 3
    for url in urls:
        async with Client(url) as client:
            for key in "abcdef":
                await client.grain(Counter, key).add()
            values = [await client.grain(Counter, key).value() for key in "abcdef"]
    assert values == [3] * 6, "whichever is asked"
    assert await asyncio.to_thread(program.stop) == 0
    assert await silos(store) == []
    assert [each["status"] for each in await silos(store, "--all")] == ["left"] * 3


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_what_is_wrong_is_said_once_and_before_anything_starts(tmp_path: Path, store: str) -> None:
    for arguments, code, says in [
        (("nosuch",), 1, "there is no module nosuch"),
        ((GRAINS, "--store", "memory://"), 2, "lives inside one process"),
        ((GRAINS, "--store", "mongo://x"), 2, "no store is called 'mongo'"),
        ((GRAINS, "--listen", "127.0.0.1:65535"), 2, "would need port 65536"),
        ((GRAINS, "--listen", "0.0.0.0:500"), 2, "--allow-insecure-bind"),
    ]:
        done = farro("silo", "--processes", "2", *arguments, folder=tmp_path)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("Error: ") and says in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


async def test_a_killed_supervisor_takes_its_silos_with_it_and_they_say_good_bye(
    start: Start, store: str
) -> None:
    program = start("--processes", "2", "--listen", "127.0.0.1:0")
    program.process.kill()
    await status_until(store, lambda found: found == [])
    assert [each["status"] for each in await silos(store, "--all")] == ["left"] * 2


# ---------------------------------------------------------------- restarts


def pid_at(url: str) -> int:
    """The process that listens there."""
    port = int(url.rpartition(":")[2])
    return next(
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == "LISTEN" and each.laddr and each.laddr.port == port and each.pid is not None
    )


async def test_a_rolling_restart_fails_no_call(start: Start, store: str) -> None:
    program = start("--processes", "3", "--listen", f"127.0.0.1:{free_ports(3)}")
    urls = addresses(program)
    before = [each["number"] for each in await status_until(store, balanced)]
    async with callers(urls) as count:
        await more(count, 50)
        program.signal(signal.SIGHUP)
        await asyncio.to_thread(program.wait_line, "all 3 processes have been restarted")
        await more(count, 50)
    after = [each["number"] for each in await silos(store)]
    assert len(after) == 3 and not set(after) & set(before)
    assert await asyncio.to_thread(program.stop) == 0


async def test_a_killed_silo_comes_back_at_its_port(start: Start, store: str) -> None:
    program = start("--processes", "2", "--listen", f"127.0.0.1:{free_ports(2)}")
    urls = addresses(program)
    await status_until(store, balanced)
    os.kill(pid_at(urls[1]), signal.SIGKILL)
    await asyncio.to_thread(program.wait_line, "process 2 ended: SIGKILL; it starts again")
    await asyncio.to_thread(program.wait_line, rf"\[2\] farro silo 3 ready at {urls[1]}")
    found = await status_until(store, balanced)
    assert [each["number"] for each in found] == [1, 3]
    async with Client(urls[1]) as client:
        assert [await client.grain(Counter, key).add() for key in "abcdef"] == [1] * 6
    assert await asyncio.to_thread(program.stop) == 0


async def test_a_silo_that_is_frozen_is_killed_and_replaced(start: Start, store: str) -> None:
    program = start("--processes", "2", "--listen", f"127.0.0.1:{free_ports(2)}")
    urls = addresses(program)
    await status_until(store, balanced)
    pid = pid_at(urls[1])
    os.kill(pid, signal.SIGSTOP)
    await asyncio.to_thread(program.wait_line, "process 2 .* gives no sign of life")
    await asyncio.to_thread(program.wait_line, rf"\[2\] farro silo \d+ ready at {urls[1]}")
    assert has_ended(pid)
    async with Client(*urls) as client:
        assert [await client.grain(Counter, key).add() for key in "abcdef"] == [1] * 6
    assert await asyncio.to_thread(program.stop) == 0


# ---------------------------------------------------------------- drain and status


async def test_a_drained_silo_hands_over_and_ends_while_calls_go_on(start: Start, store: str) -> None:
    program = start("--processes", "2", "--listen", f"127.0.0.1:{free_ports(2)}")
    urls = addresses(program)
    await status_until(store, balanced)
    async with callers(urls) as count:
        await more(count, 50)
        done = await asyncio.to_thread(farro_here, "cluster", "drain", "2", "--connect", urls[1])
        await more(count, 50)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "silo 2 has left"
    (left,) = await silos(store)
    assert (left["number"], left["says"]["partitions"]) == (1, left["partitions"])
    await asyncio.to_thread(program.wait_line, "process 2 has drained and stays stopped")
    again = await run("cluster", "drain", "2", store=store)
    assert again.returncode == 1 and "silo 2 has left already" in again.stderr
    assert await asyncio.to_thread(program.stop) == 0


async def test_who_asks_for_the_same_drain_waits_for_it_too(start: Start, store: str, tmp_path: Path) -> None:
    program = start("--processes", "2", "--listen", f"127.0.0.1:{free_ports(2)}")
    urls = addresses(program)
    await status_until(store, balanced)
    async with Client(*urls) as client, asyncio.TaskGroup() as held_up:
        for key in "abcdefgh":
            held_up.create_task(client.grain(Counter, key).add_slowly(9))
        await asyncio.sleep(0.2)
        # in a process of its own: two commands in this one would write to each other's output
        ask = functools.partial(farro, "cluster", "drain", "2", "--store", store, folder=tmp_path)
        first = asyncio.create_task(asyncio.to_thread(ask))
        await status_until(store, lambda found: any(each["status"] == "draining" for each in found))
        second = await run("cluster", "drain", "2", store=store)
        assert ((await first).returncode, second.returncode, second.stderr) == (0, 0, "")
    told = second.stdout.splitlines()
    assert "silo 2 at" in told[0] and "asked before" in told[0] and told[-1] == "silo 2 has left"
    assert await asyncio.to_thread(program.stop) == 0, "although the other one was just ending"


async def test_drain_names_what_it_cannot_do(start: Start, store: str) -> None:
    program = start("--listen", "127.0.0.1:0", ready="ready at")
    unknown = await run("cluster", "drain", "7", store=store)
    assert unknown.returncode == 1
    assert unknown.stderr == "Error: there is no silo 7 on record; members are: 1\n"
    program.process.kill()
    program.process.wait()
    gone = await run("cluster", "drain", "1", store=store)
    assert gone.returncode == 1 and "could not be asked" in gone.stderr
    assert len(gone.stderr.splitlines()) == 1
    (dead,) = await silos(store)
    assert dead["says"] is None and "Connection refused" in dead["unreachable"], "told from the rows alone"


async def test_CLU_011_a_port_in_use_is_named_and_leaves_no_member(
    start: Start, store: str, tmp_path: Path
) -> None:
    port = free_port()
    start("--listen", f"127.0.0.1:{port}", ready="ready at")
    second = await asyncio.to_thread(
        farro, "silo", GRAINS, "--store", store, "--listen", f"127.0.0.1:{port}", folder=tmp_path
    )
    assert second.returncode == 1
    assert f"Error: 127.0.0.1:{port} is already in use" in second.stderr
    assert [each["number"] for each in await silos(store, "--all")] == [1]
    table = await run("cluster", "status", "--partitions", store=store)
    assert table.stdout.splitlines()[0].endswith(" 0 free")
    assert table.stdout.count("active") == 1
