"""Faults are real: a full disk refuses what grows, a database restarted at once keeps its commits."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import asyncpg
import pytest

from tests.acceptance.processes import NotReady
from tests.cluster.inflicting import FULL_AT_BYTES, Faulty
from tests.cluster.silo_process import SiloProcess
from tests.cluster.stage import Stage
from tests.support import servers

pytestmark = pytest.mark.service

GROW = "INSERT INTO heap SELECT repeat(md5(n::text), 60) FROM generate_series(1, 100) AS n"


@pytest.fixture
def server() -> Generator[servers.Server]:
    with servers.postgres(wal_segment_mb=1) as running:
        yield running


@pytest.fixture
async def connection(server: servers.Server) -> AsyncGenerator[asyncpg.Connection[asyncpg.Record]]:
    made = await asyncpg.connect(f"postgresql://farro@127.0.0.1:{server.port}/postgres")
    await made.execute("CREATE TABLE heap (data text STORAGE PLAIN)")
    yield made
    made.terminate()


def faulty(server: servers.Server, folder: Path) -> Faulty:
    return Faulty(Stage(folder, [], lambda place, process: "", ()), server=server)


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit(2) is Linux's")
async def test_a_full_disk_refuses_what_grows_in_old_and_new_connections_and_then_has_room(
    server: servers.Server, connection: asyncpg.Connection[asyncpg.Record], tmp_path: Path
) -> None:
    fault = faulty(server, tmp_path)
    fault.limit_files(FULL_AT_BYTES)
    with pytest.raises(asyncpg.PostgresError, match="could not extend file"):
        for _ in range(20):
            await connection.execute(GROW)
    other = await asyncpg.connect(f"postgresql://farro@127.0.0.1:{server.port}/postgres")
    with pytest.raises(asyncpg.PostgresError, match="could not extend file"):
        for _ in range(20):
            await other.execute(GROW)
    fault.limit_files(None)
    for one in (connection, other):
        for _ in range(20):
            await one.execute(GROW)
    await other.close()


async def test_a_database_restarted_at_once_ends_connections_and_keeps_commits(
    server: servers.Server, connection: asyncpg.Connection[asyncpg.Record], tmp_path: Path
) -> None:
    await connection.execute("SET synchronous_commit = on; INSERT INTO heap VALUES ('kept')")
    await faulty(server, tmp_path).restart_database(0.0)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    again = await asyncpg.connect(f"postgresql://farro@127.0.0.1:{server.port}/postgres")
    assert await again.fetchval("SELECT data FROM heap") == "kept"
    await again.close()


async def test_a_process_that_cannot_start_says_why_and_a_frozen_one_is_ended(tmp_path: Path) -> None:
    refused = await SiloProcess.start(("no.such.module",), tmp_path, "refused")
    with pytest.raises(NotReady, match=r"no\.such"):
        await refused.wait_ready()
    await refused.end()
    assert refused.exit_code == 1
    frozen = await SiloProcess.start(("no.such.module",), tmp_path, "frozen")
    frozen.signal(signal.SIGSTOP)
    async with asyncio.timeout(10):
        await frozen.end()
    assert frozen.exit_code == -signal.SIGKILL
