"""Several processes on one SQLite file: no commit of an old epoch, none lost, none starved, a short log."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.providers.conformance.made import NOW, Owner, an_owner, writing
from farro.providers.errors import Unavailable
from farro.providers.sqlite.store import SqliteProvider
from tests.acceptance.sqlite_fighter import PARTITIONS

PROCESSES = 4
SECONDS = 3.0
WAIT_MAX_S = 2.0  # of one commit; on a quiet machine it is below 0.1 s
LOG_BYTES_MAX = 64 << 20

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="one process per file there")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "farro.db"


@pytest.fixture
def started(path: Path) -> Iterator[Any]:
    """Starts Python with arguments; what it started ends with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        running.append(
            subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        return running[-1]

    yield start
    for each in running:
        if each.poll() is None:
            each.kill()
        each.communicate()


async def test_processes_that_fight_over_partitions_commit_under_their_own_epochs_and_lose_nothing(
    path: Path, started: Any
) -> None:
    fighters = [
        started("-m", "tests.acceptance.sqlite_fighter", str(path), str(SECONDS)) for _ in range(PROCESSES)
    ]
    for each in fighters:  # all four open and migrate the same new file at once
        assert each.stdout.readline() == "ready\n"
    for each in fighters:
        each.stdin.write("go\n")
        each.stdin.flush()
    told = [json.loads(each.communicate()[0]) for each in fighters]
    answers = {
        (partition, version): f"{each['number']}:{epoch}"
        for each in told
        for partition, epoch, version in each["committed"]
    }
    store = SqliteProvider(path)
    await store.open(NOW)
    for partition in PARTITIONS:
        (row,) = await store.load([("counter", str(partition))])
        assert row is not None
        events = await store.events(partition, "log", 0, 1_000_000)
        notes = [event.payload.decode() for _, event in events]
        acknowledged = [answers[partition, version] for version in range(1, row.version + 1)]
        assert notes == acknowledged, "what is stored is what was told to be, in that order"
        assert [sequence for sequence, _ in events] == list(range(1, row.version + 1))
        epochs = [int(note.partition(":")[2]) for note in notes]
        assert epochs == sorted(epochs), "an older epoch committed after a newer one"
        assert len({note.partition(":")[0] for note in notes}) > 1, "it changed hands"
    await store.close()
    assert sum(len(each["committed"]) for each in told) == len(answers)
    assert sum(each["fenced"] for each in told) > 0
    assert sum(each["conflicts"] for each in told) == 0, "who has the epoch is alone with the versions"
    assert min(each["batches"] for each in told) * PROCESSES > max(each["batches"] for each in told)
    assert max(each["longest_s"] for each in told) < WAIT_MAX_S


WRITE_BIG = """
import asyncio, sys
from farro.providers.conformance.made import NOW, an_owner, writing
from farro.providers.sqlite.store import SqliteProvider

async def main(path, partition):
    store = SqliteProvider(path, synchronous="normal", busy_timeout_s=30)
    await store.open(NOW)
    owner = await an_owner(store, partition)
    print("ready", flush=True)
    sys.stdin.readline()
    longest = 0
    for version in range(120):
        member = dict(partition=partition, grain=writing(version, bytes([version]) * (1 << 20)))
        await owner.committed(str(partition), **member)
        await store.load([("shipments", "1"), ("shipments", "2")])
        await store.cluster()
        with open(path + "-wal", "rb") as log:
            longest = max(longest, log.seek(0, 2))
    print(longest, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_the_log_stays_short_with_several_processes_that_write_and_read(
    path: Path, started: Any
) -> None:
    store = SqliteProvider(path, busy_timeout_s=30)
    await store.open(NOW)
    writers = [started("-c", WRITE_BIG, str(path), str(partition)) for partition in (1, 2)]
    for each in writers:
        assert each.stdout.readline() == "ready\n"
    for each in writers:
        each.stdin.write("go\n")
        each.stdin.flush()
    longest = [int(each.communicate()[0]) for each in writers]
    rows = await store.load([("shipments", "1"), ("shipments", "2")])
    await store.close()
    assert [row and row.version for row in rows] == [120, 120]
    assert max(longest) < LOG_BYTES_MAX
    assert not path.with_name("farro.db-wal").exists()


OPEN_AND_CLOSE = """
import asyncio, sys
from farro.providers.conformance.made import NOW, an_owner, writing
from farro.providers.sqlite.store import SqliteProvider

async def main():
    for turn in range(15):
        store = SqliteProvider(sys.argv[1], busy_timeout_s=30)
        await store.open(NOW)
        owner = await an_owner(store, int(sys.argv[2]))
        await owner.committed(f"{sys.argv[2]}-{turn}", partition=int(sys.argv[2]), grain=writing())
        await store.close()

asyncio.run(main())
"""


async def test_processes_that_open_and_close_the_file_all_the_time_lose_nothing(
    path: Path, started: Any
) -> None:
    openers = [started("-c", OPEN_AND_CLOSE, str(path), str(index)) for index in range(PROCESSES)]
    assert [each.wait() for each in openers] == [0] * PROCESSES
    store = SqliteProvider(path)
    await store.open(NOW)
    keys = [("shipments", f"{index}-{turn}") for index in range(PROCESSES) for turn in range(15)]
    rows = await store.load(keys)
    silos = await store.silos()
    await store.close()
    assert None not in rows
    assert [silo.number for silo in silos] == list(range(1, len(keys) + 1))


STOPPED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from farro.providers.sqlite.write_lock import WriteLock

lock = WriteLock(Path(sys.argv[1]), 5)
lock.open()
lock.acquire()
print("stopped", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


async def test_a_process_that_is_stopped_while_it_writes_is_told_of_and_its_death_frees_the_lock(
    path: Path, started: Any
) -> None:
    store = SqliteProvider(path, busy_timeout_s=0.2)
    await store.open(NOW)
    owner = await an_owner(store)
    stopped = started("-c", STOPPED_WHILE_WRITING, str(path))
    assert stopped.stdout.readline() == "stopped\n"
    with pytest.raises(Unavailable, match="another process has held its write lock"):
        await owner.commit(owner.member(grain=writing()))
    assert await store.load([("shipments", "k")]) == [None], "what only reads goes on"
    stopped.kill()
    stopped.wait()
    await committed_at_last(owner)
    await store.close()


async def committed_at_last(owner: Owner) -> None:
    for _ in range(50):
        try:
            await owner.committed(grain=writing())
            return
        except Unavailable:
            continue
    raise AssertionError("the lock did not come free")
