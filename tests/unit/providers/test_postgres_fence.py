"""Take-overs against commits, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from random import Random
from string import ascii_letters
from typing import Any

import asyncpg
import pytest

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder, an_owner, writing
from farro.providers.postgres.sql import queries
from farro.providers.postgres.staging import Staged
from farro.providers.postgres.store import PostgresProvider
from farro.providers.rows import EventRow, Outcome, PutReminder
from tests.support.servers import Server

pytestmark = pytest.mark.service

SERVICES = count(1)
ROUNDS = 60
FIRE_ROUNDS = 100


@pytest.fixture
def address(postgres_server: Server) -> str:
    return f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres?schema=fence&partitions=64"


@pytest.fixture
async def two(address: str) -> AsyncIterator[tuple[PostgresProvider, PostgresProvider]]:
    """Two silos' providers of one new service."""
    service_id = f"s{next(SERVICES)}"
    providers = (
        PostgresProvider(address, service_id=service_id),
        PostgresProvider(address, service_id=service_id),
    )
    for provider in providers:
        await provider.open(NOW)
    yield providers
    for provider in providers:
        await provider.close()


@pytest.fixture
async def sql(postgres_server: Server) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres")
    yield connection
    await connection.close()


async def version_of(provider: PostgresProvider) -> int:
    (row,) = await provider.load([("shipments", "k")])
    return 0 if row is None else row.version


async def test_no_commit_of_the_old_epoch_lands_after_a_take_over_that_has_seen_the_rows(
    two: tuple[PostgresProvider, PostgresProvider],
) -> None:
    """What the new owner loads after its take is what stays, however the two race."""
    old, new = two
    owner = await an_owner(old, PARTITION)
    heir = await new.join("heir", NOW)
    outcomes: set[Outcome] = set()
    for _ in range(ROUNDS):
        (taken,) = await old.take(owner.number, [PARTITION], NOW)
        owner = Owner(old, owner.number, {PARTITION: taken.epoch})
        before = await version_of(old)
        racing = asyncio.ensure_future(owner.commit(owner.member(grain=writing(before))))
        await new.take(heir.number, [PARTITION], NOW)
        seen = await version_of(new)
        (verdict,) = await racing
        outcomes.add(verdict.outcome)
        assert await version_of(new) == seen == before + (verdict.outcome is Outcome.COMMITTED)
    assert outcomes <= {Outcome.COMMITTED, Outcome.FENCED}


async def test_no_commit_of_a_silo_said_to_be_dead_lands_after_its_partitions_were_taken(
    two: tuple[PostgresProvider, PostgresProvider],
) -> None:
    """It is well and commits as fast as it can; what the heir finds after its take is what stays."""
    old, new = two
    partitions = (PARTITION, PARTITION + 1)
    heir = await new.join("heir", NOW)
    stop = asyncio.Event()
    owner = await an_owner(old, *partitions)
    version = {partition: 0 for partition in partitions}
    stale = fenced = 0

    async def under_fire(partition: int) -> None:
        nonlocal fenced
        key = f"k{partition}"
        while not stop.is_set():
            member = owner.member(key, partition=partition, grain=writing(version[partition]))
            (verdict,) = await owner.commit(member)
            if verdict.outcome is Outcome.COMMITTED:
                version[partition] = verdict.version
            else:
                fenced += verdict.outcome is Outcome.FENCED
                await asyncio.sleep(0.001)

    members = new.members()
    async with asyncio.TaskGroup() as firing:
        for partition in partitions:
            firing.create_task(under_fire(partition))
        for _ in range(FIRE_ROUNDS):
            while sum(version.values()) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            rows = await members.cluster()
            assert await members.mark_dead(owner.number, 0, NOW)
            taken = await members.take(
                heir.number, partitions, NOW, [rows.epochs[partition] for partition in partitions]
            )
            assert len(taken) == 2
            seen = await new.load([("shipments", f"k{partition}") for partition in partitions])
            await asyncio.sleep(0.005)
            stale += seen != await new.load([("shipments", f"k{partition}") for partition in partitions])
            await members.release(heir.number, partitions, NOW)
            back = await old.join("again", NOW)
            retaken = await old.take(back.number, partitions, NOW, [row.epoch for row in taken])
            version = {p: row.version for p, row in zip(partitions, seen, strict=True) if row is not None}
            owner = Owner(old, back.number, {row.partition: row.epoch for row in retaken})
        stop.set()
    await members.close()
    assert (stale, fenced > 0) == (0, True)


async def test_a_commit_that_waits_for_a_take_over_is_fenced(
    two: tuple[PostgresProvider, PostgresProvider], sql: Any
) -> None:
    """The epoch is read after the lock: a commit that waited sees what was raised meanwhile."""
    old, _ = two
    owner = await an_owner(old, PARTITION)
    transaction = sql.transaction()
    await transaction.start()
    lock_class = old._lock_class
    await sql.execute("SELECT pg_advisory_xact_lock($1, $2)", lock_class, PARTITION)
    waiting = asyncio.ensure_future(owner.commit(owner.member(grain=writing(0))))
    await until_somebody_waits(sql)
    await sql.execute(
        "UPDATE fence.partitions SET epoch = epoch + 1 WHERE service_id = $1 AND partition = $2",
        old.service_id,
        PARTITION,
    )
    await transaction.commit()
    (verdict,) = await waiting
    assert verdict.outcome is Outcome.FENCED


