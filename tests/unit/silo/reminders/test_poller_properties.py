"""What a poll chooses, against the whole table: nothing due is lost between pages."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from farro.client.clock import from_us, to_us
from farro.client.reminders import ReminderPriority
from farro.providers.rows import PollQuery, ReminderRow
from farro.silo.reminders.poller import Page, plan, queries
from tests.unit.silo.kit import bell_row

NOW = to_us(datetime(2030, 1, 1, tzinfo=UTC))
UNTIL = NOW + 100
WAIT_MAX = 40

TABLES = st.lists(st.tuples(st.integers(-100, 150), st.integers(0, 2)), max_size=40).map(
    lambda rows: [
        bell_row(f"k{number}", from_us(NOW + at), priority=priority, registration=number)
        for number, (at, priority) in enumerate(rows)
    ]
)


def wake(row: ReminderRow) -> int:
    assert row.wake_at is not None
    return row.wake_at


def answer(table: list[ReminderRow], query: PollQuery) -> list[ReminderRow]:
    """What any store answers (farro.providers.contracts)."""
    rows = [row for row in table if row.priority == query.priority and wake(row) <= query.wake_until]
    return sorted(rows, key=lambda row: (wake(row), row.registration))[: query.limit]


def poll(table: list[ReminderRow], limit: int, by_priority: bool, now: int = NOW) -> Page:
    asked = queries(UNTIL, limit, frozenset(range(64)), 64)
    assert [query.priority for query in asked] == list(ReminderPriority)
    return plan(
        [answer(table, query) for query in asked],
        now=now,
        until=UNTIL,
        limit=limit,
        by_priority=by_priority,
        wait_max_us=WAIT_MAX,
    )


@given(TABLES, st.integers(1, 12), st.booleans())
def test_every_row_up_to_the_completeness_of_its_priority_is_in_the_page(
    table: list[ReminderRow], limit: int, by_priority: bool
) -> None:
    page = poll(table, limit, by_priority)
    chosen = [row.grain_key for row in (*page.rows, *page.aged)]
    assert len(chosen) == len(set(chosen)) <= limit
    for row in table:
        known = wake(row) <= page.complete_until[row.priority]
        assert not known or row.grain_key in chosen
    assert all(until <= UNTIL for until in page.complete_until)
    if len(table) < limit:
        assert page.complete_until == [UNTIL] * 3


@given(TABLES, st.integers(1, 12), st.booleans())
def test_due_rows_come_before_rows_to_come_and_by_priority(
    table: list[ReminderRow], limit: int, by_priority: bool
) -> None:
    page = poll(table, limit, by_priority)
    due = [row for row in page.rows if wake(row) <= NOW]
    assert page.rows[: len(due)] == due
    ranks = [(row.priority if by_priority else 0, wake(row)) for row in due]
    assert ranks == sorted(ranks)
    coming = [wake(row) for row in page.rows[len(due) :]]
    assert coming == sorted(coming)
    if any(wake(row) <= NOW for row in table):
        assert due, "something is due and the page has nothing of it"


@given(TABLES, st.integers(8, 16))
def test_at_most_an_eighth_of_a_page_is_for_what_waited_too_long(
    table: list[ReminderRow], limit: int
) -> None:
    page = poll(table, limit, by_priority=True)
    assert len(page.aged) <= limit // 8
    assert all(wake(row) < NOW - WAIT_MAX and row.priority > page.rows[0].priority for row in page.aged)
    kept_out = [row for row in table if row not in page.rows and row not in page.aged]
    for row in kept_out:
        if page.rows and wake(row) < NOW - WAIT_MAX and row.priority > page.rows[0].priority:
            assert len(page.aged) == limit // 8 or len(page.rows) + len(page.aged) == limit


@given(TABLES, st.integers(1, 12), st.booleans())
def test_page_after_page_delivers_everything_due_and_nothing_early(
    table: list[ReminderRow], limit: int, by_priority: bool
) -> None:
    due = {row.grain_key for row in table if wake(row) <= NOW}
    delivered: set[str] = set()
    left = list(table)
    for _ in range(len(table) + 1):
        page = poll(left, limit, by_priority)
        ready = [row for row in (*page.rows, *page.aged) if wake(row) <= NOW]
        delivered |= {row.grain_key for row in ready}
        left = [row for row in left if row not in ready]
    assert delivered == due


def test_only_a_part_of_the_partitions_is_asked_for_by_number() -> None:
    owned = frozenset({1, 5})
    assert {query.partitions for query in queries(UNTIL, 5, owned, 64)} == {owned}
    assert {query.partitions for query in queries(UNTIL, 5, frozenset(range(64)), 64)} == {None}
