"""Several silo processes on one store, without chaos: addresses, services, restarts one at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from farro.client import Client
from tests.acceptance.processes import NotReady
from tests.cluster.chaos_grains import MODULE, Ledger
from tests.cluster.silo_process import SiloProcess
from tests.support import servers

pytestmark = [pytest.mark.serial, pytest.mark.service, pytest.mark.timeout(120)]

KEYS = [f"k{number}" for number in range(24)]
MOVED_MAX_S = 30.0


class Silos:
    """Starts silo processes in a folder; all are gone afterwards."""

    def __init__(self, folder: Path, store: str, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._store = store
        self._stack = stack
        self._count = 0

    async def launch(self, *arguments: str) -> SiloProcess:
        self._count += 1
        process = await SiloProcess.start(
            (MODULE, "--store", self._store, *(arguments or ("--listen", "127.0.0.1:0"))),
            self._folder,
            f"silo-{self._count}",
        )
        self._stack.push_async_callback(process.end)
        return process

    async def start(self, *arguments: str) -> SiloProcess:
        process = await self.launch(*arguments)
        await process.wait_ready()
        return process


@pytest.fixture(params=["postgres", "sqlite"])
async def silos(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Silos]:
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            store = f"sqlite:///{tmp_path / 'farro.db'}"
        else:
            server: servers.Server = request.getfixturevalue("postgres_server")
            store = await own_database(server, f"d{os.getpid()}_{abs(hash(request.node.name))}", stack)
        yield Silos(tmp_path, store, stack)


async def own_database(server: servers.Server, name: str, stack: AsyncExitStack) -> str:
    where = f"postgresql://farro@127.0.0.1:{server.port}"
    connection = await asyncpg.connect(f"{where}/postgres")
    stack.push_async_callback(connection.close)
    await connection.execute(f"CREATE DATABASE {name}")
    stack.push_async_callback(connection.execute, f"DROP DATABASE {name} WITH (FORCE)")
    return f"{where}/{name}"


def url(process: SiloProcess) -> str:
    assert process.listens is not None
    return f"http://{process.listens[0]}:{process.listens[1]}"


async def homes(client: Client) -> list[int]:
    """The process that each grain lives in."""
    return list(await asyncio.gather(*(client.grain(Ledger, key).process() for key in KEYS)))


async def spread_over(client: Client, processes: set[int]) -> None:
    """Until the grains live in exactly these processes."""
    async with asyncio.timeout(MOVED_MAX_S):
        while set(await homes(client)) != processes:  # noqa: ASYNC110 - other processes move them
            await asyncio.sleep(0.1)


async def test_two_silos_share_the_grains_and_whoever_is_asked_answers(silos: Silos) -> None:
    one, two = await asyncio.gather(silos.start(), silos.start())
    async with Client(url(one)) as by_one, Client(url(two)) as by_two:
        await spread_over(by_one, {one.pid, two.pid})
        for number, key in enumerate(KEYS):
            assert await by_one.grain(Ledger, key).add(number, 1) == 0
            assert await by_two.grain(Ledger, key).add(100 + number, 1) == 1
        assert await homes(by_one) == await homes(by_two)


async def test_a_silo_that_is_killed_is_replaced_by_the_others_with_everything_committed(
    silos: Silos,
) -> None:
    one, two = await asyncio.gather(silos.start(), silos.start())
    async with Client(url(one)) as client:
        await spread_over(client, {one.pid, two.pid})
        for number, key in enumerate(KEYS):
            await client.grain(Ledger, key).add(number, 1)
        await two.kill()
        await spread_over(client, {one.pid})
        assert [await client.grain(Ledger, key).length() for key in KEYS] == [1] * len(KEYS)


async def test_a_planned_stop_fails_no_call(silos: Silos) -> None:
    one, two = await asyncio.gather(silos.start(), silos.start())
    async with Client(url(one)) as client:
        await spread_over(client, {one.pid, two.pid})
        over = asyncio.Event()

        async def call_on(key: str, number: int) -> int:
            made = 0
            while not over.is_set():
                await client.grain(Ledger, key).add(number << 32 | made, 1)
                made += 1
            return made

        calling = [asyncio.create_task(call_on(key, number)) for number, key in enumerate(KEYS)]
        try:
            assert await two.stop() == 0
        finally:
            over.set()
            made = await asyncio.gather(*calling)
        assert set(await homes(client)) == {one.pid}
        assert [await client.grain(Ledger, key).length() for key in KEYS] == made


async def test_a_second_silo_on_the_same_port_is_one_clear_error_and_no_member(silos: Silos) -> None:
    one = await silos.start()
    assert one.listens is not None
    address = f"127.0.0.1:{one.listens[1]}"
    other = await silos.launch("--listen", address)
    with pytest.raises(NotReady):
        await other.wait_ready()
    assert await other.wait() == 1
    errors = [line for line in other.errors.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and f"{address} is already in use" in errors[0], other.errors
    async with Client(url(one)) as client:
        assert await client.grain(Ledger, "a").add(1, 1) == 0
    third = await silos.start()
    assert third.number == one.number + 1, "the one that did not start left no trace"


async def test_two_services_on_one_store_never_meet(silos: Silos) -> None:
    red = await silos.start("--listen", "127.0.0.1:0", "--service-id", "red")
    blue = await silos.start("--listen", "127.0.0.1:0", "--service-id", "blue")
    async with Client(url(red)) as to_red, Client(url(blue)) as to_blue:
        for number, key in enumerate(KEYS):
            assert await to_red.grain(Ledger, key).add(number, 1) == 0
            assert await to_blue.grain(Ledger, key).add(100 + number, 1) == 0
        assert set(await homes(to_red)) == {red.pid}
        await red.kill()
        assert set(await homes(to_blue)) == {blue.pid}
        assert [await to_blue.grain(Ledger, key).length() for key in KEYS] == [1] * len(KEYS)
    assert (red.number, blue.number) == (1, 1), "each counts its own silos"
