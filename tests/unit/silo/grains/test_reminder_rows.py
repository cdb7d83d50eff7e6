"""Rows are made on a clock that goes on while they are made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farro.client.clock import SystemClock, to_us
from farro.client.identity import GrainId
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.silo.grains.reminder_rows import RowMaker
from farro.silo.ownership import Ownership

START = datetime(2026, 7, 1, 11, 59, 59, 999_999, tzinfo=UTC)
GRAIN = GrainId("jobs", "one")


class HastyClock(SystemClock):
    """A second passes with every look."""

    def __init__(self) -> None:
        self._now = to_us(START)

    def now(self) -> int:
        self._now += 1_000_000
        return self._now


@pytest.fixture
def rows() -> RowMaker:
    ownership = SimpleNamespace(partition_of=lambda *_: 3, new_registration=lambda _: 1)
    return RowMaker(HastyClock(), cast(Ownership, ownership), timedelta(seconds=1))


@pytest.mark.parametrize("when", [{"cron": "* * * * * *"}, {"every": timedelta(seconds=1)}])
def test_an_instant_that_passes_while_a_row_is_made_is_owed_on_its_grid(
    rows: RowMaker, when: dict[str, Any]
) -> None:
    schedule = rows.schedule(**when)
    row = rows.row(
        GRAIN, "run", "run", None, b"", schedule,
        priority=ReminderPriority.NORMAL, action=MissedReminderAction.FIRE_ALL,
    )  # fmt: skip
    assert row.next_due_at == row.wake_at == row.start_at


def test_the_same_in_the_form_of_orleans(rows: RowMaker) -> None:
    row, _ = rows.named(
        GRAIN, "run", None, None,
        cron="* * * * * *", timezone=None, priority=ReminderPriority.NORMAL, action=None,
    )  # fmt: skip
    assert row.next_due_at == row.start_at
    assert row.start_at % 1_000_000 == 0


def test_what_was_due_before_the_row_was_made_is_owed_from_that_one_look_on(rows: RowMaker) -> None:
    schedule = rows.schedule(at=START - timedelta(days=1), every=timedelta(hours=1))
    assert schedule.first_due_at == to_us(START) + 1_000_000
