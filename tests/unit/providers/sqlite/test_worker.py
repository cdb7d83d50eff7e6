"""Pins what worker.py needs of aiosqlite: whole functions, in order, in one thread, whoever stops waiting."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator

import pytest

from farro.providers.sqlite.worker import Worker, connect, open_file


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    made = await connect(lambda: open_file("file::memory:", 1.0))
    yield made
    await made.close()


async def test_a_function_gets_the_raw_connection_in_a_thread_of_its_own(worker: Worker) -> None:
    def job(connection: sqlite3.Connection) -> tuple[int, int]:
        return connection.execute("SELECT 41 + 1").fetchone()[0], threading.get_ident()

    first, thread = await worker.run(job)
    again, same = await worker.run(job)
    assert (first, again) == (42, 42)
    assert thread == same != threading.get_ident()


async def test_functions_run_in_the_order_they_were_given(worker: Worker) -> None:
    seen: list[int] = []
    await asyncio.gather(*(worker.run(lambda _, n=n: seen.append(n)) for n in range(50)))  # type: ignore[misc]
    assert seen == list(range(50))


async def test_errors_come_back_and_the_worker_goes_on(worker: Worker) -> None:
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        await worker.run(lambda connection: connection.execute("nonsense"))
    assert await worker.run(lambda _: 1) == 1


async def test_a_function_whose_caller_is_cancelled_still_ends_before_the_next(worker: Worker) -> None:
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow(_: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait()
        seen.append("slow")

    waiting = asyncio.ensure_future(worker.run(slow))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    await worker.run(lambda _: seen.append("next"))
    assert seen == ["slow", "next"]


async def test_a_connection_that_cannot_open_says_so() -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await connect(lambda: open_file("file:/nowhere/at/all.db?mode=rw", 1.0))


async def test_a_connection_that_cannot_open_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with pytest.raises(sqlite3.OperationalError):
        await connect(lambda: open_file("file:/nowhere/at/all.db?mode=ro", 1.0))
    # (to_thread keeps one of its own, asleep)
    left = [each.name for each in set(threading.enumerate()) - before]
    assert [name for name in left if not name.startswith("asyncio_")] == []
