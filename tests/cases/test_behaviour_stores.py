"""Public cases about stores that several silos or several programs share: SQLite files and PostgreSQL.

Real stores and real time; nothing here waits for a clock.  Ids and facts: tests/cases/data/behaviour.jsonl.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from farro.client.errors import CallTimeout
from farro.client.reminders import ReminderListing, TickStatus
from farro.providers.conformance.made import NOW
from farro.providers.errors import BadStoreUrl, Unavailable
from farro.providers.opening import open_provider
from farro.providers.postgres.address import read_address
from farro.providers.postgres.connecting import Connector
from farro.providers.postgres.pool import ReadPool
from farro.providers.sqlite.store import SqliteProvider
from farro.silo import Grain, Silo, register_reminder
from tests.support.servers import Server
from tests.support.tcp_proxy import CLEAR, CUT, tcp_proxy
from tests.unit.silo.cluster.cluster_kit import QUICK, until

NAMES = count(1)
POSTGRES = pytest.param("postgresql", marks=pytest.mark.service)


@dataclass
class Lines:
    lines: list[str] = field(default_factory=list)


class Diary(Grain[Lines], name="diary"):
    ticks: ClassVar[list[tuple[int, str, str]]] = []

    async def write(self, line: str) -> list[str]:
        self.state.lines.append(line)
        return self.state.lines

    async def remind(self, text: str, after_s: float) -> None:
        self.schedule(self.ring, text, after=timedelta(seconds=after_s), key="x")

    async def ring(self, text: str) -> None:
        Diary.ticks.append((self._farro_runtime.desk.number, self.key, text))
        self.state.lines.append(text)


@register_reminder("nightly", cron="0 0 0 * * *")
class Nightly(Grain, name="nightly"):
    async def receive_reminder(self, name: str, status: TickStatus) -> None: ...


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that does not exist yet."""
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgres_server")
        return f"postgresql://farro@127.0.0.1:{server.port}/postgres?schema=cases_{next(NAMES)}&partitions=64"
    return f"sqlite:///{tmp_path / 'cases.db'}" if request.param == "sqlite" else f"memory://c{next(NAMES)}"


def a_silo(url: str, service_id: str = "default", *grains: type[Grain[Any]]) -> Silo:
    return Silo(grains or (Diary,), url, "127.0.0.1:0", options=QUICK, service_id=service_id)


@asynccontextmanager
async def silos(*made: Silo) -> AsyncIterator[tuple[Silo, ...]]:
    """All started at the same time; all stopped in the end."""
    results = await asyncio.gather(*(silo.start() for silo in made), return_exceptions=True)
    try:
        assert results == [None] * len(made)
        yield made
    finally:
        for silo in made:
            await silo.stop()


async def listed(silo: Silo) -> list[ReminderListing]:
    return [each async for each in silo.reminders.list()]


# ---- CLU-010: two services on one store


async def test_CLU_010_services_on_one_store_see_nothing_of_each_other(url: str) -> None:
    Diary.ticks.clear()
    async with silos(a_silo(url, "a"), a_silo(url, "b")) as (a, b):
        for silo, name in ((a, "of a"), (b, "of b")):
            await silo.grain(Diary, "k").write(name)
            await silo.grain(Diary, "k").remind(name, 3600)
        assert await a.grain(Diary, "k").write("more") == ["of a", "more"]
        assert await b.grain(Diary, "k").write("more") == ["of b", "more"]
        for silo in (a, b):
            (only,) = await listed(silo)
            assert (only.grain_key, only.status.name) == ("k", "ring:x")
            assert silo.cluster.figures().members == 1
            assert silo.cluster.figures().partitions == 64
        await a.grain(Diary, "k").remind("now", 0)
        await until(lambda: Diary.ticks, "a rings")
        assert await a.grain(Diary, "k").write("end") == ["of a", "more", "now", "end"]
        assert Diary.ticks == [(a.number, "k", "now")]
        assert await listed(a) == []
        (only,) = await listed(b)
        assert only.status.next_run_at is not None
        assert await b.grain(Diary, "k").write("end") == ["of b", "more", "end"]


async def test_CLU_010_the_end_of_one_service_leaves_the_other_alone(url: str) -> None:
    async with silos(a_silo(url, "a")) as (a,):
        async with silos(a_silo(url, "b")) as (b,):
            await b.grain(Diary, "k").write("b")
            view = a.cluster.figures().view
        assert await a.grain(Diary, "k").write("a") == ["a"]
        async with silos(a_silo(url, "b")) as (b,):
            assert await b.grain(Diary, "k").write("again") == ["b", "again"]
        assert a.cluster.figures().view == view, "another service's members are no news"


# ---- STO-011: without a version, the last one wins


async def test_STO_011_a_second_upsert_overwrites_and_is_told_apart(url: str) -> None:
    """The design has registrations where the case has etags."""
    async with silos(a_silo(url)) as (silo,):
        diary, rows = silo.grain(Diary, "k"), []
        for text, after_s in (("first", 3600), ("second", 7200), ("second", 7200)):
            await diary.remind(text, after_s)
            rows.append(await silo.provider.reminder("diary", "k", "ring:x"))
        (only,) = await listed(silo)
        assert only.status.name == "ring:x"
        first, second, third = (row for row in rows if row is not None)
        assert first.args != second.args == third.args
        due = [row.next_due_at or 0 for row in (first, second, third)]
        assert due == sorted(due) and due[0] + 3_000_000_000 < due[1]
        assert len({row.registration for row in (first, second, third)}) == 3


