"""Batches that are planned before their transaction: one statement for states alone, five for most others."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder, an_owner, writing
from farro.providers.errors import Unavailable
from farro.providers.rows import Commit, EventRow, Outcome, PutMode, PutReminder, Settle, Watermark
from farro.providers.sqlite.planning import SIGN_EVERY_US, Plan, Planner
from farro.providers.sqlite.queries import ROWS_MAX
from farro.providers.sqlite.store import SqliteProvider
from tests.unit.providers.sqlite.test_group_commit import looked, statements_of

KEYS = [f"k{number}" for number in range(7)]
OTHER = PARTITION + 1


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    store = SqliteProvider(tmp_path / "farro.db")
    await store.open(NOW)
    owner = await an_owner(store)
    await owner.commit(*(owner.member(key, grain=writing(0, b"new")) for key in KEYS))
    yield owner
    await store.close()


def states(owner: Owner, state: bytes = b"next", version: int = 1) -> list[Commit]:
    return [owner.member(key, grain=writing(version, state)) for key in KEYS]


async def stored(owner: Owner) -> list[tuple[int, bytes | None] | None]:
    rows = await owner.store.load([("shipments", key) for key in KEYS])
    return [None if row is None else (row.version, row.state) for row in rows]


async def signed_at(owner: Owner) -> int:
    (silo,) = await owner.store.silos()
    return silo.renewed_at


async def test_states_alone_are_one_statement_that_is_its_own_transaction(owner: Owner) -> None:
    ran, outcomes = await statements_of(owner, *states(owner))
    assert len(ran) == 1 and outcomes == [Outcome.COMMITTED] * len(KEYS)
    assert await stored(owner) == [(2, b"next")] * len(KEYS)


async def test_one_stale_version_among_them_is_refused_alone(owner: Owner) -> None:
    members = states(owner)
    members[3] = owner.member(KEYS[3], grain=writing(9, b"stale"))
    ran, outcomes = await statements_of(owner, *members)
    assert looked(ran)
    assert outcomes == [Outcome.CONFLICT if at == 3 else Outcome.COMMITTED for at in range(len(KEYS))]
    assert await stored(owner) == [(1, b"new") if at == 3 else (2, b"next") for at in range(len(KEYS))]


async def test_so_is_one_whose_partition_has_another_epoch(owner: Owner) -> None:
    members = states(owner)
    members[2] = owner.member(KEYS[2], partition=OTHER, epoch=7, grain=writing(1, b"fenced"))
    members[4] = owner.member(KEYS[4], partition=PARTITION + 40, epoch=1, grain=writing(1, b"of nobody"))
    _, outcomes = await statements_of(owner, *members)
    refused = {2, 4}
    assert outcomes == [Outcome.FENCED if at in refused else Outcome.COMMITTED for at in range(len(KEYS))]
    assert await stored(owner) == [(1, b"new") if at in refused else (2, b"next") for at in range(len(KEYS))]


async def test_two_epochs_of_one_partition_are_told_apart(owner: Owner) -> None:
    members = states(owner)
    members[1] = owner.member(KEYS[1], epoch=8, grain=writing(1, b"fenced"))
    _, outcomes = await statements_of(owner, *members)
    assert outcomes == [Outcome.FENCED if at == 1 else Outcome.COMMITTED for at in range(len(KEYS))]


@pytest.mark.parametrize("count", [1, 2, 3, 31, 33, 63, ROWS_MAX, ROWS_MAX + 1, 150])
async def test_batches_of_any_size_commit_whole(owner: Owner, count: int) -> None:
    keys = [f"many-{number}" for number in range(count)]
    for version in (0, 1):
        verdicts = await owner.commit(*(owner.member(key, grain=writing(version, b"m")) for key in keys))
        assert [(each.outcome, each.version) for each in verdicts] == [
            (Outcome.COMMITTED, version + 1)
        ] * count
    rows = await owner.store.load([("shipments", key) for key in keys])
    assert [row and row.version for row in rows] == [2] * count


async def test_a_sign_of_life_goes_with_a_batch_of_states_only_when_the_last_is_old(owner: Owner) -> None:
    signed = NOW
    for version, (at, expected) in enumerate(
        [
            (NOW + SIGN_EVERY_US - 1, signed),
            (NOW + SIGN_EVERY_US, NOW + SIGN_EVERY_US),
            (NOW + SIGN_EVERY_US + 1, NOW + SIGN_EVERY_US),
            (NOW, NOW),  # a clock set back
        ],
        1,
    ):
        await owner.commit(*states(owner, version=version), now=at)
        assert await signed_at(owner) == expected, at


async def test_a_sign_of_life_goes_with_every_batch_that_moves_more_than_states(owner: Owner) -> None:
    put = owner.member(KEYS[0], grain=writing(1), reminders=(PutReminder(a_reminder(KEYS[0])),))
    await owner.commit(put, now=NOW + 5)
    assert await signed_at(owner) == NOW + 5


def test_another_owner_signs_at_once() -> None:
    planner = Planner("default")
    state = Commit(1, 1, "shipments", "k", grain=writing(1))
    signs = []
    for owner in (1, 1, 2, 2, 1):
        plan = planner.plan([state], owner, NOW)
        assert plan is not None
        signs.append(plan.signs)
        planner.signed(owner, NOW)
    assert signs == [True, False, True, False, True]


@pytest.mark.parametrize(
    "fields",
    [
        {"watermarks": (Watermark("s", 1),)},
        {"events": (EventRow("s", b"1", NOW),)},
        {"reminders": (PutReminder(a_reminder("k"), PutMode.IF_MISSING),)},
        {"reminders": (PutReminder(a_reminder("k"), PutMode.KEEP_PROGRESS),)},
        {"grain_key": "k\x00"},
    ],
    ids=["watermark", "event", "if missing", "keep progress", "not storable"],
)
def test_what_depends_on_stored_rows_is_not_planned(fields: dict[str, object]) -> None:
    whole: dict[str, object] = {
        "partition": PARTITION,
        "epoch": 1,
        "grain_type": "shipments",
        "grain_key": "k",
    }
    member = Commit(**{**whole, "grain": writing(1), **fields})  # type: ignore[arg-type]
    assert Planner("default").plan([member], 1, NOW) is None


async def test_a_crowded_grain_is_refused_and_its_neighbours_are_not(owner: Owner) -> None:
    def puts(key: str, version: int, *names: str, most: int = 2) -> Commit:
        rows = tuple(PutReminder(a_reminder(key, name)) for name in names)
        return owner.member(key, grain=writing(version), reminders=rows, reminders_max=most)

    quoted = 'k"[\\]é'
    await owner.commit(puts(KEYS[0], 1, "a", "b"), puts(quoted, 0, "a", "b"))
    verdicts = await owner.commit(puts(KEYS[0], 2, "c"), puts(KEYS[1], 1, "a", "b"), puts(quoted, 1, "c"))
    assert [each.outcome for each in verdicts] == [Outcome.REJECTED, Outcome.COMMITTED, Outcome.REJECTED]
    assert len(await owner.store.reminders_of("shipments", quoted)) == 2


async def test_a_grain_that_comes_twice_with_reminders_is_counted_in_between(owner: Owner) -> None:
    first, second = (
        owner.member(
            KEYS[0],
            grain=writing(version),
            reminders=(PutReminder(a_reminder(KEYS[0], name)),),
            reminders_max=1,
        )
        for version, name in ((1, "a"), (2, "b"))
    )
    verdicts = await owner.commit(first, second)
    assert [each.outcome for each in verdicts] == [Outcome.COMMITTED, Outcome.REJECTED]


async def test_rows_that_a_trigger_of_another_program_writes_do_not_count(owner: Owner) -> None:
    store = owner.store
    assert isinstance(store, SqliteProvider)

    def audit(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE audit (grain_key TEXT)")
        connection.execute(
            "CREATE TRIGGER audited AFTER UPDATE ON grains"
            " BEGIN INSERT INTO audit VALUES (new.grain_key); END"
        )

    await store.run_in_writer(audit)
    verdicts = await owner.commit(*states(owner))
    assert [(each.outcome, each.version) for each in verdicts] == [(Outcome.COMMITTED, 2)] * len(KEYS)
    for now in (NOW + 1, NOW + SIGN_EVERY_US + 1):  # states alone, and with a sign of life
        before = await stored(owner)
        half = [
            owner.member(key, grain=writing(row[0] if at % 2 else 1, b"half"))
            for at, (key, row) in enumerate(zip(KEYS[:6], before, strict=False))
            if row is not None
        ]
        verdicts = await owner.commit(*half, now=now)
        assert [each.outcome for each in verdicts] == [Outcome.CONFLICT, Outcome.COMMITTED] * 3
        assert (await stored(owner))[::2] == before[::2]


async def test_a_batch_of_states_counts_as_written_whatever_the_counter_says(owner: Owner) -> None:
    """SQLite counts changes in 32 bits: here the count goes over the edge within one batch."""

    class Counted(sqlite3.Connection):
        changes = iter([2**31 - 3, -(2**31) + 4])

        @property
        def total_changes(self) -> int:
            return next(self.changes)

    store = owner.store
    assert isinstance(store, SqliteProvider)
    plan = Plan("default", states(owner), owner.number, NOW, signs=False)
    with closing(sqlite3.connect(store._path, isolation_level=None, factory=Counted)) as connection:
        plan.write(connection, "u")
    assert await stored(owner) == [(2, b"next")] * len(KEYS)


async def test_a_batch_that_was_not_written_gave_no_sign_of_life(owner: Owner) -> None:
    store = owner.store
    assert isinstance(store, SqliteProvider)
    late = NOW + 10 * SIGN_EVERY_US
    await store.run_in_writer(lambda connection: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(Unavailable):
        await owner.commit(*states(owner), now=late)
    await store.run_in_writer(lambda connection: connection.execute("PRAGMA query_only = OFF"))
    await owner.commit(*states(owner), now=late + 1)
    assert await signed_at(owner) == late + 1


async def test_a_settle_that_matches_nothing_is_found_out_and_the_rest_stands(owner: Owner) -> None:
    members = states(owner)
    members[5] = owner.member(KEYS[5], grain=writing(1, b"next"), settle=Settle("chase", 1, 1, None))
    verdicts = await owner.commit(*members)
    assert [each.outcome for each in verdicts] == [Outcome.COMMITTED] * len(KEYS)
    assert [each.settled for each in verdicts] == [False] * len(KEYS)
