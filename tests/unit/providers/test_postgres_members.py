"""The handle of a heartbeat, the locks of silos, and what the verbs of membership wait for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from farro.client.clock import SystemClock
from farro.providers.conformance.made import NOW, PARTITION, Owner, an_owner, writing
from farro.providers.contracts import Provider
from farro.providers.errors import OutcomeUnknown, StoreError, Unavailable
from farro.providers.members import Members, SiloStatus
from farro.providers.memory import MemoryProvider
from farro.providers.postgres.membership import HEARTBEAT
from farro.providers.postgres.store import PostgresProvider
from farro.providers.rows import Outcome
from tests.support.servers import Server

pytestmark = pytest.mark.service

SERVICES = count(1)
CALL_MAX_S = 2.5  # begin and answer, and a little for a loaded machine
WALK = 400

# joins through a handle, tells its number and its server process, and holds on
HOLDER = """
import asyncio, sys
from farro.providers.postgres.store import PostgresProvider

async def main():
    provider = PostgresProvider(sys.argv[1], service_id=sys.argv[2])
    await provider.open(1)
    members = provider.members()
    print((await members.join("127.0.0.1:1", 1)).number, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def url(postgres_server: Server) -> str:
    return f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres?schema=members&partitions=64"


@pytest.fixture
async def provider(url: str) -> AsyncIterator[PostgresProvider]:
    made = PostgresProvider(url, service_id=f"s{next(SERVICES)}")
    await made.open(NOW)
    yield made
    await made.close()


@pytest.fixture
async def sql(postgres_server: Server) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres")
    yield connection
    await connection.close()


@asynccontextmanager
async def closing(members: Members) -> AsyncIterator[Members]:
    try:
        yield members
    finally:
        await members.close()


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    """Another process's fact, looked at again and again."""
    async with asyncio.timeout(10):
        while not await fact():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def holder_of(sql: Any, provider: PostgresProvider, number: int) -> int | None:
    """The server's process that has the silo's lock."""
    key = provider._silo_locks + number
    pid: int | None = await sql.fetchval(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted"
        " AND classid = $1 AND objid = $2",
        (key >> 32) & 0xFFFFFFFF,
        key & 0xFFFFFFFF,
    )
    return pid


# ---- the handle


async def test_the_time_is_the_servers(provider: PostgresProvider) -> None:
    before = SystemClock().now()
    shown = await provider.store_time()
    assert before <= shown <= SystemClock().now(), "the server is on this machine"


async def test_a_handle_serves_the_loop_of_another_thread(provider: PostgresProvider) -> None:
    members = provider.members()
    seen: list[Any] = []

    async def beat() -> None:
        silo = await members.join("127.0.0.1:7", NOW)
        seen.extend([silo.number, await members.renew(silo.number, NOW + 1, load=5)])
        await members.close()

    thread = threading.Thread(target=lambda: asyncio.run(beat()))
    thread.start()
    while thread.is_alive():
        await provider.cluster()  # this loop goes on meanwhile
    thread.join()
    (silo,) = await provider.silos()
    assert (silo.number, silo.load, silo.renewals) == (seen[0], 5, 1)
    assert seen[1] == (await provider.cluster()).view


async def test_a_handle_opens_nothing_before_its_first_verb_and_nothing_after_its_end(
    provider: PostgresProvider, sql: Any
) -> None:
    counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'farro'"
    before = await sql.fetchval(counted)
    members = provider.members()
    assert await sql.fetchval(counted) == before
    await members.cluster()
    assert await sql.fetchval(counted) == before + 1
    await members.close()
    await members.close()
    with pytest.raises(Unavailable, match="not open"):
        await members.cluster()


async def test_only_an_open_store_that_writes_gives_handles(url: str) -> None:
    provider = PostgresProvider(url)
    with pytest.raises(Unavailable, match="not open"):
        provider.members()
    await provider.open(NOW)
    await provider.close()
    reader = PostgresProvider(url, read_only=True)
    await reader.open(NOW)
    with pytest.raises(Unavailable, match="reading only"):
        reader.members()
    await reader.close()


async def test_a_renewal_waits_for_no_commit_and_no_change_of_the_view(
    provider: PostgresProvider, sql: Any
) -> None:
    owner = await an_owner(provider)
    async with closing(provider.members()) as members:
        async with sql.transaction():
            await sql.execute("LOCK TABLE members.grains, members.signs_of_life IN EXCLUSIVE MODE")
            await sql.execute(
                "SELECT 1 FROM members.services WHERE service_id = $1 FOR UPDATE", provider.service_id
            )
            committing = asyncio.ensure_future(owner.commit(owner.member(grain=writing(0))))
            await until(lambda: sql.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"))
            assert await members.renew(owner.number, NOW + 9) == (await members.cluster()).view
        (verdict,) = await committing
        assert verdict.outcome is Outcome.COMMITTED


async def test_a_take_that_waits_too_long_says_so_and_the_next_renewal_works(
    provider: PostgresProvider, sql: Any
) -> None:
    owner = await an_owner(provider, 1)
    async with closing(provider.members()) as members:
        async with sql.transaction():
            await sql.execute("SELECT pg_advisory_xact_lock($1, 2)", provider._lock_class)
            with pytest.raises(Unavailable, match="another transaction holds the lock"):
                await members.take(owner.number, [1, 2, 3], NOW)
            assert await members.renew(owner.number, NOW + 1)
        assert [row.epoch for row in await members.take(owner.number, [1, 2, 3], NOW)] == [2, 1, 1]


# ---- locks as proof of death


async def test_a_silo_is_held_by_whoever_let_it_join_until_that_ends(
    provider: PostgresProvider, url: str
) -> None:
    members = provider.members()
    mine = await members.join("a", NOW)
    other = PostgresProvider(url, service_id=provider.service_id)
    await other.open(NOW)
    theirs = await other.join("b", NOW)
    asking = [other, provider, members]
    assert [await one.is_held(mine.number) for one in asking] == [True] * 3
    assert [await one.is_held(theirs.number) for one in asking] == [True] * 3
    assert not await members.is_held(theirs.number + 1)
    await other.close()
    await until(lambda: freed(provider, theirs.number))
    assert await provider.is_held(mine.number)
    await members.close()
    await until(lambda: freed(provider, mine.number))


async def freed(members: Members, number: int) -> bool:
    return not await members.is_held(number)


async def test_a_lost_connection_is_replaced_with_the_locks_it_had(
    provider: PostgresProvider, sql: Any
) -> None:
    async with closing(provider.members()) as members:
        silos = [await members.join("a", NOW) for _ in range(2)]
        for _ in range(3):
            pid = await holder_of(sql, provider, silos[0].number)
            await sql.execute("SELECT pg_terminate_backend($1, 2000)", pid)
            await until(lambda: renewed(members, silos[0].number))
            new = {await holder_of(sql, provider, silo.number) for silo in silos}
            assert len(new) == 1 and not new & {pid, None}


async def renewed(members: Members, number: int) -> bool:
    try:
        return await members.renew(number, NOW) is not None
    except (Unavailable, OutcomeUnknown):
        return False


async def test_a_connection_that_hangs_is_given_up_and_its_process_keeps_the_lock_until_it_ends(
    provider: PostgresProvider, sql: Any
) -> None:
    """A stopped process of the server: what a cut network looks like, without one."""
    loop = asyncio.get_running_loop()
    async with closing(provider.members()) as members:
        silo = await members.join("a", NOW)
        hung = await holder_of(sql, provider, silo.number)
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        try:
            began = loop.time()
            with pytest.raises(OutcomeUnknown):
                await members.renew(silo.number, NOW + 1)
            assert loop.time() - began < CALL_MAX_S
            began = loop.time()
            assert await members.renew(silo.number, NOW + 2)
            assert loop.time() - began < CALL_MAX_S
            assert await holder_of(sql, provider, silo.number) == hung
            assert await provider.is_held(silo.number)
        finally:
            os.kill(hung, signal.SIGCONT)

        async def moved() -> bool:
            await members.renew(silo.number, NOW + 3)
            return await holder_of(sql, provider, silo.number) not in (None, hung)

        await until(moved)


async def test_a_call_that_waits_for_one_that_hangs_ends_in_time_too(
    provider: PostgresProvider, sql: Any
) -> None:
    loop = asyncio.get_running_loop()
    async with closing(provider.members()) as members:
        silo = await members.join("a", NOW)
        hung = await holder_of(sql, provider, silo.number)
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        try:
            began = loop.time()
            calls = [members.renew(silo.number, NOW + number) for number in range(5)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert loop.time() - began < CALL_MAX_S
            assert {type(result) for result in results} <= {OutcomeUnknown, Unavailable, int}
        finally:
            os.kill(hung, signal.SIGCONT)


async def test_the_end_of_a_process_frees_its_silo_and_a_pause_does_not(
    provider: PostgresProvider, url: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        url,
        provider.service_id,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stdout is not None
        number = int(await process.stdout.readline())
        assert await provider.is_held(number)
        process.send_signal(signal.SIGSTOP)
        if sys.platform == "linux":
            await until(lambda: is_stopped(process.pid))
        await provider.cluster()
        assert await provider.is_held(number)
        process.kill()
        await process.wait()
        await until(lambda: freed(provider, number))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_services_in_one_database_never_meet_in_a_lock(
    provider: PostgresProvider, url: str, sql: Any
) -> None:
    other = PostgresProvider(url, service_id=f"s{next(SERVICES)}")
    await other.open(NOW)
    mine, theirs = await an_owner(provider, PARTITION), await an_owner(other, PARTITION)
    assert mine.number == theirs.number == 1
    await other.close()
    await until(lambda: is_nobodys(sql, other, 1))
    assert await provider.is_held(1)
    async with sql.transaction():
        await sql.execute("SELECT pg_advisory_xact_lock($1, $2)", other._lock_class, PARTITION)
        await sql.execute("SELECT pg_advisory_xact_lock($1)", other._silo_locks + 1)
        async with asyncio.timeout(5):
            await mine.committed(grain=writing(0))
            await provider.take(mine.number, [PARTITION], NOW)
            await provider.mark_dead(1, 0, NOW)


async def is_nobodys(sql: Any, provider: PostgresProvider, number: int) -> bool:
    return await holder_of(sql, provider, number) is None


# ---- races


async def test_of_all_that_race_for_free_partitions_each_is_taken_once(
    provider: PostgresProvider,
) -> None:
    handles = [provider.members() for _ in range(4)]
    silos = [await handle.join("a", NOW) for handle in handles]
    for _ in range(10):
        epochs = (await provider.cluster()).epochs
        takes = await asyncio.gather(
            *(
                handle.take(silo.number, range(64), NOW, epochs)
                for handle, silo in zip(handles, silos, strict=True)
            )
        )
        assert sorted(row.partition for rows in takes for row in rows) == list(range(64))
        rows = await provider.cluster()
        for silo, taken in zip(silos, takes, strict=True):
            owned = {p for p, owner in enumerate(rows.owners) if owner == silo.number}
            assert owned == {row.partition for row in taken}
            await provider.release(silo.number, sorted(owned), NOW)
        assert rows.epochs == tuple(epoch + 1 for epoch in epochs)
    for handle in handles:
        await handle.close()


async def test_no_partition_stays_with_a_silo_that_died_while_it_took_it(provider: PostgresProvider) -> None:
    async with closing(provider.members()) as members:
        for _ in range(40):
            victim = await provider.join("victim", NOW)
            epochs = (await provider.cluster()).epochs
            results = await asyncio.gather(
                members.take(victim.number, range(64), NOW, epochs),
                provider.mark_dead(victim.number, 0, NOW),
                return_exceptions=True,
            )
            assert results[1] is True
            assert isinstance(results[0], list) or "not a member" in str(results[0])
            assert set((await provider.cluster()).owners) == {0}


async def test_a_renewal_saves_a_silo_from_an_observer_that_saw_the_counter_before(
    provider: PostgresProvider,
) -> None:
    """Exactly one of the two has its way."""
    async with closing(provider.members()) as members:
        saved = 0
        for _ in range(40):
            silo = await members.join("a", NOW)
            view, dead = await asyncio.gather(
                members.renew(silo.number, NOW), provider.mark_dead(silo.number, 0, NOW)
            )
            assert (view is None) == dead
            saved += not dead
            assert await provider.mark_dead(silo.number, 1, NOW) is (not dead)
        assert 0 <= saved <= 40


# ---- the same as the reference


def step(random: Random, number: int, epochs: tuple[int, ...]) -> Callable[[Provider], Awaitable[Any]]:
    """One verb with arguments that are often right."""
    now = NOW + number * 1_000
    silo = random.randrange(1, 8)
    partitions = random.sample(range(64), random.randrange(1, 12))
    expected = [epochs[p] + (random.random() < 0.1) for p in partitions]
    status = random.choice((SiloStatus.ACTIVE, SiloStatus.DRAINING))
    renewals = random.randrange(4)
    load = random.randrange(100)
    weighted: list[tuple[int, Callable[[Provider], Awaitable[Any]]]] = [
        (2, lambda store: store.join(f"h:{number}", now)),
        (4, lambda store: store.renew(silo, now, load)),
        (3, lambda store: store.set_status(silo, status, now)),
        (1, lambda store: store.leave(silo, now)),
        (2, lambda store: store.mark_dead(silo, renewals, now)),
        (6, lambda store: store.take(silo, partitions, now, expected)),
        (2, lambda store: store.take(silo, partitions, now)),
        (3, lambda store: store.release(silo, partitions, now)),
        (2, lambda store: Owner(store, silo, {}).commit(Owner(store, silo, {}).member(), now=now)),
    ]
    (chosen,) = random.choices([one for _, one in weighted], [weight for weight, _ in weighted])
    return chosen


async def outcome(verb: Callable[[Provider], Awaitable[Any]], store: Provider) -> Any:
    try:
        return await verb(store)
    except StoreError as error:
        return type(error)


@pytest.mark.parametrize("seed", range(3))
async def test_any_walk_through_the_verbs_ends_as_in_memory(provider: PostgresProvider, seed: int) -> None:
    random = Random(seed)
    memory = MemoryProvider()
    await memory.open(NOW)
    view = 0
    before: Any = None
    for number in range(WALK):
        expected = await memory.cluster()
        verb = step(random, number, expected.epochs)
        assert await outcome(verb, provider) == await outcome(verb, memory), number
        rows = await provider.cluster()
        assert rows == await memory.cluster(), number
        told = (replace_signs(rows.silos), rows.owners, rows.epochs)
        if before is not None:
            assert (rows.view > view) == (told != before), number
        view, before = rows.view, told
    await memory.close()


def replace_signs(silos: Any) -> Any:
    """What renewals move is not what the view counts."""
    return [replace(silo, renewed_at=0, renewals=0, load=0) for silo in silos]


def test_the_bounds_of_a_heartbeat_fit_a_lease() -> None:
    assert HEARTBEAT.begin_s is not None
    assert HEARTBEAT.begin_s + HEARTBEAT.answer_s <= 2.0
    assert HEARTBEAT.connect_s <= HEARTBEAT.begin_s
    assert HEARTBEAT.lock_timeout_ms / 1000 < HEARTBEAT.answer_s