async def test_STO_011_states_written_one_after_the_other_without_a_look_get_versions_of_their_own(
    url: str,
) -> None:
    async with silos(a_silo(url)) as (silo,):
        versions = []
        for line in ("same", "same"):
            await silo.grain(Diary, "k").write(line)
            (row,) = await silo.provider.load([("diary", "k")])
            versions.append(row and row.version)
        assert versions == [1, 2]


# ---- STO-015: the first silos of an empty store


async def test_STO_015_three_silos_that_start_together_make_one_schema_and_one_declared_reminder(
    url: str,
) -> None:
    made = [a_silo(url, "default", Diary, Nightly) for _ in range(3)]
    async with silos(*made) as started:
        numbers = {silo.number for silo in started}
        assert len(numbers) == 3
        await until(
            lambda: sum(silo.cluster.figures().partitions for silo in started) == 64, "all partitions owned"
        )
        for silo in started:
            assert [each.status.name for each in await listed(silo)] == ["nightly"]
        assert await started[0].grain(Diary, "k").write("x") == ["x"]
        assert await started[2].grain(Diary, "k").write("y") == ["x", "y"]


# ---- STO-001: many processes on one file

READ_THEN_WRITE = """
import asyncio, sys
from farro.providers.conformance.made import NOW, an_owner, writing
from farro.providers.sqlite.store import SqliteProvider

async def main(path, partition, times):
    store = SqliteProvider(path, busy_timeout_s=30)
    await store.open(NOW)
    owner = await an_owner(store, partition)
    print("ready", flush=True)
    sys.stdin.readline()
    for version in range(times):
        (row,) = await store.load([("shipments", str(partition))])
        assert (row.version if row else 0) == version
        await owner.committed(str(partition), partition=partition, grain=writing(version))
    print("done", flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def run_together(path: Path, processes: int, times: int) -> list[tuple[str, str]]:
    """What that many processes say, on stdout after they were ready and on stderr."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", READ_THEN_WRITE, str(path), str(partition), str(times)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for partition in range(processes)
    ]
    try:
        for each in started:
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        for each in started:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        return [each.communicate() for each in started]
    finally:
        for each in started:
            if each.poll() is None:
                each.kill()
                each.communicate()


async def test_STO_001_twelve_processes_that_read_and_then_write_meet_no_lock_error(tmp_path: Path) -> None:
    path, times = tmp_path / "farro.db", 200
    assert run_together(path, 12, times) == [("done\n", "")] * 12
    store = SqliteProvider(path)
    await store.open(NOW)
    rows = await store.load([("shipments", str(partition)) for partition in range(12)])
    await store.close()
    assert [row and row.version for row in rows] == [times] * 12


# ---- STO-008, STO-010: too many for the connections there are


@pytest.mark.service
async def test_STO_008_while_the_database_does_not_answer_callers_fail_in_time_and_then_all_is_well(
    postgres_server: Server,
) -> None:
    async with tcp_proxy(("127.0.0.1", postgres_server.port)) as proxy:
        store = f"postgresql://farro@{proxy.address}/postgres?schema=paused&partitions=64&pool=2"
        async with silos(a_silo(store)) as (silo,):
            diaries: list[Any] = [silo.grain(Diary, str(number)) for number in range(50)]
            await asyncio.gather(*(diary.write("before") for diary in diaries))
            proxy.become(up=CUT, down=CUT)
            loop = asyncio.get_running_loop()
            began = loop.time()
            hasty = [diary.with_options(timeout=2.0) for diary in diaries]
            results = await asyncio.gather(
                *(each.write("meanwhile") for each in hasty), return_exceptions=True
            )
            assert {type(result) for result in results} == {CallTimeout}
            assert loop.time() - began < 10
            proxy.become(up=CLEAR, down=CLEAR)
            lines = await asyncio.gather(*(diary.write("after") for diary in diaries))
            for each in lines:
                assert each in (["before", "meanwhile", "after"], ["before", "after"])


@pytest.mark.service
async def test_STO_010_acquires_that_time_out_or_are_cancelled_leak_no_connection(
    postgres_server: Server,
) -> None:
    # without TLS: cut off while it asks for that, the driver leaves its socket to the garbage collection
    url = f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres?sslmode=disable"
    pool = ReadPool(Connector(read_address(url)), 2, acquire_s=0.001)
    patient = ReadPool(Connector(read_address(url)), 2)
    for each in (pool, patient):
        await each.open()

    async def one(connection: Any) -> int:
        return int(await connection.fetchval("SELECT 1"))

    results: list[Any] = await asyncio.gather(*(pool.read(one) for _ in range(1_000)), return_exceptions=True)
    refused = [result for result in results if result != 1]
    assert refused and all(isinstance(result, Unavailable) for result in refused)
    reads = [asyncio.ensure_future(patient.read(one)) for _ in range(1_000)]
    await reads[0]
    for read in reads:
        read.cancel()
    await asyncio.wait(reads)
    assert any(read.cancelled() for read in reads)
    for each in (pool, patient):
        each._acquire_s = 5.0
        assert [await each.read(one) for _ in range(10)] == [1] * 10
        assert each._pool.get_size() <= 2
        assert each._pool.get_idle_size() == each._pool.get_size()
        await each.close()


# ---- STO-019, STO-020: Redis


@pytest.mark.parametrize("kind", ["STO-019 a cluster of masters", "STO-020 a server that evicts"])
def test_STO_019_STO_020_redis_is_refused_at_start_with_a_clear_text(kind: str) -> None:
    """This version has no Redis store, so nothing can be lost in one."""
    del kind
    with pytest.raises(BadStoreUrl, match="Redis is not in this version of farro"):
        open_provider("redis://127.0.0.1:6379/0")
