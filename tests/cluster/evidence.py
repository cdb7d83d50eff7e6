"""Reads the store after a chaos run, and has PostgreSQL note every commit while it lasts.

The notes are an append-only table, written by triggers inside the transactions that they are about: which
partition, grain and version, under which epoch the partition was at that moment, and which database user
wrote; and who raised each epoch.  Every silo process logs in as a user of its own, so a commit by anybody
but the one who took the partition last shows itself, whatever farro's own columns say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import asyncpg

from farro.client.clock import SystemClock
from farro.client.codec import Codec
from farro.providers.contracts import Provider
from farro.providers.opening import open_provider
from farro.providers.rows import GrainRow, ReminderFilter, ReminderRow
from tests.cluster.chaos_grains import Chime, ChimeState, Ledger, LedgerState
from tests.cluster.history import ChimeSeen, CommitSeen, LedgerSeen, RowSeen, Stored, TickSeen

PAGE = 200  # grains loaded at a time

NOTES = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.commits (
    number bigserial PRIMARY KEY, partition integer NOT NULL, grain text NOT NULL, version bigint NOT NULL,
    epoch bigint NOT NULL, by text NOT NULL, at timestamptz NOT NULL
);
CREATE TABLE chaos.taken (partition integer, epoch bigint, by text NOT NULL, PRIMARY KEY (partition, epoch));

CREATE FUNCTION chaos.note_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.commits (partition, grain, version, epoch, by, at)
    SELECT NEW.partition, NEW.grain_type || '/' || NEW.grain_key, NEW.version, p.epoch, session_user,
        clock_timestamp()
    FROM farro.partitions AS p WHERE p.service_id = NEW.service_id AND p.partition = NEW.partition;
    RETURN NULL;
END $$;
CREATE TRIGGER note_commit AFTER INSERT OR UPDATE ON farro.grains
    FOR EACH ROW EXECUTE FUNCTION chaos.note_commit();

CREATE FUNCTION chaos.note_taken() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.taken (partition, epoch, by) VALUES (NEW.partition, NEW.epoch, session_user);
    RETURN NULL;
END $$;
CREATE TRIGGER note_taken AFTER UPDATE ON farro.partitions
    FOR EACH ROW WHEN (NEW.epoch IS DISTINCT FROM OLD.epoch) EXECUTE FUNCTION chaos.note_taken();
"""

USERS = """
DO $$ BEGIN
    FOR n IN 1..{count} LOOP EXECUTE format('CREATE ROLE %I SUPERUSER LOGIN', 'silo_' || n); END LOOP;
END $$
"""

READ_NOTES = """
SELECT c.partition, c.grain, c.version, c.epoch, t.by AS taken_by, c.by
FROM chaos.commits AS c LEFT JOIN chaos.taken AS t ON t.partition = c.partition AND t.epoch = c.epoch
ORDER BY c.number
"""


@dataclass(frozen=True, slots=True)
class Started:
    """A chime that the workload started."""

    key: str
    action: int
    period_us: int
    times: int


async def create_store(url: str) -> None:
    """farro's own tables, as the first silo would make them."""
    provider = open_provider(url)
    await provider.open(SystemClock().now())
    await provider.close()


async def take_notes(url: str, users: int) -> None:
    """Install the notes, and ``users`` database users ``silo_1`` …; once per database, after the tables."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(NOTES)
        await connection.execute(USERS.format(count=users))
    finally:
        await connection.close()


async def commits_noted(url: str) -> tuple[CommitSeen, ...]:
    connection = await asyncpg.connect(url)
    try:
        return tuple(CommitSeen(*row) for row in await connection.fetch(READ_NOTES))
    finally:
        await connection.close()


async def read_stored(
    url: str, ledgers: Sequence[str], chimes: Sequence[Started], commits: tuple[CommitSeen, ...] | None
) -> Stored:
    """``url``: of the store itself, without a proxy."""
    provider = open_provider(url, read_only=True)
    await provider.open(SystemClock().now())
    try:
        rows = {row.grain_key: row for row in await _reminders(provider)}
        seen_ledgers = [_ledger(key, row) async for key, row in _grains(provider, "ledgers", ledgers)]
        grains = {key: row async for key, row in _grains(provider, "chimes", [each.key for each in chimes])}
        now = SystemClock().now()
    finally:
        await provider.close()
    return Stored(
        ledgers=tuple(seen_ledgers),
        chimes=tuple(_chime(each, grains[each.key], rows.get(each.key)) for each in chimes),
        read_at=now,
        commits=commits,
    )


async def _grains(
    provider: Provider, grain_type: str, keys: Sequence[str]
) -> AsyncIterator[tuple[str, GrainRow | None]]:
    for start in range(0, len(keys), PAGE):
        page = keys[start : start + PAGE]
        for key, row in zip(page, await provider.load([(grain_type, key) for key in page]), strict=True):
            yield key, row


async def _reminders(provider: Provider) -> list[ReminderRow]:
    return list(await provider.list_reminders(ReminderFilter(grain_type="chimes"), 1_000_000))


def _ledger(key: str, row: GrainRow | None) -> LedgerSeen:
    if row is None or row.state is None:
        return LedgerSeen(key, 0 if row is None else row.version, ())
    layout = Ledger.__farro_class__.state
    assert layout is not None
    state = layout.decode(row.state, row.layout, Codec(None))
    assert isinstance(state, LedgerState)
    return LedgerSeen(
        key, row.version, tuple((call, amount, process) for call, amount, process in state.entries)
    )


def _chime(started: Started, row: GrainRow | None, reminder: ReminderRow | None) -> ChimeSeen:
    ticks: tuple[TickSeen, ...] = ()
    if row is not None and row.state is not None:
        layout = Chime.__farro_class__.state
        assert layout is not None
        state = layout.decode(row.state, row.layout, Codec(None))
        assert isinstance(state, ChimeState)
        ticks = tuple(TickSeen(*tick[:4]) for tick in state.ticks)
    return ChimeSeen(
        key=started.key,
        action=started.action,
        period_us=started.period_us,
        times=started.times,
        version=0 if row is None else row.version,
        ticks=ticks,
        row=None
        if reminder is None
        else RowSeen(reminder.start_at, reminder.next_due_at, reminder.missed_count, reminder.status),
    )
