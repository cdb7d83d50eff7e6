"""The write lock: one at a time, in turns, never waited for without a bound."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.providers.errors import Unavailable
from farro.providers.sqlite.write_lock import WriteLock

PATIENCE_S = 0.05


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[list[WriteLock]]:
    made = [WriteLock(tmp_path / "farro.db", PATIENCE_S) for _ in range(3)]
    for lock in made:
        lock.open()
    yield made
    for lock in made:
        lock.close()


def test_a_lock_that_is_held_is_waited_for_as_long_as_said_and_the_error_tells_the_way_out(
    locks: list[WriteLock],
) -> None:
    first, second, _ = locks
    first.acquire()
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=r"farro\.db: another process has held its write lock .*fuser"):
        second.acquire()
    assert time.monotonic() - begun >= PATIENCE_S
    first.release()


def test_what_comes_after_the_wait_was_given_up_is_given_back(locks: list[WriteLock]) -> None:
    first, second, third = locks
    first.acquire()
    with pytest.raises(Unavailable):
        second.acquire()
    first.release()
    acquired_within(third)
    third.release()
    acquired_within(second)
    second.release()


def acquired_within(lock: WriteLock, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            return lock.acquire()
        except Unavailable:
            if time.monotonic() > end:
                raise


def test_one_that_gave_up_waits_again_behind_the_same_holder(locks: list[WriteLock]) -> None:
    first, second, _ = locks
    first.acquire()
    for _ in range(3):
        with pytest.raises(Unavailable):
            second.acquire()
    first.release()
    acquired_within(second)
    with pytest.raises(Unavailable):
        first.acquire()
    second.release()
    acquired_within(first)
    first.release()


def test_closing_in_the_middle_of_a_wait_leaves_the_lock_to_others(locks: list[WriteLock]) -> None:
    first, second, third = locks
    first.acquire()
    with pytest.raises(Unavailable):
        second.acquire()
    second.close()
    first.release()
    acquired_within(third)
    third.release()


def test_one_at_a_time_writes_and_none_is_left_out(tmp_path: Path) -> None:
    turns_each, turns_max, inside = 20, 100_000, 0
    counts = [0] * 4
    over = threading.Event()

    def writes(index: int) -> None:
        nonlocal inside
        lock = WriteLock(tmp_path / "farro.db", 20)
        lock.open()
        while not over.is_set():
            lock.acquire()
            inside += 1
            assert inside == 1
            counts[index] += 1
            if min(counts) >= turns_each or sum(counts) >= turns_max:
                over.set()
            inside -= 1
            lock.release()
        lock.close()

    threads = [threading.Thread(target=writes, args=(index,)) for index in range(len(counts))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert min(counts) >= turns_each, counts
