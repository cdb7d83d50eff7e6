"""The import into a store: what it writes, what it leaves alone, and that it is no sign of life."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from farro.providers.conformance.made import NOW
from farro.providers.contracts import Provider
from farro.providers.errors import StoreInUse
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.providers.rows import Commit, DeleteReminder, ReminderFilter
from farro.providers.sqlite.store import SqliteProvider
from farro.silo.migration.importing import ImportReport, import_reminders, preview
from farro.silo.migration.orleans_ids import Naming
from farro.silo.migration.orleans_rows import OrleansRow

LATER = NOW + 3_600_000_000
ROWS = [OrleansRow(f"cart/{n}", "remind", start_at=NOW - 5_000_000, period_ms=60_000) for n in range(7)]


@pytest.fixture
async def store() -> AsyncGenerator[MemoryProvider]:
    provider = MemoryProvider(MemoryStore())
    await provider.open(NOW)
    yield provider
    await provider.close()


async def paged(rows: list[OrleansRow], size: int = 3) -> AsyncIterator[list[OrleansRow]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


async def imported(
    provider: Provider, rows: list[OrleansRow] = ROWS, *, now: int = NOW, replace: bool = False
) -> ImportReport:
    partitions = (await provider.open(now)).partitions
    return await import_reminders(
        paged(rows), provider, Naming(), partitions=partitions, now=now, replace=replace
    )


async def test_every_row_is_put_and_counted_by_type(store: MemoryProvider) -> None:
    rows = [*ROWS, OrleansRow("basket/x", "y", start_at=NOW, period_ms=30_000)]
    report = await imported(store, rows)
    assert (report.read, report.imported, report.kept, report.unreadable) == (8, 8, 0, 0)
    assert {name: each.imported for name, each in report.types.items()} == {"cart": 7, "basket": 1}
    assert len(await store.list_reminders(ReminderFilter(), 100)) == 8


async def test_a_second_run_moves_nothing(store: MemoryProvider) -> None:
    await imported(store)
    before = await store.list_reminders(ReminderFilter(), 100)
    report = await imported(store, now=LATER)
    assert (report.imported, report.kept) == (0, 7)
    assert await store.list_reminders(ReminderFilter(), 100) == before


async def test_replace_puts_every_row_anew(store: MemoryProvider) -> None:
    await imported(store)
    report = await imported(store, now=LATER, replace=True)
    assert (report.imported, report.kept) == (7, 0)
    row = await store.reminder("cart", "1", "remind")
    assert row is not None and row.next_due_at is not None and row.next_due_at >= LATER


async def test_an_unreadable_row_stays_behind_and_the_others_go_on(store: MemoryProvider) -> None:
    rows = [ROWS[0], replace(ROWS[1], period_ms=0), replace(ROWS[2], grain_id="?"), ROWS[3]]
    report = await imported(store, rows)
    assert (report.imported, report.unreadable) == (2, 2)
    assert [each.row for each in report.reasons] == rows[1:3]


async def test_progress_is_told_after_each_page(store: MemoryProvider) -> None:
    told: list[int] = []
    await import_reminders(paged(ROWS), store, Naming(), partitions=64, now=NOW, progress=told.append)
    assert told == [3, 6, 7]


async def test_the_importer_leaves_and_its_epochs_fence_whoever_was_there(store: MemoryProvider) -> None:
    old = await store.join("old", NOW)
    (taken,) = await store.take(old.number, [0], NOW)
    await store.leave(old.number, NOW)
    await imported(store)
    assert all(silo.left_at is not None for silo in await store.silos())
    stale = Commit(0, taken.epoch, "cart", "1", reminders=(DeleteReminder("remind"),))
    assert [verdict.outcome.name for verdict in await store.commit([stale], old.number, NOW)] == ["FENCED"]


async def test_the_import_is_no_sign_of_life(store: MemoryProvider) -> None:
    last = await store.join("last", NOW)
    await store.take(last.number, range(64), NOW)
    await store.leave(last.number, NOW)
    await imported(store, now=LATER)
    new = await store.join("new", LATER)
    taken = await store.take(new.number, range(64), LATER)
    assert {each.previous_alive_at for each in taken} == {NOW}


async def test_on_a_fresh_store_nobody_ever_lived(store: MemoryProvider) -> None:
    await imported(store)
    new = await store.join("new", NOW)
    assert {each.previous_alive_at for each in await store.take(new.number, range(64), NOW)} == {0}


async def test_a_store_that_a_silo_lives_on_is_refused_and_unchanged(store: MemoryProvider) -> None:
    living = await store.join("living", NOW)
    with pytest.raises(StoreInUse, match=f"silo {living.number} lives on the store"):
        await imported(store, now=NOW + 1_000_000)
    assert await store.list_reminders(ReminderFilter(), 10) == []


async def test_a_silo_that_fell_silent_long_ago_hinders_nothing(store: MemoryProvider) -> None:
    await store.join("dead", NOW)
    assert (await imported(store, now=LATER)).imported == 7


async def test_on_sqlite_a_silo_that_lives_refuses_the_import_however_long_it_has_been_silent(
    tmp_path: Path,
) -> None:
    silo, importer = SqliteProvider(tmp_path / "farro.db"), SqliteProvider(tmp_path / "farro.db")
    for provider in (silo, importer):
        await provider.open(NOW)
    living = await silo.join("living", NOW)
    with pytest.raises(StoreInUse, match=f"silo {living.number} lives on the store"):
        await imported(importer, now=LATER)
    assert await importer.list_reminders(ReminderFilter(), 10) == []
    await silo.close()
    assert (await imported(importer, now=LATER)).imported == 7
    await importer.close()


async def test_on_sqlite_a_silo_killed_a_moment_ago_hinders_nothing(tmp_path: Path) -> None:
    provider = SqliteProvider(tmp_path / "farro.db")
    await provider.open(NOW)
    await provider.join("killed", NOW)
    await provider.close()
    report = await imported(provider, now=NOW + 1)
    await provider.close()
    assert report.imported == 7


async def test_a_preview_counts_what_an_import_would_do_and_writes_nothing(store: MemoryProvider) -> None:
    await imported(store, ROWS[:2])
    before = await store.list_reminders(ReminderFilter(), 100)
    rows = [*ROWS, replace(ROWS[0], period_ms=-1)]
    report = await preview(paged(rows), store, Naming(), now=NOW)
    assert (report.read, report.imported, report.kept, report.unreadable) == (8, 5, 2, 1)
    assert await store.list_reminders(ReminderFilter(), 100) == before
    assert (await preview(paged(rows), store, Naming(), now=NOW, replace=True)).imported == 7
    assert (await preview(paged(rows), None, Naming(), now=NOW)).imported == 7
