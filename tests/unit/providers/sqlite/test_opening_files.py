"""A database file: what a silo refuses, what a tool may read, what is left behind."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from farro.providers.conformance.made import NOW, a_reminder, an_owner, writing
from farro.providers.errors import SchemaMismatch, StoreInUse, StoreMissing, Unavailable
from farro.providers.members import SiloStatus
from farro.providers.rows import PutReminder
from farro.providers.sqlite.locking import network_file_system
from farro.providers.sqlite.migrating import known_migrations, migrate
from farro.providers.sqlite.os_locks import FileLock
from farro.providers.sqlite.store import SqliteProvider

HOLD_AND_WRITE = """
import asyncio, sys
from farro.providers.conformance.made import NOW, an_owner, writing
from farro.providers.sqlite.store import SqliteProvider

async def main():
    store = SqliteProvider(sys.argv[1])
    await store.open(NOW)
    owner = await an_owner(store)
    await owner.committed(grain=writing(state=b"from the other process"))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "farro.db"


FORK_AND_DIE = """
import os, sys
from pathlib import Path
from farro.providers.sqlite.silo_locks import SiloLocks
from farro.providers.sqlite.write_lock import WriteLock

path = Path(sys.argv[1])
SiloLocks(path, "default").take(1)
lock = WriteLock(path, 5)
lock.open()
lock.acquire()
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()  # lives until the test closes its end
os._exit(0)
"""


