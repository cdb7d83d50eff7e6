"""What a row of Orleans becomes: its grid, what it owes, and why a row is left behind."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.client.clock import to_us
from farro.client.identity import partition_of
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.providers.rows import ReminderRow
from farro.silo.migration.orleans_ids import Naming
from farro.silo.migration.orleans_rows import Converted, OrleansRow, Unreadable, convert
from farro.silo.ownership import Owned, Ownership

NOW = to_us(datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC))
MINUTE_US = 60_000_000


def us(text: str) -> int:
    return to_us(datetime.fromisoformat(text))


ROW = OrleansRow("cart/1", "remind", start_at=us("2026-01-01T00:00:00.250Z"), period_ms=60_000)


def converted(row: OrleansRow = ROW, now: int = NOW) -> ReminderRow:
    made = convert(row, Naming(), Ownership(64), now)
    assert isinstance(made, Converted), made
    return made.row


def refused(**fields: object) -> str:
    made = convert(replace(ROW, **fields), Naming(), Ownership(64), NOW)  # type: ignore[arg-type]
    assert isinstance(made, Unreadable), made
    return made.reason


def test_a_row_becomes_a_named_reminder_with_the_defaults_of_the_proposal() -> None:
    row = converted()
    assert (row.grain_type, row.grain_key, row.name) == ("cart", "1", "remind")
    assert (row.operation, row.key, row.args) == ("receive_reminder", None, b"")
    assert row.partition == partition_of("cart", "1", 64)
    assert (row.start_at, row.period_us, row.cron) == (ROW.start_at, MINUTE_US, None)
    assert (row.priority, row.action) == (ReminderPriority.NORMAL, MissedReminderAction.SKIP)
    assert (row.occurrence, row.attempts, row.status, row.last_fire_at) == (1, 0, "scheduled", None)


def test_the_first_grid_instant_not_yet_passed_is_owed() -> None:
    assert converted().next_due_at == us("2026-03-01T12:00:00.250Z")
    on_the_grid = converted(now=us("2026-03-01T12:00:00.250Z"))
    assert on_the_grid.next_due_at == on_the_grid.wake_at == us("2026-03-01T12:00:00.250Z")
    assert converted(now=us("2026-03-01T12:00:00.250001Z")).next_due_at == us("2026-03-01T12:01:00.250Z")


def test_a_start_in_the_future_is_owed_itself() -> None:
    assert converted(replace(ROW, start_at=NOW + 5)).next_due_at == NOW + 5


@given(
    start=st.integers(us("1970-01-01T00:00Z"), us("2100-01-01T00:00Z")),
    period_ms=st.integers(1, 400 * 86_400_000),
)
def test_what_is_owed_lies_on_the_grid_and_within_one_period(start: int, period_ms: int) -> None:
    due = converted(replace(ROW, start_at=start, period_ms=period_ms)).next_due_at
    assert due is not None and due >= max(start, NOW)
    assert (due - start) % (period_ms * 1000) == 0
    assert due == start or due < NOW + period_ms * 1000


def test_a_stored_next_due_is_owed_also_when_it_has_passed() -> None:
    assert converted(replace(ROW, next_due_at=NOW - 90 * MINUTE_US)).next_due_at == NOW - 90 * MINUTE_US
    assert converted(replace(ROW, next_due_at=NOW + 7)).next_due_at == NOW + 7


def test_a_stored_next_due_of_an_earlier_registration_or_already_fired_is_not_owed() -> None:
    grid = converted().next_due_at
    assert grid is not None
    assert converted(replace(ROW, next_due_at=us("2025-12-31T00:00Z"))).next_due_at == grid
    fired = replace(ROW, next_due_at=NOW - MINUTE_US, last_fire_at=NOW - MINUTE_US)
    assert converted(fired).next_due_at == grid
    assert converted(fired).last_fire_at == NOW - MINUTE_US


def test_what_was_fired_ahead_of_this_clock_is_not_owed_again() -> None:
    fired = us("2026-03-01T12:05:00.250Z")
    assert converted(replace(ROW, last_fire_at=fired)).next_due_at == us("2026-03-01T12:06:00.250Z")


def test_a_filled_priority_and_action_are_kept() -> None:
    row = converted(replace(ROW, priority=0, action=2))
    assert (row.priority, row.action) == (ReminderPriority.CRITICAL, MissedReminderAction.NOTIFY)


def test_a_cron_text_makes_a_cron_reminder_whatever_the_period() -> None:
    for period_ms in (None, 0, 60_000):
        row = converted(replace(ROW, cron="0 0 9 * * MON", period_ms=period_ms))
        assert (row.cron, row.period_us, row.timezone, row.day_match) == ("0 0 9 * * MON", None, "UTC", "and")
        assert row.start_at == us("2026-01-05T09:00Z")
        assert row.next_due_at == us("2026-03-02T09:00Z")


def test_a_cron_row_needs_no_start() -> None:
    row = converted(replace(ROW, cron="0 0 9 * * *", start_at=None))
    assert row.start_at == row.next_due_at == us("2026-03-02T09:00Z")
    owed = us("2026-02-20T09:00Z")
    assert converted(replace(ROW, cron="0 0 9 * * *", start_at=None, next_due_at=owed)).next_due_at == owed


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"period_ms": 0}, "Period 0 and no Cron"),
        ({"period_ms": -1}, "Period -1 and no Cron"),
        ({"period_ms": None}, "Period None and no Cron"),
        ({"period_ms": 2**63 - 1}, "beyond the year 9999"),
        ({"start_at": us("0001-01-01T00:00Z")}, "StartTime 0001-01-01T00:00:00.* was never set"),
        ({"start_at": us("0001-01-01T12:00Z")}, "was never set"),
        ({"start_at": us("0001-01-01T00:00Z") - 1}, "StartTime was never set, or is no date"),
        ({"start_at": us("9999-12-31T23:59:59.999Z") + 1_000_000}, "is no date in the years 1 to 9999"),
        ({"start_at": None}, "StartTime was never set"),
        ({"start_at": us("2026-02-01T00:00Z"), "period_ms": 8_000 * 365 * 86_400_000}, "does not fall due"),
        ({"cron": "0 0 25 * * *"}, "hour"),
        ({"cron": "0 0 0 30 2 *"}, "can never fire"),
        ({"priority": 3}, r"Priority 3 is none of 0 \(CRITICAL\)"),
        ({"priority": -1}, "Priority -1"),
        ({"action": 9}, "Action 9 is none of"),
        ({"name": ""}, "reminder name must not be empty"),
        ({"name": "💡" * 150}, "reminder name is 600 bytes long"),
        ({"grain_id": "cart"}, "grain id is not"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(fields: dict[str, object], reason: str) -> None:
    assert re.search(reason, refused(**fields))


@pytest.mark.parametrize("period", [timedelta(seconds=30), timedelta(days=49.8), timedelta(days=3650)])
def test_any_period_of_orleans_is_kept(period: timedelta) -> None:
    row = converted(replace(ROW, period_ms=int(period.total_seconds() * 1000)))
    assert row.period_us == int(period.total_seconds()) * 1_000_000


def test_each_row_is_a_registration_of_its_own() -> None:
    ownership = Ownership(64)
    partition = partition_of("cart", "1", 64)
    ownership.take(partition, Owned(epoch=3, began_at=NOW, alive_until=None))
    made = [convert(ROW, Naming(), ownership, NOW) for _ in range(3)]
    numbers = [each.row.registration for each in made if isinstance(each, Converted)]
    assert numbers == sorted(set(numbers)) and len(numbers) == 3
    assert {number >> 40 for number in numbers} == {3}
