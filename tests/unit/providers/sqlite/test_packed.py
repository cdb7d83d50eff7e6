"""Many rows in one value: the same rows as one by one, in the same order, in few steps."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder, an_owner, writing
from farro.providers.rows import Commit, GrainWrite, PollCursor, PollQuery, PutReminder, ReminderRow
from farro.providers.sqlite import packed, reading
from farro.providers.sqlite.store import SqliteProvider

ODD = ["é", "\U0001f600", 'quo"te', "back\\slash", "new\nline", "\x01", "[1,2]", " ", "null", "\u2028"]
LONG = bytes(range(256)) * 20
STATES = [None, b"", b"\x00", b"short", LONG[:2048], LONG[:2049], LONG]


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    store = SqliteProvider(tmp_path / "farro.db")
    await store.open(NOW)
    yield await an_owner(store)
    await store.close()


def sqlite_of(owner: Owner) -> SqliteProvider:
    assert isinstance(owner.store, SqliteProvider)
    return owner.store


async def test_states_of_every_length_and_kind_come_back(owner: Owner) -> None:
    for number, state in enumerate(STATES):
        grain = GrainWrite(0) if state is None else writing(0, state)
        await owner.committed(f"state-{number}", grain=grain)
    keys = [f"state-{number}" for number in range(len(STATES))]
    rows = await owner.store.load([("shipments", key) for key in [*keys, "nobody", "not\x00storable"]])
    assert [row and row.state for row in rows] == [*STATES, None, None]
    assert rows[-2:] == [None, None]
    assert all(row is not None and row.version == 1 for row in rows[:-2])


async def test_keys_of_every_kind_come_back(owner: Owner) -> None:
    await owner.commit(*(owner.member(key, grain=writing(0, key.encode())) for key in ODD))
    rows = await owner.store.load([("shipments", key) for key in reversed(ODD)])
    assert [row and (row.grain_key, row.state) for row in rows] == [
        (key, key.encode()) for key in reversed(ODD)
    ]


async def test_no_grains_are_no_rows(owner: Owner) -> None:
    assert await owner.store.load([]) == []
    assert await owner.store.poll([]) == []


def reminders(count: int) -> list[ReminderRow]:
    """Many wake at the same instant; texts and arguments of every kind."""
    return [
        replace(
            a_reminder(f"{ODD[number % len(ODD)]}{number}"),
            registration=count - number,
            wake_at=NOW + number // 7,
            partition=PARTITION + number % 2,
            args=bytes([number % 256]) * (number % 5),
            key=ODD[number % len(ODD)] if number % 3 else None,
            note=ODD[-number % len(ODD)] if number % 2 else None,
        )
        for number in range(count)
    ]


def puts(owner: Owner, rows: list[ReminderRow]) -> list[Commit]:
    return [
        owner.member(row.grain_key, partition=row.partition, reminders=(PutReminder(row),)) for row in rows
    ]


@pytest.mark.parametrize("limit", [0, 1, 127, 128, 129, 256, 300, 1000])
async def test_a_page_is_the_one_that_is_read_row_by_row(owner: Owner, limit: int) -> None:
    await owner.commit(*puts(owner, reminders(300)))
    middle = PollCursor(NOW + 10, 220, "shipments", "k", "chase")
    queries = [
        PollQuery(1, NOW + 1000, limit),
        PollQuery(1, NOW + 1000, limit, frozenset({PARTITION})),
        PollQuery(1, NOW + 30, limit, None, middle),
        PollQuery(2, NOW + 1000, limit),
    ]
    one_by_one = await sqlite_of(owner).look(lambda c: reading.poll(c, "default", queries))
    assert await owner.store.poll(queries) == one_by_one
    assert [len(rows) for rows in one_by_one[:2]] == [min(limit, 300), min(limit, 150)]


async def test_a_page_takes_a_statement_for_every_128_rows(owner: Owner) -> None:
    await owner.commit(*puts(owner, reminders(300)))
    ran: list[str] = []
    store = sqlite_of(owner)
    await store.look(lambda connection: connection.set_trace_callback(ran.append))
    (rows,) = await store.poll([PollQuery(1, NOW + 1000, 1000)])
    await store.look(lambda connection: connection.set_trace_callback(None))
    assert len(rows) == 300
    assert len([statement for statement in ran if "SELECT" in statement]) == 3


@pytest.mark.parametrize("size", [2048, 2049, 100_000])
async def test_a_page_with_long_arguments_is_read_row_by_row(owner: Owner, size: int) -> None:
    rows = [*reminders(3), replace(a_reminder("long"), registration=9, args=bytes(size), wake_at=NOW)]
    await owner.commit(*puts(owner, rows))
    queries = [PollQuery(2, NOW + 1000, 10), PollQuery(1, NOW + 1000, 10)]
    texts = await sqlite_of(owner).look(lambda connection: packed.poll(connection, "default", queries))
    assert (texts is None) is (size > 2048)
    none, some = await owner.store.poll(queries)
    assert none == [] and sorted(some, key=lambda row: row.registration) == sorted(
        rows, key=lambda row: row.registration
    )


async def test_text_that_is_none_is_read_row_by_row(owner: Owner) -> None:
    await owner.commit(*puts(owner, reminders(3)))
    await owner.committed("sound", grain=writing(0, b"sound"))

    def spoil(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE reminders SET note = CAST(x'ff' AS TEXT) WHERE registration = 2")
        connection.execute(
            "INSERT INTO grains SELECT service_id, CAST(x'ff' AS TEXT), grain_key, partition, version,"
            " incarnation, layout, state FROM grains WHERE grain_key = 'sound'"
        )

    store = sqlite_of(owner)
    await store.run_in_writer(spoil)
    queries = [PollQuery(1, NOW + 1000, 10)]
    assert await store.look(lambda connection: packed.poll(connection, "default", queries)) is None
    (rows,) = await store.poll(queries)
    assert sorted(row.registration for row in rows) == [1, 2, 3]
    assert [row.note for row in rows if row.registration == 2] == ["\ufffd"]
    (row,) = await store.load([("shipments", "sound")])
    assert row is not None and row.state == b"sound"
