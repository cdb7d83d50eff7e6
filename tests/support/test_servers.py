"""The servers that other tests stand on start, answer, survive a kill -9 and leave nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio

from tests.support import servers
from tests.support.ports import free_port

pytestmark = pytest.mark.service


async def test_postgres_answers_on_loopback(postgres_server: servers.Server) -> None:
    connection = await asyncpg.connect(
        host="127.0.0.1", port=postgres_server.port, user="farro", database="postgres"
    )
    try:
        assert await connection.fetchval("SELECT 40 + 2") == 42
    finally:
        await connection.close()


async def test_valkey_answers_on_loopback(valkey_server: servers.Server) -> None:
    async with redis.asyncio.Redis(host="127.0.0.1", port=valkey_server.port, protocol=2) as client:
        assert await client.echo("farro") == b"farro"


async def test_a_killed_postgres_starts_again_on_its_port_with_its_rows() -> None:
    def kill_and_start(server: servers.Server) -> None:
        server.kill()
        server.start()

    with servers.postgres(fsync="on", synchronous_commit="on") as server:
        where = f"postgresql://farro@127.0.0.1:{server.port}/postgres"
        connection = await asyncpg.connect(where)
        await connection.execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
        connection.terminate()
        await asyncio.to_thread(kill_and_start, server)
        connection = await asyncpg.connect(where)
        assert await connection.fetchval("SELECT n FROM kept") == 7
        await connection.close()
        home = server.home
    assert not home.exists()


def test_a_stopped_server_leaves_no_process_and_no_folder() -> None:
    with servers.valkey() as server:
        process = server.proc
        home = server.home
    assert process is not None
    assert process.returncode is not None
    assert not home.exists()


def test_a_server_that_cannot_start_says_what_its_log_says(tmp_path: Path) -> None:
    server = servers.Server(["/bin/sh", "-c", "echo no such luck >&2; exit 3"], free_port(), tmp_path, {})
    with pytest.raises(RuntimeError, match="no such luck"):
        server.start()
