"""Lost connections, lost answers, servers that go away or change, and pools that are full."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Generator
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from farro.providers.conformance.made import NOW, PARTITION, an_owner, writing
from farro.providers.errors import OutcomeUnknown, StoreChanged, StoreError, Unavailable
from farro.providers.members import Members
from farro.providers.postgres.address import read_address
from farro.providers.postgres.connecting import Connector
from farro.providers.postgres.pool import ReadPool
from farro.providers.postgres.store import PostgresProvider
from farro.providers.rows import Outcome, PollQuery
from tests.support import servers

pytestmark = pytest.mark.service

SERVICES = count(1)


@pytest.fixture(scope="module")
def server() -> Generator[servers.Server]:
    """A server of these tests alone, which stop, restart and restore it."""
    try:
        with servers.postgres() as running:
            yield running
    except servers.ServerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def url(server: servers.Server) -> str:
    return f"postgresql://farro:S3CRET@127.0.0.1:{server.port}/postgres"


@pytest.fixture
async def provider(url: str) -> AsyncIterator[PostgresProvider]:
    made = PostgresProvider(f"{url}?schema=trouble&partitions=64", service_id=f"s{next(SERVICES)}")
    await made.open(NOW)
    yield made
    await made.close()


@pytest.fixture
async def sql(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    yield connection
    if not connection.is_closed():
        await connection.close()


async def stopped(server: servers.Server, provider: PostgresProvider) -> None:
    """Stop the server; return when the provider's lane has heard of it."""
    assert provider._opened is not None and provider._opened.committing is not None
    linked = provider._opened.committing._links[0]._linked
    assert linked is not None
    server.stop()
    async with asyncio.timeout(5):
        while not linked.connection.is_closed():  # noqa: ASYNC110
            await asyncio.sleep(0)


def restored(server: servers.Server) -> None:
    """Start it so that it recovers from an archive, an empty one: it goes on from where it was, anew."""
    Path(server.home, "data", "recovery.signal").touch()
    server.argv = [*server.argv, "-c", "restore_command=false"]
    server.start()


async def until_a_commit_waits(sql: Any) -> int:
    """The process of a commit that waits for a lock."""
    async with asyncio.timeout(5):
        while True:
            waiting = await sql.fetchval("SELECT pid FROM pg_locks WHERE NOT granted")
            if waiting is not None:
                return int(waiting)
            await asyncio.sleep(0.002)


async def until_it_connects(members: Members, number: int) -> None:
    """Renew until it is taken, or refused for good."""
    async with asyncio.timeout(10):
        while True:
            try:
                await members.renew(number, NOW)
            except (OutcomeUnknown, Unavailable):
                await asyncio.sleep(0.01)
            else:
                return


async def test_a_commit_whose_connection_is_lost_has_an_unknown_outcome_and_the_next_one_works(
    provider: PostgresProvider, sql: Any
) -> None:
    owner = await an_owner(provider)
    async with sql.transaction():
        await sql.execute("LOCK TABLE trouble.grains IN EXCLUSIVE MODE")
        committing = asyncio.ensure_future(owner.commit(owner.member(grain=writing(0))))
        await sql.execute("SELECT pg_terminate_backend($1)", await until_a_commit_waits(sql))
        with pytest.raises(OutcomeUnknown):
            await committing
    assert await provider.load([("shipments", "k")]) == [None]
    await owner.committed(grain=writing(0))


async def test_no_commit_with_a_lost_answer_lands_after_a_load(provider: PostgresProvider, sql: Any) -> None:
    """The client gives up while the server's process waits; freed, that process would go on and commit."""
    owner = await an_owner(provider)
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("LOCK TABLE trouble.grains IN EXCLUSIVE MODE")
    committing = asyncio.ensure_future(owner.commit(owner.member(grain=writing(0, b"late"))))
    straggler = await until_a_commit_waits(sql)
    assert provider._opened is not None and provider._opened.committing is not None
    linked = provider._opened.committing._links[0]._linked
    assert linked is not None
    linked.connection.terminate()
    with pytest.raises(OutcomeUnknown):
        await committing
    loading = await provider.load([("shipments", "k")])
    assert not await sql.fetchval("SELECT count(*) FROM pg_locks WHERE pid = $1", straggler)
    await transaction.rollback()
    assert loading == [None] == await provider.load([("shipments", "k")])


