"""Full disks, locks, failing commits and rows that other programs wrote."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from farro.providers.conformance.made import NOW, Owner, a_reminder, an_owner, writing
from farro.providers.errors import OutcomeUnknown, Unavailable
from farro.providers.rows import EventRow, Outcome, PollQuery
from farro.providers.sqlite.failures import at_once
from farro.providers.sqlite.failures import writing as transaction
from farro.providers.sqlite.store import SqliteProvider


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteProvider]:
    provider = SqliteProvider(tmp_path / "farro.db", busy_timeout_s=0.05)
    await provider.open(NOW)
    yield provider
    await provider.close()


@pytest.fixture
async def owner(store: SqliteProvider) -> Owner:
    return await an_owner(store)


async def test_a_full_disk_is_unavailable_and_the_store_goes_on_when_there_is_room(
    store: SqliteProvider, owner: Owner
) -> None:
    await owner.committed("before", grain=writing(0))
    # SQLite's own page limit answers SQLITE_FULL, as the disk does
    (pages,) = await store.run_in_writer(lambda c: c.execute("PRAGMA page_count").fetchone())
    await store.run_in_writer(lambda c: c.execute(f"PRAGMA max_page_count = {pages + 2}").fetchone())
    big = owner.member("big", grain=writing(0, bytes(1 << 20)))
    with pytest.raises(Unavailable, match=r"full: free some space"):
        await owner.commit(owner.member("small", grain=writing(0)), big)
    assert await store.load([("shipments", "small"), ("shipments", "big")]) == [None, None]
    await store.run_in_writer(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchone())
    verdicts = await owner.commit(owner.member("small", grain=writing(0)), big)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.COMMITTED, Outcome.COMMITTED]


async def test_a_file_locked_by_another_program_is_unavailable_until_it_lets_go(
    store: SqliteProvider, owner: Owner, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "farro.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="another program holds the file locked"):
            await owner.commit(owner.member(grain=writing(0)))
        with pytest.raises(Unavailable, match="locked"):
            await store.renew(owner.number, NOW)
        assert await store.load([("shipments", "k")]) == [None]
        other.execute("ROLLBACK")
    await owner.committed(grain=writing(0))


class FailingCommit(sqlite3.Connection):
    """A connection whose COMMIT fails with ``code``, before or after SQLite ended the transaction."""

    code = sqlite3.SQLITE_BUSY
    ends_by_itself = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, *parameters)
        if self.ends_by_itself:
            super().execute("ROLLBACK")
        error = sqlite3.OperationalError("told to fail")
        error.sqlite_errorcode = self.code
        raise error


@pytest.mark.parametrize("ends_by_itself", [False, True])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, sqlite3.OperationalError),
        (sqlite3.SQLITE_FULL, sqlite3.OperationalError),
        (sqlite3.SQLITE_IOERR, OutcomeUnknown),
        (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknown),
    ],
)
def test_a_failed_commit_is_rolled_back_and_only_an_io_error_leaves_a_doubt(
    code: int, expected: type[Exception], ends_by_itself: bool
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=FailingCommit)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.code, connection.ends_by_itself = code, ends_by_itself
        with pytest.raises(expected), transaction(connection, "u"):
            connection.execute("INSERT INTO t VALUES (1)")
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(sqlite3.SQLITE_FULL, sqlite3.OperationalError), (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknown)],
)
def test_so_does_a_statement_that_is_a_transaction_of_its_own(code: int, expected: type[Exception]) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=FailingCommit)) as connection:
        connection.code = code
        with pytest.raises(expected), at_once(connection, "u"):
            connection.execute("COMMIT")
        assert not connection.in_transaction


class FailingDisk(FailingCommit):
    """A connection whose COMMIT and ROLLBACK fail on the disk as long as it is ``bad``."""

    code = sqlite3.SQLITE_IOERR
    bad = True

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if self.bad and sql == "ROLLBACK":
            raise sqlite3.OperationalError("told to fail at the rollback")
        return super().execute(sql, *parameters) if self.bad else sqlite3.Connection.execute(self, sql)


def test_a_rollback_that_fails_leaves_the_doubt_and_the_next_transaction_goes_on() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=FailingDisk)) as connection:
        connection.execute("CREATE TABLE t (x)")
        with pytest.raises(OutcomeUnknown), transaction(connection, "u"):
            connection.execute("INSERT INTO t VALUES (1)")
        connection.bad = False
        with transaction(connection, "u"):
            connection.execute("INSERT INTO t VALUES (2)")
        assert connection.execute("SELECT x FROM t").fetchall() == [(2,)]


async def test_a_value_only_sqlite_finds_too_big_rejects_its_member_alone(
    store: SqliteProvider, owner: Owner
) -> None:
    def lower(connection: sqlite3.Connection) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)

    await store.run_in_writer(lower)
    event = EventRow("s", b"1", NOW)
    verdicts = await owner.commit(
        owner.member("a", grain=writing(0), events=(event,)),
        owner.member("b", grain=writing(0, bytes(200_000)), events=(event,)),
        owner.member("a", grain=writing(1), events=(event,)),
        now=NOW + 1,
    )
    assert [v.outcome for v in verdicts] == [Outcome.COMMITTED, Outcome.REJECTED, Outcome.COMMITTED]
    assert "too big" in verdicts[1].reason
    rows = await store.load([("shipments", "a"), ("shipments", "b")])
    assert [row and row.version for row in rows] == [2, None]
    assert len(await store.events(owner.member().partition, "s", 0, 10)) == 2
    assert [silo.renewed_at for silo in await store.silos()] == [NOW + 1]


async def test_a_statement_that_fails_at_its_second_row_leaves_nothing_of_its_member(
    store: SqliteProvider, owner: Owner
) -> None:
    partition, event = owner.member().partition, EventRow("s", b"1", NOW)
    taken = "INSERT INTO events VALUES ('default', ?, 's', 3, x'', 0)"
    await store.run_in_writer(lambda c: c.execute(taken, (partition,)).rowcount)
    verdicts = await owner.commit(
        owner.member("a", grain=writing(0), events=(event,)),
        owner.member("b", grain=writing(0), events=(event, event)),
    )
    assert [v.outcome for v in verdicts] == [Outcome.COMMITTED, Outcome.REJECTED]
    assert "UNIQUE" in verdicts[1].reason
    rows = await store.load([("shipments", "a"), ("shipments", "b")])
    assert [row and row.version for row in rows] == [1, None]
    assert [number for number, _ in await store.events(partition, "s", 0, 10)] == [1, 3]


async def test_text_that_another_program_broke_does_not_stop_a_poll(
    store: SqliteProvider, owner: Owner
) -> None:
    await owner.put(a_reminder(name="a"), a_reminder(name="b"))
    await store.run_in_writer(
        lambda c: c.execute("UPDATE reminders SET note = CAST(x'ff41' AS TEXT) WHERE name = 'a'").rowcount
    )
    (rows,) = await store.poll([PollQuery(1, NOW, 10)])
    assert [(row.name, row.note) for row in rows] == [("a", "\ufffdA"), ("b", None)]


async def test_a_renewal_leaves_commits_as_durable_as_before(store: SqliteProvider, owner: Owner) -> None:
    await store.renew(owner.number, NOW + 1)
    level = await store.run_in_writer(lambda c: c.execute("PRAGMA synchronous").fetchone())
    assert level == (2,)  # FULL


async def test_what_a_statement_keeps_to_undo_itself_stays_in_memory(store: SqliteProvider) -> None:
    place = await store.run_in_writer(lambda c: c.execute("PRAGMA temp_store").fetchone())
    assert place == (2,)  # MEMORY