def python(code: str, path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def content(path: Path) -> bytes:
    return path.read_bytes()


def fill(path: Path, data: bytes) -> None:
    path.write_bytes(data)


async def made(path: Path) -> None:
    """A store with one grain and one reminder, closed."""
    store = SqliteProvider(path)
    await store.open(NOW)
    owner = await an_owner(store)
    await owner.committed(grain=writing(), reminders=(PutReminder(a_reminder()),))
    await store.close()


async def opening(path: Path, *, read_only: bool = False) -> Exception:
    """The error that opening raises."""
    store = SqliteProvider(path, read_only=read_only)
    with pytest.raises(Exception) as caught:
        await store.open(NOW)
    await store.close()
    return caught.value


async def test_a_closed_store_is_one_file_beside_its_locks(path: Path) -> None:
    await made(path)
    assert names_in(path.parent) == ["farro.db", "farro.db.lock", "farro.db.next", "farro.db.write"]


async def test_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    error = await opening(tmp_path)
    assert isinstance(error, Unavailable) and f"{tmp_path} is a directory" in str(error)


async def test_a_missing_folder_is_refused_by_name_and_not_created(tmp_path: Path) -> None:
    error = await opening(tmp_path / "no" / "farro.db")
    assert isinstance(error, Unavailable) and f"no folder {tmp_path / 'no'}" in str(error)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_file_of_something_else_is_refused_and_left_as_it_was(path: Path, read_only: bool) -> None:
    fill(path, b"Dear diary, " * 100)
    error = await opening(path, read_only=read_only)
    assert isinstance(error, Unavailable) and "not an SQLite database" in str(error)
    assert content(path) == b"Dear diary, " * 100


async def test_the_database_of_another_program_is_refused_and_left_as_it_was(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()
    before = content(path)
    error = await opening(path)
    assert isinstance(error, SchemaMismatch) and "bookmarks" in str(error)
    assert content(path) == before


async def test_a_newer_schema_is_refused_with_both_numbers_and_left_as_it_was(path: Path) -> None:
    await made(path)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO farro_migrations VALUES (3, 'later', 'x', 0)")
    connection.close()
    before = content(path)
    for read_only in (False, True):
        error = await opening(path, read_only=read_only)
        assert isinstance(error, SchemaMismatch)
        assert "written by a newer farro (schema 3; this farro knows up to 2): upgrade farro" in str(error)
    assert content(path) == before


async def test_a_migration_that_was_tampered_with_is_refused(path: Path) -> None:
    await made(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE farro_migrations SET checksum = 'other'")
    connection.close()
    error = await opening(path)
    assert isinstance(error, SchemaMismatch) and "migration 1 (first_tables)" in str(error)


async def test_a_second_silo_opens_the_file_and_the_last_to_close_leaves_one_file(path: Path) -> None:
    first, second = SqliteProvider(path), SqliteProvider(path)
    await first.open(NOW)
    await second.open(NOW)
    assert content(path.with_name("farro.db.lock")) == f"{os.getpid()}\n".encode()
    owner = await an_owner(first)
    await owner.committed(grain=writing())
    await first.close()
    assert path.with_name("farro.db-wal").exists()
    (row,) = await second.load([("shipments", "k")])
    await second.close()
    assert row is not None
    assert names_in(path.parent) == ["farro.db", "farro.db.lock", "farro.db.next", "farro.db.write"]


async def test_a_farro_that_shares_no_file_keeps_this_one_out_and_is_named(path: Path) -> None:
    lock = FileLock(path.with_name("farro.db.lock"))
    lock.open()
    assert lock.try_lock()
    lock.write(b"4711\n")
    error = await opening(path)
    lock.close()
    assert (
        isinstance(error, StoreInUse) and "in use by process 4711" in str(error) and str(path) in str(error)
    )
    store = SqliteProvider(path)
    await store.open(NOW)
    await store.close()


async def test_reading_creates_nothing(path: Path) -> None:
    error = await opening(path, read_only=True)
    assert isinstance(error, StoreMissing) and str(path) in str(error)
    assert names_in(path.parent) == []


async def test_an_empty_file_is_no_store_to_read(path: Path) -> None:
    fill(path, b"")
    assert isinstance(await opening(path, read_only=True), StoreMissing)
    assert content(path) == b""


async def test_a_reader_reads_a_closed_store_writes_nothing_and_leaves_no_file(path: Path) -> None:
    await made(path)
    before = {entry: entry.stat().st_mtime_ns for entry in path.parent.iterdir()}
    reader = SqliteProvider(path, read_only=True)
    info = await reader.open(NOW)
    found = await reader.reminders_of("shipments", "k")
    (row,) = await reader.load([("shipments", "k")])
    with pytest.raises(Unavailable, match="for reading only"):
        await reader.join("a", NOW)
    await reader.close()
    assert (info.schema_version, info.partitions) == (2, 64)
    assert found == [a_reminder()] and row is not None
    assert {entry: entry.stat().st_mtime_ns for entry in path.parent.iterdir()} == before


async def test_a_reader_sees_the_commits_of_a_running_silo(path: Path) -> None:
    silo = SqliteProvider(path)
    await silo.open(NOW)
    owner = await an_owner(silo)
    reader = SqliteProvider(path, read_only=True)
    await reader.open(NOW)
    assert await reader.load([("shipments", "k")]) == [None]
    await owner.committed(grain=writing())
    (row,) = await reader.load([("shipments", "k")])
    await silo.close()
    (after_close,) = await reader.load([("shipments", "k")])
    await reader.close()
    assert row is not None and row == after_close


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
async def test_a_killed_silo_leaves_its_commits_to_readers_and_its_lock_to_nobody(path: Path) -> None:
    with python(HOLD_AND_WRITE, path) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
            store = SqliteProvider(path)
            await store.open(NOW)
            (silo,) = await store.silos()
            assert await store.is_held(silo.number)
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
    assert not await store.is_held(silo.number)
    assert await store.mark_dead(silo.number, silo.renewals, NOW)
    await store.close()
    assert [name for name in names_in(path.parent) if "silo" in name]
    for read_only in (True, False):
        store = SqliteProvider(path, read_only=read_only)
        await store.open(NOW)
        (row,) = await store.load([("shipments", "k")])
        assert row is not None and row.state == b"from the other process"
        if not read_only:
            await store.join("next", NOW)
            assert len([name for name in names_in(path.parent) if "silo" in name]) == 1, "its own"
        await store.close()
    assert not [name for name in names_in(path.parent) if "silo" in name]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_child_keeps_no_lock_of_its_dead_parent(path: Path) -> None:
    with python(FORK_AND_DIE, path) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "forked\n"
        parent.wait()
        store = SqliteProvider(path)
        await store.open(NOW)
        assert not await store.is_held(1)
        await store.close()


def test_network_file_systems_are_told_by_the_mount_that_holds_the_path() -> None:
    mounts = "\n".join(
        [
            "/dev/sda / ext4 rw 0 0",
            "server:/x /data nfs4 rw 0 0",
            "/dev/sdb /data/local ext4 rw 0 0",
            "//host/share /mnt/with\\040space cifs rw 0 0",
            "broken",
        ]
    )
    found = [
        network_file_system(Path(path), mounts)
        for path in ("/data/a.db", "/data/local/a.db", "/a.db", "/mnt/with space/a.db", "/database/a.db")
    ]
    assert found == ["nfs4", None, None, "cifs", None]


async def test_an_older_file_is_upgraded_with_its_rows(path: Path) -> None:
    first = known_migrations()[0]
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        migrate(old, "u", [first], NOW)
        old.execute(
            "INSERT INTO silos VALUES ('default', 1, 'gone', 1, 2, 3), ('default', 2, 'killed', 4, 5, NULL)"
        )
        old.execute(
            "INSERT INTO stores VALUES ('default', 'last_silo_number', 2), ('default', 'partitions', 64)"
        )
        old.execute("INSERT INTO partitions VALUES ('default', 3, 2, 7, NULL, 11)")
    reader = SqliteProvider(path)
    assert await reader.pending_migrations() == ["0002_cluster"]
    error = await opening(path, read_only=True)
    assert isinstance(error, SchemaMismatch) and "schema 1, this farro needs 2" in str(error)
    store = SqliteProvider(path)
    await store.open(NOW)
    rows = await store.cluster()
    held = await store.is_held(2)
    dead = await store.mark_dead(2, 0, NOW)
    silo = await store.join("new", NOW)
    taken = await store.take(silo.number, [3], NOW, [7])
    await store.close()
    assert [(row.number, row.status) for row in rows.silos] == [(1, SiloStatus.LEFT), (2, SiloStatus.ACTIVE)]
    assert (rows.owners[3], rows.epochs[3], held, dead, silo.number) == (2, 7, False, True, 3)
    assert [(row.epoch, row.previous_alive_at) for row in taken] == [(8, 5)]


async def test_two_services_share_a_file_one_after_the_other(path: Path) -> None:
    for service in ("one", "two"):
        store = SqliteProvider(path, service_id=service)
        await store.open(NOW)
        owner = await an_owner(store)
        assert await store.load([("shipments", "k")]) == [None]
        await owner.committed(grain=writing(state=service.encode()))
        await store.close()


def test_an_unknown_level_of_durability_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="normal, full, extra"):
        SqliteProvider(path, synchronous="off")