async def test_a_load_of_other_grains_does_not_wait_for_a_commit_under_way(
    provider: PostgresProvider, sql: Any
) -> None:
    owner = await an_owner(provider)
    async with sql.transaction():
        await sql.execute("SELECT pg_advisory_xact_lock($1, $2)", provider._lock_class, PARTITION)
        committing = asyncio.ensure_future(owner.commit(owner.member(grain=writing(0))))
        await until_a_commit_waits(sql)
        loading = asyncio.ensure_future(provider.load([("shipments", "k")]))
        assert await provider.load([("shipments", "other")]) == [None]
        assert not loading.done()
    await committing
    (row,) = await loading
    assert row is not None and row.version == 1


async def test_a_cancelled_commit_is_in_doubt_and_a_load_settles_it(
    provider: PostgresProvider, sql: Any
) -> None:
    owner = await an_owner(provider)
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("LOCK TABLE trouble.grains IN EXCLUSIVE MODE")
    committing = asyncio.ensure_future(owner.commit(owner.member(grain=writing(0))))
    await until_a_commit_waits(sql)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert await provider.load([("shipments", "k")]) == [None]
    await transaction.rollback()
    await owner.committed(grain=writing(0))


async def test_a_server_that_restarts_costs_a_wait_and_no_commit(
    provider: PostgresProvider, server: servers.Server
) -> None:
    owner = await an_owner(provider)
    await owner.committed(grain=writing(0))
    await stopped(server, provider)
    committing = asyncio.ensure_future(owner.commit(owner.member(grain=writing(1))))
    with pytest.raises(Unavailable) as caught:
        await provider.poll([PollQuery(1, NOW, 1)])
    assert "S3CRET" not in str(caught.value)
    server.start()  # in this thread: the server ends with the thread that started it
    (verdict,) = await committing
    assert verdict.outcome is Outcome.COMMITTED
    (row,) = await provider.load([("shipments", "k")])
    assert row is not None and row.version == 2
    assert await provider.renew(owner.number, NOW)


async def test_a_read_survives_connections_that_died_while_idle(provider: PostgresProvider, sql: Any) -> None:
    owner = await an_owner(provider)
    await owner.committed(grain=writing(0))
    await provider.load([("shipments", "k")])
    await sql.execute(
        "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE application_name = 'farro'"
    )
    (row,) = await provider.load([("shipments", "k")])
    assert row is not None and row.version == 1
    await owner.committed(grain=writing(1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("127.0.0.1", "no-such-host.invalid"), "no-such-host"),
        (("/postgres", "/nowhere"), "create the database"),
    ],
)
async def test_what_cannot_be_opened_says_why_and_hides_the_password(
    url: str, change: tuple[str, str], says: str
) -> None:
    provider = PostgresProvider(url.replace(*change))
    with pytest.raises(StoreError) as caught:
        await provider.open(NOW)
    assert says in str(caught.value) and "S3CRET" not in f"{caught.value!r} {provider!r}"


async def test_a_full_pool_tells_its_size_and_the_wait_and_recovers(url: str) -> None:
    pool = ReadPool(Connector(read_address(url)), 2, acquire_s=1)
    await pool.open()
    free, taken = asyncio.Event(), asyncio.Semaphore(0)

    async def hold(_: Any) -> None:
        taken.release()
        await free.wait()

    async def one(connection: Any) -> Any:
        return await connection.fetchval("SELECT 1")

    async with asyncio.TaskGroup() as holding:
        for _ in range(2):
            holding.create_task(pool.read(hold))
        await taken.acquire()
        await taken.acquire()
        results = await asyncio.gather(*(pool.read(one) for _ in range(50)), return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)
        assert "within 1 s (pool size 2)" in str(results[0])
        free.set()
    assert [await pool.read(one) for _ in range(10)] == [1] * 10
    assert pool._pool.get_size() <= 2
    await pool.close()


