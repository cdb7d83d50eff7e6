"""The write-ahead log stays short: under a steady writer, and after a long reader has gone."""

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from farro.providers.conformance.made import NOW, Owner, an_owner, writing
from farro.providers.sqlite.checkpointing import LOG_BYTES_KEPT, LOG_BYTES_WAIT
from farro.providers.sqlite.store import SqliteProvider

STATE_BYTES = 1 << 20
LOG_BYTES_MAX = 64 << 20  # case STO-004


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    store = SqliteProvider(tmp_path / "farro.db", synchronous="normal")
    await store.open(NOW)
    yield await an_owner(store)
    await store.close()


def log_bytes(folder: Path) -> int:
    return (folder / "farro.db-wal").stat().st_size


async def write(owner: Owner, versions: range, folder: Path) -> list[int]:
    """One MiB a version; the length of the log after each."""
    sizes = []
    for version in versions:
        # another content each time: SQLite writes no page that stays the same
        await owner.committed(grain=writing(version, bytes([version]) * STATE_BYTES))
        sizes.append(log_bytes(folder))
    return sizes


async def test_a_steady_writer_leaves_a_short_log_and_every_commit_in_the_file(
    owner: Owner, tmp_path: Path
) -> None:
    sizes = await write(owner, range(100), tmp_path)
    assert max(sizes) < LOG_BYTES_WAIT + 4 * STATE_BYTES
    assert min(sizes[60:]) < LOG_BYTES_KEPT + 4 * STATE_BYTES, "it is started over again and again"
    await owner.store.close()
    with closing(sqlite3.connect(tmp_path / "farro.db")) as connection:
        assert connection.execute("SELECT version FROM grains").fetchall() == [(100,)]


async def test_sto_004_the_log_shrinks_after_a_long_reader_has_ended(owner: Owner, tmp_path: Path) -> None:
    await write(owner, range(1), tmp_path)
    with closing(sqlite3.connect(tmp_path / "farro.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT version FROM grains").fetchone() == (1,)
        sizes = await write(owner, range(1, 90), tmp_path)
        assert reader.execute("SELECT version FROM grains").fetchone() == (1,)
        reader.execute("ROLLBACK")
    assert sizes[-1] > LOG_BYTES_MAX
    for renewal in range(100):
        await owner.store.renew(owner.number, NOW + renewal)
        if log_bytes(tmp_path) <= LOG_BYTES_KEPT:
            break
    assert log_bytes(tmp_path) < LOG_BYTES_MAX


async def test_short_readers_that_overlap_do_not_keep_the_log_growing(owner: Owner, tmp_path: Path) -> None:
    path, over = tmp_path / "farro.db", threading.Event()

    def read() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            while not over.is_set():
                reader.execute("BEGIN")
                reader.execute("SELECT version FROM grains").fetchall()
                over.wait(0.02)
                reader.execute("ROLLBACK")

    readers = [threading.Thread(target=read) for _ in range(4)]
    for each in readers:
        each.start()
    try:
        sizes = await write(owner, range(120), tmp_path)
    finally:
        over.set()
        for each in readers:
            each.join()
    assert max(sizes) < LOG_BYTES_MAX


async def test_trouble_with_the_log_is_logged_and_commits_go_on(
    owner: Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(uri: str) -> None:
        raise sqlite3.OperationalError(f"told to fail on {uri[:5]}")

    monkeypatch.setattr("farro.providers.sqlite.checkpointing.passive", failing)
    await write(owner, range(12), tmp_path)
    assert "could not be copied into its database, trying again: told to fail on file:" in caplog.text
    (row,) = await owner.store.load([("shipments", "k")])
    assert row is not None and row.version == 12
