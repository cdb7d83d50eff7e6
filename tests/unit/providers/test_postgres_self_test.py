"""What a server must show before a silo starts on it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from farro.providers.conformance.made import NOW
from farro.providers.errors import SchemaMismatch, StoreError
from farro.providers.postgres.address import read_address
from farro.providers.postgres.connecting import Backend, Connector, Linked
from farro.providers.postgres.self_test import self_test
from farro.providers.postgres.store import PostgresProvider
from tests.support.servers import Server

pytestmark = pytest.mark.service


@pytest.fixture
def url(postgres_server: Server) -> str:
    return f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres?schema=self_test&partitions=64"


@pytest.fixture
async def sql(postgres_server: Server) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres")
    yield connection
    await connection.close()


async def test_a_server_without_fsync_is_warned_about(url: str, caplog: pytest.LogCaptureFixture) -> None:
    provider = PostgresProvider(url)
    with caplog.at_level(logging.WARNING, "farro.providers.postgres"):
        await provider.open(NOW)
    await provider.close()
    assert "fsync off" in caplog.text


async def test_commits_are_durable_whatever_the_server_says(url: str, sql: Any) -> None:
    """The server of the tests has synchronous_commit off."""
    assert await sql.fetchval("SHOW synchronous_commit") == "off"
    linked = await Connector(read_address(url)).connect(500)
    answers = [
        await linked.connection.fetchval(f"SHOW {name}")
        for name in ("synchronous_commit", "transaction_isolation", "lock_timeout")
    ]
    await linked.connection.close()
    assert (linked.synchronous_commit, answers) == ("on", ["on", "read committed", "500ms"])


async def test_a_database_in_another_encoding_is_refused(url: str, sql: Any) -> None:
    await sql.execute("CREATE DATABASE narrow ENCODING 'SQL_ASCII' TEMPLATE template0")
    provider = PostgresProvider(url.replace("/postgres?", "/narrow?"))
    with pytest.raises(StoreError, match="ENCODING 'UTF8'"):
        await provider.open(NOW)
    await sql.execute("DROP DATABASE narrow")


async def test_a_service_that_lost_partition_rows_is_refused(url: str, sql: Any) -> None:
    provider = PostgresProvider(url, service_id="lost")
    await provider.open(NOW)
    await provider.close()
    await sql.execute("DELETE FROM self_test.partitions WHERE service_id = 'lost' AND partition > 60")
    with pytest.raises(SchemaMismatch, match="61 partition rows instead of 64"):
        await provider.open(NOW)


async def test_locks_that_do_not_exclude_are_noticed(url: str) -> None:
    """One session in place of two, as behind a pooler: nobody excludes himself."""
    provider = PostgresProvider(url)
    await provider.open(NOW)
    await provider.close()
    linked = await Connector(read_address(url)).connect(500)
    with pytest.raises(StoreError, match="do not exclude each other"):
        await self_test("url", "self_test", "default", 7, 64, linked, linked)
    await linked.connection.close()


async def test_weak_commits_are_refused(url: str) -> None:
    provider = PostgresProvider(url)
    await provider.open(NOW)
    await provider.close()
    linked = await Connector(read_address(url)).connect(500)
    weak = Linked(linked.connection, Backend(1, linked.backend.started_at), "local")
    with pytest.raises(StoreError, match="synchronous_commit = local"):
        await self_test("url", "self_test", "default", 7, 64, linked, weak)
    await linked.connection.close()