class Heartbeat(threading.Thread):
    """Renews through a handle of its own, in a loop of its own, without end."""

    def __init__(self, provider: PostgresProvider) -> None:
        super().__init__()
        self._provider = provider
        self.number = 0
        self.beats = 0
        self.failures: list[str] = []
        self._ending = threading.Event()

    def run(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        members = self._provider.members()
        self.number = (await members.join("127.0.0.1:1", NOW)).number
        while not self._ending.is_set():
            try:
                if await members.renew(self.number, NOW) is None:
                    self.failures.append("no member")
                self.beats += 1
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(0.01)
            except StoreError as error:
                self.failures.append(repr(error))
        await members.close()

    async def goes_on(self) -> None:
        """Return after two more renewals: one of them has begun now."""
        wanted = self.beats + 2
        async with asyncio.timeout(10):
            while self.beats < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # another thread's fact

    def end(self) -> None:
        self._ending.set()
        self.join()


async def test_a_crash_of_the_server_costs_a_pause_and_no_silo_no_lock_and_no_answered_commit(
    provider: PostgresProvider, server: servers.Server
) -> None:
    owner = await an_owner(provider)
    heart = Heartbeat(provider)
    heart.start()
    answered: list[int] = []
    doubtful = 0
    stop = asyncio.Event()

    async def commits() -> None:
        nonlocal doubtful
        version = 0
        while not stop.is_set():
            try:
                verdict = await owner.committed(grain=writing(version))
                version = verdict.version
                answered.append(version)
            except (Unavailable, OutcomeUnknown):
                doubtful += 1
                version = await loaded(provider)

    async def more_commits() -> None:
        wanted = len(answered) + 5
        async with asyncio.timeout(10):
            while len(answered) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    committing = asyncio.ensure_future(commits())
    for _ in range(3):
        await more_commits()
        await heart.goes_on()
        server.stop(signal.SIGQUIT)  # as pg_ctl restart -m immediate does
        server.start()
        await more_commits()
        await heart.goes_on()
        assert await provider.is_held(heart.number)
    stop.set()
    await committing
    heart.end()
    assert heart.failures == []
    assert answered == sorted(set(answered))
    assert len(answered) <= await loaded(provider) <= len(answered) + doubtful
    (first, second) = await provider.silos()
    assert (first.left_at, second.left_at) == (None, None)


async def loaded(provider: PostgresProvider) -> int:
    """The version that is stored, asked for until the server answers."""
    async with asyncio.timeout(10):
        while True:
            try:
                (row,) = await provider.load([("shipments", "k")])
            except Unavailable:
                await asyncio.sleep(0.01)
            else:
                return 0 if row is None else row.version


async def test_a_restored_server_is_another_one_until_the_store_is_opened_again(
    provider: PostgresProvider, server: servers.Server
) -> None:
    """A recovery ends on a new timeline, as a promotion does."""
    owner = await an_owner(provider)
    await owner.committed(grain=writing(0))
    members = provider.members()
    assert await members.renew(owner.number, NOW)
    await stopped(server, provider)
    restored(server)
    with pytest.raises(StoreChanged, match="open it again"):
        await until_it_connects(members, owner.number)
    await members.close()
    with pytest.raises(StoreChanged, match="open it again and take the partitions anew"):
        await owner.commit(owner.member(grain=writing(1)))
    with pytest.raises(StoreChanged):
        await provider.load([("shipments", "k")])
    with pytest.raises(StoreChanged):
        await provider.renew(owner.number, NOW)
    await provider.close()
    await provider.open(NOW)
    heir = await an_owner(provider)
    await heir.committed(grain=writing(1))
