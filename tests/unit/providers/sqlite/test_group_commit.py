"""A batch is written without a look at what it expects; only a miss makes the store look."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farro.providers.conformance.made import NOW, Owner, a_reminder, an_owner, writing
from farro.providers.rows import Commit, GrainWrite, Outcome, Progress, PutReminder, Settle, Watermark
from farro.providers.sqlite.store import SqliteProvider

KEYS = [f"k{number}" for number in range(8)]
WRONG = ["version", "new", "touched", "destroyed", "occurrence", "ended", "operator"]
MOVED = Progress(NOW + 1, NOW + 1, NOW, 2)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    store = SqliteProvider(tmp_path / "farro.db")
    await store.open(NOW)
    owner = await an_owner(store)
    await owner.commit(*(with_reminder(owner, key) for key in KEYS))
    yield owner
    await store.close()


def with_reminder(owner: Owner, key: str) -> Commit:
    return owner.member(key, grain=writing(0), reminders=(PutReminder(a_reminder(key)),))


def ticks(owner: Owner) -> list[Commit]:
    return [
        owner.member(key, grain=writing(1, b"ticked"), settle=Settle("chase", 1, 1, MOVED)) for key in KEYS
    ]


async def statements_of(owner: Owner, *members: Commit) -> tuple[list[str], list[Outcome]]:
    """What SQLite ran for the batch, and what became of its members."""
    store = owner.store
    assert isinstance(store, SqliteProvider)
    ran: list[str] = []
    await store.run_in_writer(lambda connection: connection.set_trace_callback(ran.append))
    verdicts = await owner.commit(*members)
    await store.run_in_writer(lambda connection: connection.set_trace_callback(None))
    return ran, [verdict.outcome for verdict in verdicts]


def looked(ran: list[str]) -> bool:
    return any("json_group" in statement and "asked" in statement for statement in ran)


async def test_a_batch_that_meets_what_it_expects_is_five_statements(owner: Owner) -> None:
    ran, outcomes = await statements_of(owner, *ticks(owner))
    assert outcomes == [Outcome.COMMITTED] * len(KEYS)
    # BEGIN, the sign of life with the fences, the settles, the states, COMMIT
    assert len(ran) == 5 and not looked(ran)


@pytest.mark.parametrize(
    "wrong", ["version", "new", "touched", "destroyed", "occurrence", "ended", "operator"]
)
async def test_a_miss_changes_nothing_but_its_own_member(owner: Owner, wrong: str) -> None:
    members = ticks(owner)
    key = KEYS[3]
    stale, missing = Settle("chase", 1, 9, MOVED), Settle("chase", 9, 1, None)
    members[3] = {
        "version": owner.member(key, grain=writing(9)),
        "new": owner.member(key, grain=writing(0)),
        "touched": owner.member(key, grain=GrainWrite(9)),
        "destroyed": owner.member(key, grain=GrainWrite(9, destroy=True)),
        "occurrence": owner.member(key, grain=writing(1, b"other"), settle=stale),
        "ended": owner.member(key, grain=writing(1, b"other"), settle=missing),
        "operator": owner.member(key, grain=writing(1, b"other"), settle=Settle("chase", 1, 9, MOVED, True)),
    }[wrong]
    settle_alone = members[3].settle is not None
    ran, outcomes = await statements_of(owner, *members)
    expected = [Outcome.COMMITTED] * len(KEYS)
    if not settle_alone:
        expected[3] = Outcome.CONFLICT
    assert outcomes == expected and looked(ran)
    rows = await owner.store.load([("shipments", key) for key in KEYS])
    kept = b"other" if settle_alone else b"state"
    assert [row and row.state for row in rows] == [kept if n == 3 else b"ticked" for n in range(len(KEYS))]
    assert [row and row.version for row in rows] == [
        2 if n != 3 or settle_alone else 1 for n in range(len(KEYS))
    ]
    reminders = [await owner.store.reminder("shipments", key, "chase") for key in KEYS]
    assert [row and row.occurrence for row in reminders] == [1 if n == 3 else 2 for n in range(len(KEYS))]


async def test_a_miss_in_a_later_run_of_the_batch_keeps_the_verdicts_of_the_earlier(owner: Owner) -> None:
    again = [owner.member(KEYS[0], grain=writing(2, b"twice")), owner.member(KEYS[1], grain=writing(1))]
    ran, outcomes = await statements_of(owner, *ticks(owner), *again)
    assert outcomes == [Outcome.COMMITTED] * (len(KEYS) + 1) + [Outcome.CONFLICT]
    assert looked(ran)
    first, second = await owner.store.load([("shipments", KEYS[0]), ("shipments", KEYS[1])])
    assert (first and first.state, second and second.state) == (b"twice", b"ticked")


async def test_a_conflict_is_told_before_too_many_reminders(owner: Owner) -> None:
    puts = tuple(PutReminder(a_reminder(KEYS[0], name)) for name in ("a", "b"))
    stale = owner.member(KEYS[0], grain=writing(9), reminders=puts, reminders_max=1)
    marked = owner.member(KEYS[1], grain=writing(1), watermarks=(Watermark("s", 1),))
    _, outcomes = await statements_of(owner, stale, marked)
    assert outcomes == [Outcome.CONFLICT, Outcome.COMMITTED]
