"""How SQLite runs the hot queries: by a key or an index range, without sorting."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from farro.providers.rows import PollCursor, PollQuery, Progress, ReminderFilter, ReminderRow
from farro.providers.sql_files import read_queries
from farro.providers.sqlite.migrating import known_migrations, statements
from farro.providers.sqlite.queries import MANY_ROWS, QUERIES, ROWS_MAX, in_statements, with_rows
from farro.providers.sqlite.reading import listing, poll_parameters

BATCHED = {
    "versions": 4,
    "answers": 5,
    "settled": 7,
    "positions": 5,
    "crowded": 5,
    "move_reminders": 6 + len(Progress.__dataclass_fields__),
    "delete_settled": 6,
    "delete_reminders": 4,
    "write_states": 6,
    "load_grains": 4,
    "touch_grains": 4,
    "destroy_grains": 5,
    "move_sequences": 3,
}
KEYED = [
    "read_setting", "silo", "member_numbers", "sign_of_life", "renew", "set_status", "leave", "mark_dead",
    "forget_silos", "free_partitions", "release_partitions", "owned", "silos", "load_grain", "fences",
    "sequences", "answer_to", "forget_requests",
    "vouch", "delete_reminders_of", "delete_operation", "edit_reminder", "move_by_operator",
    "reminder", "reminders_of", "watermarks", "events", "outbox", "stream_heads", "trim_events",
]  # fmt: skip


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        for migration in known_migrations():
            for statement in statements(migration.text):
                made.execute(statement)
        yield made


def plan(connection: sqlite3.Connection, statement: str, values: Any = None) -> str:
    """SQLite's plan, a line a step; without ``values`` every parameter is NULL."""
    if values is None:
        values = [None] * max(int(number) for number in re.findall(r"\?(\d+)", statement))
    return "\n".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statement, values))


def assert_direct(found: str) -> None:
    """Every table is searched by key or index; only lists made of parameters are scanned."""
    tables = [
        "grains",
        "reminders",
        "partitions",
        "silos",
        "events",
        "outbox",
        "watermarks",
        "r",
        "w",
        "p",
        "s",
    ]
    assert "TEMP B-TREE" not in found, found
    assert "AUTOMATIC" not in found, found
    for line in found.splitlines():
        assert not (line.startswith("SCAN ") and line.split()[1] in tables), found
    assert "SEARCH" in found, found


@pytest.mark.parametrize("name", KEYED)
def test_single_statements_find_their_rows_by_key(connection: sqlite3.Connection, name: str) -> None:
    assert_direct(plan(connection, QUERIES[name]))


@pytest.mark.parametrize(("name", "columns"), BATCHED.items())
@pytest.mark.parametrize("rows", [1, ROWS_MAX])
def test_batched_statements_find_each_row_by_key(
    connection: sqlite3.Connection, name: str, columns: int, rows: int
) -> None:
    statement = with_rows(name, columns, rows)
    assert_direct(plan(connection, statement, [None] * (columns * rows)))


@pytest.mark.parametrize("rows", [1, ROWS_MAX])
def test_a_batch_of_states_alone_finds_each_row_by_key(connection: sqlite3.Connection, rows: int) -> None:
    statement = with_rows("write_states_alone", 6, rows)
    assert_direct(plan(connection, statement, [*[None] * (6 * rows), rows, "{}", "default"]))


@pytest.mark.parametrize("partitions", [None, frozenset({1, 2})], ids=["all", "some"])
@pytest.mark.parametrize("after", [None, PollCursor(1, 2, "a", "b", "c")], ids=["first", "next"])
@pytest.mark.parametrize("name", ["poll", "poll_packed"])
def test_a_poll_is_one_range_of_its_index(
    connection: sqlite3.Connection, name: str, partitions: frozenset[int] | None, after: PollCursor | None
) -> None:
    query = PollQuery(1, 5, 10, partitions, after)
    found = plan(connection, QUERIES[name], poll_parameters("default", query))
    assert_direct(found)
    assert "reminders_to_wake (service_id=? AND priority=? AND (wake_at," in found
    assert "AND wake_at<?" in found


def test_rows_that_no_poll_sees_are_found_by_an_index_of_their_own(connection: sqlite3.Connection) -> None:
    found = plan(connection, QUERIES["unpollable"])
    assert_direct(found)
    assert "reminders_unpollable" in found


@pytest.mark.parametrize(
    ("where", "key"),
    [
        (ReminderFilter(), "service_id=? AND (grain_type,grain_key,name)>(?,?,?)"),
        (ReminderFilter(grain_type="t"), "service_id=? AND grain_type=? AND (grain_key,name)>(?,?)"),
        (
            ReminderFilter(grain_type="t", grain_key="k"),
            "service_id=? AND grain_type=? AND grain_key=? AND name>?",
        ),
        (ReminderFilter(status="failed"), "service_id=? AND (grain_type,grain_key,name)>(?,?,?)"),
    ],
)
def test_a_page_of_a_listing_starts_where_the_last_one_ended(
    connection: sqlite3.Connection, where: ReminderFilter, key: str
) -> None:
    statement, values = listing("default", where, 10, ("t", "k", "n"))
    found = plan(connection, statement, values)
    assert_direct(found)
    assert f"PRIMARY KEY ({key}" in found


def test_a_batch_is_cut_into_statements_of_few_sizes_that_keep_every_row() -> None:
    for count in (0, 1, 5, 63, 64, 65, 200):
        rows = [(number, -number, "x") for number in range(count)]
        cut = list(in_statements("touch_grains", rows))
        given = [value for _, values in cut for value in values if value is not None]
        assert given == [value for row in rows for value in row]
        sizes = [len(values) // 3 for _, values in cut]
        assert all(size in (1, 2, 4, 8, 16, 32, 64) for size in sizes)
        assert len(cut) == -(-count // ROWS_MAX), "no statement more than needed"


def test_writes_of_many_rows_copy_no_pages_to_undo_themselves() -> None:
    over_others = {"put_reminders", "put_reminder_if_missing", "move_watermarks", "move_stream_heads"}
    over_others.add(
        "write_states_alone"
    )  # what fails undoes the whole transaction, and no copies are made for that
    for name in MANY_ROWS - over_others:
        assert not re.search(r"\b(INSERT|UPDATE) (?!OR FAIL|SET)", QUERIES[name]), name


def test_every_query_is_described_by_its_name_alone_and_names_are_unique() -> None:
    assert read_queries("-- name: a\n-- why\nSELECT {f}\n-- fragment: f\n1\n") == {"a": "SELECT 1"}
    assert read_queries("-- fragment: f\n1\n-- fragment: g\n{f} + {f}\n-- name: a\nSELECT {g}\n") == {
        "a": "SELECT 1 + 1"
    }
    with pytest.raises(ValueError, match="two queries are named a"):
        read_queries("-- name: a\nSELECT 1\n-- name: a\nSELECT 2\n")


def test_the_columns_of_a_reminder_are_the_fields_of_its_row(connection: sqlite3.Connection) -> None:
    cursor = connection.execute(QUERIES["reminders_of"], ("", "", ""))
    assert [column[0] for column in cursor.description] == list(ReminderRow.__dataclass_fields__)


def test_a_migration_that_ends_in_the_middle_of_a_statement_is_an_error() -> None:
    assert statements("CREATE TABLE a (x);\n-- note; with a semicolon\nCREATE TABLE b (x);\n") == [
        "CREATE TABLE a (x);",
        "-- note; with a semicolon\nCREATE TABLE b (x);",
    ]
    with pytest.raises(ValueError, match="inside a statement"):
        statements("CREATE TABLE a (x")
