"""A silo inside somebody's program: it starts and ends with it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from examples import hosting_aiohttp
from farro.client import Client
from farro.silo import Silo
from tests.acceptance.processes import HOME, farro
from tests.acceptance.programs import WITHIN_S, Program, has_ended
from tests.acceptance.served_grains import Counter
from tests.support.ports import free_port

pytest.importorskip("fastapi", reason="FastAPI belongs to the tools of development")
pytest.importorskip("uvicorn", reason="uvicorn belongs to the tools of development")

EXAMPLES = HOME / "examples"


# ---------------------------------------------------------------- within one process


def left_behind() -> tuple[object, ...]:
    """What a silo could forget to put back, of this process."""
    return (
        sorted(thread.name for thread in threading.enumerate() if thread.name != "asyncio_0"),
        [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
        sys.getswitchinterval(),
        gc.get_threshold(),
        sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if is_file(path)),
    )


async def nothing_more_than(before: tuple[object, ...]) -> None:
    """A thread that has closed its connection still has to end."""
    for _ in range(100):
        if left_behind() == before:
            return
        await asyncio.sleep(0.02)
    assert left_behind() == before


def is_file(descriptor: Path) -> bool:
    try:
        return descriptor.readlink().suffix in (".db", ".lock")
    except FileNotFoundError:
        return False  # the one that lists them


async def post(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.post(url) as response:
        return await response.json()


async def test_an_aiohttp_application_hosts_a_silo_and_may_be_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARRO_STORE", f"sqlite:///{tmp_path / 'visitors.db'}")
    monkeypatch.setenv("FARRO_LISTEN", f"127.0.0.1:{free_port()}")
    module = hosting_aiohttp
    before = left_behind()
    for number in (1, 2, 3):
        module = importlib.reload(module)
        runner = web.AppRunner(module.make_app(), handle_signals=False)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        silo = runner.app[module.SILO]
        assert silo.number == number, "a new one each time, on the same port and the same file"
        assert await post(f"http://127.0.0.1:{runner.addresses[0][1]}/visitors/lobby") == {"visitors": number}
        async with Client(f"http://{silo.address}") as client:
            assert await client.call("visitors", "other", "come") == number
        await runner.cleanup()
        await nothing_more_than(before)


async def test_two_silos_at_the_same_time_in_one_process(tmp_path: Path) -> None:
    before = left_behind()
    store = f"sqlite:///{tmp_path / 'farro.db'}"
    async with Silo([Counter], store, "127.0.0.1:0") as first:
        async with Silo([Counter], store, "127.0.0.1:0") as second:
            assert first.address != second.address
            for place in range(20):
                assert await first.grain(Counter, str(place)).add() == 1
                assert await second.grain(Counter, str(place)).add() == 2
        assert [await first.grain(Counter, str(place)).add() for place in range(20)] == [3] * 20
    await nothing_more_than(before)


async def test_the_first_of_two_may_end_first(tmp_path: Path) -> None:
    before = left_behind()
    store = f"sqlite:///{tmp_path / 'farro.db'}"
    first, second = (Silo([Counter], store, "127.0.0.1:0") for _ in range(2))
    await first.start()
    await second.start()
    await first.grain(Counter, "a").add()
    await first.stop()
    assert await second.grain(Counter, "a").add() == 2
    await second.stop()
    await nothing_more_than(before)


# ---------------------------------------------------------------- as a program

Run = Callable[..., Program]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Run]:
    """Starts Python programs in a folder with copies of the examples."""
    for name in ("hosting_aiohttp.py", "hosting_fastapi.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setenv("FARRO_STORE", f"sqlite:///{tmp_path / 'visitors.db'}")
    monkeypatch.setenv("FARRO_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    programs: list[Program] = []

    def started(*arguments: str) -> Program:
        programs.append(Program([sys.executable, *arguments], tmp_path))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


def visitors(port: str) -> int:
    """Comes once more; a connection that is refused is tried again for a while.

    A worker of ``uvicorn --reload`` says "startup complete" before it listens.
    """
    request = urllib.request.Request(f"http://127.0.0.1:{port}/visitors/lobby", method="POST")
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                count: int = json.load(response)["visitors"]
                return count
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > until:
                raise
        time.sleep(0.05)


def members(folder: Path) -> list[dict[str, Any]]:
    """Those that the store has as members, by the command line."""
    store = f"sqlite:///{folder / 'visitors.db'}"
    done = farro("cluster", "status", "--store", store, "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    silos: list[dict[str, Any]] = json.loads(done.stdout)["silos"]
    return silos


def test_the_aiohttp_example_runs_and_ends_in_order(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port())
    monkeypatch.setenv("PORT", port)
    program = run("hosting_aiohttp.py")
    program.wait_line("Running on")
    assert (visitors(port), visitors(port)) == (1, 2)
    assert [each["status"] for each in members(tmp_path)] == ["active"]
    assert program.stop() == 0
    assert members(tmp_path) == []


def test_an_operator_drains_a_silo_that_a_program_hosts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", str(free_port()))
    program = run("hosting_aiohttp.py")
    program.wait_line("Running on")
    store = f"sqlite:///{tmp_path / 'visitors.db'}"
    done = farro("cluster", "drain", "1", "--store", store, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert program.wait_end() == 0


def test_the_fastapi_example_runs_and_ends_in_order(run: Run, tmp_path: Path) -> None:
    program = run("-m", "uvicorn", "hosting_fastapi:app", "--port", "0")
    port = program.wait_line(r"running on http://127.0.0.1:(\d+)")[1]
    assert (visitors(port), visitors(port)) == (1, 2)
    assert program.stop() in (0, -signal.SIGTERM), "uvicorn ends by the signal it was given"
    assert program.said("Application shutdown complete")
    assert members(tmp_path) == []


def test_uvicorn_reload_replaces_the_silo_by_one_with_the_new_code(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARRO_LISTEN", f"127.0.0.1:{free_port()}")  # the very port that the old one had
    program = run("-m", "uvicorn", "hosting_fastapi:app", "--port", str(free_port()), "--reload")
    port = program.wait_line(r"running on http://127.0.0.1:(\d+)")[1]
    old = int(program.wait_line(r"Started server process \[(\d+)\]")[1])
    program.wait_line("startup complete")
    assert visitors(port) == 1
    source = tmp_path / "hosting_fastapi.py"
    source.write_text(source.read_text().replace("self.state.value += 1", "self.state.value += 100"))
    program.wait_line("startup complete")
    assert visitors(port) == 101, "the state of before, the code of now"
    assert has_ended(old)
    assert [each["number"] for each in members(tmp_path)] == [2]
    program.stop()
    assert members(tmp_path) == []
