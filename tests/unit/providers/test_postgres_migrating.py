"""Creating and refusing schemas, alone and with thirty silos at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import asyncpg
import pytest

from farro.providers.conformance.made import NOW, PARTITION, Owner, an_owner, writing
from farro.providers.errors import SchemaMismatch, StoreMissing, Unavailable
from farro.providers.members import SiloRow, SiloStatus
from farro.providers.postgres.migrating import Migrating
from farro.providers.postgres.sql import known_migrations, queries
from farro.providers.postgres.store import PostgresProvider
from farro.providers.rows import Outcome
from farro.providers.sql_files import Migration
from tests.support.servers import Server

pytestmark = pytest.mark.service

SCHEMAS = count(1)


@pytest.fixture
def url(postgres_server: Server) -> str:
    """A store in a schema that does not exist yet."""
    base = f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres"
    return f"{base}?schema=migrating_{next(SCHEMAS)}&partitions=64"


@pytest.fixture
async def sql(postgres_server: Server) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres")
    yield connection
    await connection.close()


def schema_of(url: str) -> str:
    return url.partition("schema=")[2].partition("&")[0]


async def opened(url: str, **options: Any) -> PostgresProvider:
    provider = PostgresProvider(url, **options)
    await provider.open(NOW)
    return provider


async def test_thirty_silos_at_once_apply_each_migration_once(url: str, sql: Any) -> None:
    providers = await asyncio.gather(*(opened(url) for _ in range(30)))
    silos = await asyncio.gather(*(provider.join("a", NOW) for provider in providers))
    await asyncio.gather(*(provider.close() for provider in providers))
    applied = await sql.fetch(f"SELECT number FROM {schema_of(url)}.farro_migrations ORDER BY number")
    assert [row["number"] for row in applied] == [migration.number for migration in known_migrations()]
    assert sorted(silo.number for silo in silos) == list(range(1, 31))
    assert await sql.fetchval(f"SELECT count(*) FROM {schema_of(url)}.partitions") == 64


async def test_a_newer_store_is_refused_with_both_numbers(url: str, sql: Any) -> None:
    await (await opened(url)).close()
    await sql.execute(f"INSERT INTO {schema_of(url)}.farro_migrations VALUES (99, 'later', 'x', 1)")
    with pytest.raises(SchemaMismatch, match=r"newer farro \(schema 99; .* knows up to 3\): upgrade farro"):
        await opened(url)


async def test_a_tampered_migration_is_refused(url: str, sql: Any) -> None:
    await (await opened(url)).close()
    await sql.execute(f"UPDATE {schema_of(url)}.farro_migrations SET checksum = 'x' WHERE number = 1")
    with pytest.raises(SchemaMismatch, match=r"migration 1 \(first_tables\) is not the one"):
        await opened(url)


async def test_the_tables_of_another_program_are_left_alone(url: str, sql: Any) -> None:
    await sql.execute(f"CREATE SCHEMA {schema_of(url)} CREATE TABLE theirs (x int)")
    with pytest.raises(SchemaMismatch, match=r"another program \(theirs\).*\?schema="):
        await opened(url)


async def test_a_failed_migration_leaves_nothing_behind(url: str, sql: Any) -> None:
    known = (*known_migrations(), Migration(len(known_migrations()) + 1, "broken", "SELECT nothing_there"))
    with pytest.raises(asyncpg.UndefinedColumnError):
        await Migrating(sql, url, schema_of(url), known).migrate("default", 64, NOW)
    has = await sql.fetchrow(queries(schema_of(url))["has_schema"], schema_of(url))
    assert (has["there"], has["tables"]) == (False, [])


async def test_an_older_store_gets_only_what_it_lacks(url: str, sql: Any) -> None:
    schema = schema_of(url)
    await Migrating(sql, url, schema, known_migrations()[:1]).migrate("default", 64, NOW)
    with pytest.raises(SchemaMismatch, match=r"older farro \(schema 1, .* farro migrate"):
        await opened(url, read_only=True)
    provider = await opened(url)
    owner = await an_owner(provider)
    await owner.committed(grain=writing(0))
    await provider.close()


async def test_a_store_of_one_silo_becomes_one_of_a_cluster_and_its_old_silo_can_be_said_to_be_dead(
    url: str, sql: Any
) -> None:
    """One that still runs renews without being counted and commits until its partitions are taken."""
    schema = schema_of(url)
    await Migrating(sql, url, schema, known_migrations()[:2]).migrate("default", 64, NOW)
    await sql.execute(f"UPDATE {schema}.services SET last_silo = 2")
    await sql.execute(f"INSERT INTO {schema}.silos VALUES ('default', 1, 'gone', 1, 5, 7)")
    await sql.execute(f"INSERT INTO {schema}.silos VALUES ('default', 2, 'old', 3, {NOW}, NULL)")
    await sql.execute(f"UPDATE {schema}.partitions SET owner = 2, epoch = 1")

    new = await opened(url)
    gone, old = await new.silos()
    assert gone == SiloRow(1, "gone", 1, 5, 7, SiloStatus.LEFT)
    assert old == SiloRow(2, "old", 3, NOW, None, SiloStatus.ACTIVE)
    assert await sql.fetchval(f"SELECT {schema}.renew_1('default', 2, {NOW + 5})")
    with pytest.raises(asyncpg.PostgresError, match="upgraded by a newer farro"):
        await sql.fetch(f"SELECT * FROM {schema}.take_1('default', 1, 2, {NOW}, '{{1}}')")
    before = Owner(new, 2, {PARTITION: 1})  # what an old silo sends is a batch without requests
    assert (await before.committed(grain=writing(0))).version == 1
    (_, renewed) = await new.silos()
    assert renewed.renewed_at == NOW + 5

    heir = await new.join("new", NOW + 9)
    assert heir.number == 3
    assert await new.mark_dead(2, renewed.renewals, NOW + 9)
    (row,) = await new.take(3, [PARTITION], NOW + 9, [1])
    assert (row.epoch, row.previous_alive_at) == (2, NOW + 5)
    assert not await sql.fetchval(f"SELECT {schema}.renew_1('default', 2, {NOW + 10})")
    (verdict,) = await before.commit(before.member(grain=writing(1)))
    assert verdict.outcome is Outcome.FENCED
    await new.close()


async def test_what_opening_would_apply_is_told_and_nothing_is_changed(url: str, sql: Any) -> None:
    schema = schema_of(url)
    provider = PostgresProvider(url)
    with pytest.raises(StoreMissing, match="start a silo on it"):
        await provider.pending_migrations()
    assert not (await sql.fetchrow(queries("x")["has_schema"], schema))["there"]
    await Migrating(sql, url, schema, known_migrations()[:1]).migrate("default", 64, NOW)
    assert await provider.pending_migrations() == ["0002_commit", "0003_cluster"]
    assert await provider.pending_migrations() == ["0002_commit", "0003_cluster"]
    await provider.open(NOW)
    assert await provider.pending_migrations() == []
    await provider.close()
    assert await provider.pending_migrations() == []
    await sql.execute(f"INSERT INTO {schema}.farro_migrations VALUES (99, 'later', 'x', 1)")
    with pytest.raises(SchemaMismatch, match="newer farro"):
        await provider.pending_migrations()


async def test_a_tool_that_reads_creates_nothing_and_writes_nothing(url: str, sql: Any) -> None:
    with pytest.raises(StoreMissing, match="start a silo on it"):
        await opened(url, read_only=True)
    assert not (await sql.fetchrow(queries("x")["has_schema"], schema_of(url)))["there"]
    silo = await opened(url)
    owner = await an_owner(silo)
    await owner.committed(grain=writing(0, b"seen"))
    reader = await opened(url, read_only=True)
    (row,) = await reader.load([("shipments", "k")])
    assert row is not None and row.state == b"seen"
    with pytest.raises(Unavailable, match="reading only"):
        await reader.commit([owner.member(grain=writing(1))], owner.number, NOW)
    with pytest.raises(StoreMissing, match="'other'"):
        await opened(url, service_id="other", read_only=True)
    await reader.close()
    await silo.close()


async def test_the_partitions_of_a_service_stay_as_they_were_created(url: str) -> None:
    await (await opened(url)).close()
    other = url.replace("partitions=64", "partitions=128")
    with pytest.raises(SchemaMismatch, match=r"created with 64 partitions.* asks for 128"):
        await opened(other)
    provider = PostgresProvider(url.replace("&partitions=64", ""))
    assert (await provider.open(NOW)).partitions == 64
    await provider.close()
    provider = PostgresProvider(other, service_id="another")
    assert (await provider.open(NOW)).partitions == 128
    await provider.close()