async def until_somebody_waits(sql: Any) -> None:
    async with asyncio.timeout(5):
        while not await sql.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # another process's fact


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_under_another_isolation_the_store_itself_refuses(
    two: tuple[PostgresProvider, PostgresProvider], sql: Any, isolation: str
) -> None:
    provider, _ = two
    owner = await an_owner(provider)
    staged = Staged()
    staged.add(owner.member(grain=writing(0)), bounded=True)
    service = (provider.service_id, provider._lock_class)
    values = (*service, owner.number, NOW, staged.partitions())
    for statement, arguments in (
        ("commit", (*values, staged.members, [], [], [], [], [])),
        ("commit_answering", (*values, staged.members, [], [], [], [], [], [])),
        ("take", (*values, None)),
        ("release", (*service, owner.number, staged.partitions(), NOW)),
        ("end_silo", (*service, owner.number, "dead", 0, NOW)),
        ("set_status", (provider.service_id, owner.number, "active", NOW)),
        ("join", (provider.service_id, provider._silo_locks, "a", NOW, NOW)),
    ):
        with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED only, not under") as caught:
            async with sql.transaction(isolation=isolation):
                await sql.fetch(queries("fence")[statement], *arguments)
        assert caught.value.sqlstate == "FA001"


async def test_a_partition_locked_for_long_holds_up_no_other(
    two: tuple[PostgresProvider, PostgresProvider], sql: Any
) -> None:
    """The batch is split when its lock is not granted in time; what is free goes through first."""
    provider, _ = two
    owner = await an_owner(provider, 1, 2, 3)
    members = [owner.member(f"k{n}", partition=n, grain=writing(0)) for n in (1, 2, 3)]
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("SELECT pg_advisory_xact_lock($1, 2)", provider._lock_class)
    committing = asyncio.ensure_future(owner.commit(*members))
    counted = "SELECT count(*) FROM fence.grains WHERE service_id = $1"
    async with asyncio.timeout(10):
        while await sql.fetchval(counted, provider.service_id) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # another process's fact
    assert not committing.done()
    await transaction.rollback()
    assert [verdict.outcome for verdict in await committing] == [Outcome.COMMITTED] * 3


async def test_two_batches_and_take_overs_of_the_same_partitions_never_deadlock(
    two: tuple[PostgresProvider, PostgresProvider],
) -> None:
    old, new = two
    owner = await an_owner(old, *range(8))
    heir = await new.join("heir", NOW)

    async def commits() -> None:
        for turn in range(20):
            order = range(8) if turn % 2 else reversed(range(8))
            await owner.commit(*(owner.member(f"k{n}", partition=n, grain=writing(0)) for n in order))

    async def takes() -> None:
        for turn in range(20):
            await new.take(heir.number, list(range(8)) if turn % 2 else list(reversed(range(8))), NOW)

    await asyncio.gather(commits(), takes())
    epochs = [row.epoch for row in await new.take(heir.number, range(8), NOW)]
    assert epochs == [22] * 8


async def test_commits_takes_releases_and_deaths_of_the_same_partitions_never_deadlock(
    two: tuple[PostgresProvider, PostgresProvider], sql: Any
) -> None:
    """Commits with events change the rows that the others free and take."""
    old, new = two
    counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = await sql.fetchval(counted)
    owner = await an_owner(old, *range(8))
    events = (EventRow("s", b"x", NOW),)

    async def commits() -> None:
        for turn in range(40):
            order = range(8) if turn % 2 else reversed(range(8))
            await owner.commit(*(owner.member(f"k{n}", partition=n, events=events) for n in order))

    async def changes() -> None:
        for turn in range(20):
            silo = await new.join("other", NOW)
            await new.take(silo.number, list(range(8)) if turn % 2 else list(reversed(range(8))), NOW)
            await new.release(silo.number, [7, 3, 5], NOW)
            await new.mark_dead(silo.number, 0, NOW)
            taken = await old.take(owner.number, range(8), NOW)
            owner.epochs.update({row.partition: row.epoch for row in taken})

    await asyncio.gather(commits(), changes())
    await sql.execute("SELECT pg_stat_clear_snapshot()")
    assert await sql.fetchval(counted) == before
    rows = await new.cluster()
    assert set(rows.owners[:8]) == {owner.number}


async def test_data_that_only_the_server_refuses_rejects_its_member_alone(
    two: tuple[PostgresProvider, PostgresProvider],
) -> None:
    """A key beyond what an index entry holds: 2,704 bytes that do not compress."""
    provider, _ = two
    owner = await an_owner(provider)
    long = "".join(Random(7).choices(ascii_letters, k=20_000))
    events = (EventRow("s", b"x", NOW),)
    verdicts = await owner.commit(
        *(owner.member(f"k{n}", grain=writing(0), events=events) for n in range(3)),
        owner.member(long, grain=writing(0), events=events),
        owner.member("k9", reminders=(PutReminder(a_reminder("k9")),), events=events),
    )
    assert [verdict.outcome for verdict in verdicts] == [
        *([Outcome.COMMITTED] * 3),
        Outcome.REJECTED,
        Outcome.COMMITTED,
    ]
    assert "index row" in verdicts[3].reason
    assert len(await provider.events(PARTITION, "s", 0, 10)) == 4


async def test_edge_instants_survive_in_any_session_time_zone(
    two: tuple[PostgresProvider, PostgresProvider], sql: Any
) -> None:
    await sql.execute("ALTER ROLE farro SET timezone = 'America/New_York'")
    provider = PostgresProvider(two[0]._address, service_id=two[0].service_id)
    await provider.open(NOW)
    await sql.execute("ALTER ROLE farro RESET timezone")
    owner = await an_owner(provider)
    for instant in (-62_135_596_800_000_000, -1, 2_147_483_648_000_000, 253_402_300_799_999_999):
        row = a_reminder(start_at=instant, next_due_at=instant, wake_at=instant, until_at=instant)
        await owner.put(row)
        assert await provider.reminder("shipments", "k", "chase") == row
    await provider.close()
