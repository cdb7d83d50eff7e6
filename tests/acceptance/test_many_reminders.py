"""A million reminders in the file cost a silo that starts neither time nor memory."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psutil
import pytest

from farro.client import Client
from farro.client.clock import SystemClock
from tests.acceptance.processes import GRAINS, silos
from tests.acceptance.served_grains import Bell

REMINDERS = 1_000_000
STARTS = 3  # the quickest counts: the machine may be busy with something else
YEAR_US = 365 * 24 * 3600 * 1_000_000


def add_reminders(path: Path, count: int) -> None:
    """Copies of the one row that stands in the file, each of its own grain, due from a year on."""
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(reminders)")]
        changed = {
            "grain_key": "'many-' || number",
            "partition": "number % 64",
            "next_due_at": f"next_due_at + {YEAR_US} + number",
            "wake_at": f"next_due_at + {YEAR_US} + number",
            "registration": "registration + number",
        }
        values = ", ".join(changed.get(name, name) for name in columns)
        connection.execute(
            "WITH RECURSIVE counted(number) AS "
            f"(SELECT 1 UNION ALL SELECT number + 1 FROM counted LIMIT {count}) "
            f"INSERT INTO reminders ({', '.join(columns)}) "
            f"SELECT {values} FROM counted, reminders WHERE reminders.grain_key = 'first'"
        )
        (found,) = connection.execute("SELECT count(*) FROM reminders").fetchone()
        assert found == count + 1
    connection.close()


def start_and_measure(folder: Path, store: str) -> tuple[float, float]:
    """``(seconds until ready, megabytes resident)``, the quickest of a few starts."""
    found = []
    for _ in range(STARTS):
        with silos(folder) as serve:
            began = SystemClock().steady()
            silo = serve(GRAINS, "--store", store)
            seconds = (SystemClock().steady() - began) / 1e6
            found.append((seconds, psutil.Process(silo.process.pid).memory_info().rss / 1e6))
    return min(found)


@pytest.mark.serial
@pytest.mark.timeout(180)
async def test_a_million_far_reminders_do_not_slow_a_start_or_fill_memory(tmp_path: Path) -> None:
    store = "sqlite:///farro.db"
    with silos(tmp_path) as serve:
        silo = serve(GRAINS, "--store", store)
        async with Client(silo.url) as client:
            await client.grain(Bell, "first").ring_every(3600)
        silo.process.terminate()
        assert silo.wait_end() == 0
    few = start_and_measure(tmp_path, store)
    add_reminders(tmp_path / "farro.db", REMINDERS)
    many = start_and_measure(tmp_path, store)
    assert many[0] - few[0] < 1.0, (few, many)
    assert many[1] - few[1] < 50.0, (few, many)
