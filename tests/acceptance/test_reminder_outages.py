"""Reminders through outages, herds and kills, on real files and with real processes.

Counts are read from the file: what a tick committed, what a row counted as missed, what NOTIFY reported.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from farro.client.clock import SystemClock
from farro.client.codec import Codec
from farro.client.identity import partition_of
from farro.client.reminders import MissedReminderAction
from farro.providers.conformance.made import a_reminder
from farro.providers.rows import ReminderRow
from farro.providers.sqlite.store import SqliteProvider
from farro.silo import Silo
from tests.acceptance.crash_points import POINTS, Kept, KeptState, options
from tests.support.reminder_files import write_reminders

ROOT = Path(__file__).parents[2]
HOUR_US = 3_600_000_000
EACH = 12  # reminders of each action
STREAM = "farro.reminders.missed"
SETTLED_MAX_S = 30.0


def kept_row(number: int, due_at: int, action: int, period_us: int = HOUR_US) -> ReminderRow:
    key = f"{MissedReminderAction(action).name}-{number}"
    return a_reminder(
        key,
        "r",
        grain_type="kept",
        partition=partition_of("kept", key, 64),
        operation="receive_reminder",
        args=b"",
        start_at=due_at,
        period_us=period_us,
        next_due_at=due_at,
        wake_at=due_at,
        priority=number % 3,
        action=action,
        registration=1 + 100 * action + number,
    )


async def settled(path: Path) -> None:
    """A silo that is not killed serves the file until every reminder has moved on."""
    async with Silo(grains=[Kept], store=f"sqlite:///{path}", options=options()):
        until = perf_counter() + SETTLED_MAX_S
        while any(row.occurrence == 1 for row in await rows_of(path)):
            assert perf_counter() < until, "the reminders did not move on"
            await asyncio.sleep(0.05)


async def rows_of(path: Path) -> list[ReminderRow]:
    store = SqliteProvider(path, read_only=True)
    await store.open(0)
    try:
        found = [
            await store.reminders_of("kept", f"{action.name}-{number}")
            for action in MissedReminderAction
            for number in range(EACH)
        ]
    finally:
        await store.close()
    return [row for rows in found for row in rows]


async def occurrences_of(path: Path) -> dict[str, list[int]]:
    """What each grain has committed."""
    state = Kept.__farro_class__.state
    assert state is not None
    codec = Codec(None)
    store = SqliteProvider(path, read_only=True)
    await store.open(0)
    try:
        keys = [row.grain_key for row in await rows_of(path)]
        grains = await store.load([("kept", key) for key in keys])
    finally:
        await store.close()
    found: dict[str, list[int]] = {}
    for key, grain in zip(keys, grains, strict=True):
        if grain is not None and grain.state is not None:
            kept = state.decode(grain.state, grain.layout, codec)
            assert isinstance(kept, KeptState)
            found[key] = kept.occurrences
    return found


async def reports(path: Path) -> int:
    store = SqliteProvider(path, read_only=True)
    await store.open(0)
    try:
        return sum([len(await store.events(partition, STREAM, 0, 1000)) for partition in range(64)])
    finally:
        await store.close()


@pytest.mark.serial
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_at_any_step_loses_no_occurrence_and_commits_none_twice(
    tmp_path: Path, point: str
) -> None:
    path = tmp_path / "kept.db"
    begin = SystemClock().now() + 2_500_000
    await write_reminders(
        path,
        (
            kept_row(number, begin + 20_000 * (4 * number + action), action)
            for number in range(EACH)
            for action in MissedReminderAction
        ),
    )
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.acceptance.crash_points", str(path), point],
        cwd=ROOT,
        timeout=40,
        check=False,
    )
    assert killed.returncode == -9, "the silo was to be killed at its crash point"
    assert any(row.occurrence == 1 for row in await rows_of(path)), "it died in the middle of its work"

    await settled(path)

    rows, occurrences = await rows_of(path), await occurrences_of(path)
    assert len(rows) == 4 * EACH, "no row is lost"
    passed_over = 0
    for row in rows:
        ticks = occurrences.get(row.grain_key, [])
        assert len(ticks) == len(set(ticks)), f"{row.grain_key}: an occurrence was committed twice: {ticks}"
        if ticks:
            assert (ticks, row.occurrence) == ([1], 2)
        else:
            assert row.action in (MissedReminderAction.SKIP, MissedReminderAction.NOTIFY)
            assert (row.missed_count, row.last_fire_at) == (1, None), "what was not delivered is counted"
            passed_over += row.action == MissedReminderAction.NOTIFY
    assert await reports(path) == passed_over, "NOTIFY reports each of its own once"
