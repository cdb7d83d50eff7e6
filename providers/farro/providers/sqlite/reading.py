"""The reads, each one function for the thread of a connection.  None holds a transaction after it returns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from farro.providers.checks import INTEGER_MIN, is_storable
from farro.providers.rows import (
    EventRow,
    GrainRow,
    OutboxRow,
    PollQuery,
    ReminderCount,
    ReminderFilter,
    ReminderRow,
)
from farro.providers.sqlite.failures import reading
from farro.providers.sqlite.queries import QUERIES

Parameters = Sequence[Any] | Mapping[str, Any]

_BEFORE_ALL = (INTEGER_MIN, INTEGER_MIN, "", "", "")
_AFTER = (
    " AND (grain_type, grain_key, name) > (:after_type, :after_key, :after_name)",
    " AND (grain_key, name) > (:after_key, :after_name)",
    " AND name > :after_name",
)
_EQUAL = ("grain_type", "grain_key", "operation", "priority", "action", "status")


def fetch(connection: sqlite3.Connection, statement: str, parameters: Parameters) -> list[tuple[Any, ...]]:
    """All rows.  Text that is not UTF-8, which only another program can have written, is read with marks."""
    try:
        return connection.execute(statement, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    strict = connection.text_factory
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    try:
        return connection.execute(statement, parameters).fetchall()
    finally:
        connection.text_factory = strict


def load(
    connection: sqlite3.Connection, service_id: str, grains: Sequence[tuple[str, str]]
) -> list[GrainRow | None]:
    rows: list[GrainRow | None] = []
    with reading(connection):
        for grain_type, grain_key in grains:
            found = (
                fetch(connection, QUERIES["load_grain"], (service_id, grain_type, grain_key))
                if is_storable(grain_type) and is_storable(grain_key)
                else None
            )
            rows.append(GrainRow(*found[0]) if found else None)
    return rows


def reminder(connection: sqlite3.Connection, service_id: str, *key: str) -> ReminderRow | None:
    if not all(map(is_storable, key)):
        return None
    found = fetch(connection, QUERIES["reminder"], (service_id, *key))
    return ReminderRow(*found[0]) if found else None


def reminders_of(connection: sqlite3.Connection, service_id: str, *key: str) -> list[ReminderRow]:
    if not all(map(is_storable, key)):
        return []
    return [ReminderRow(*row) for row in fetch(connection, QUERIES["reminders_of"], (service_id, *key))]


def poll(
    connection: sqlite3.Connection, service_id: str, queries: Sequence[PollQuery]
) -> list[list[ReminderRow]]:
    statement = QUERIES["poll"]
    with reading(connection):  # one snapshot, so that a row that changes its priority is not seen twice
        return [
            [ReminderRow(*row) for row in fetch(connection, statement, poll_parameters(service_id, query))]
            for query in queries
        ]


def poll_parameters(service_id: str, query: PollQuery) -> tuple[Any, ...]:
    after = query.after
    return (
        service_id,
        query.priority,
        query.wake_until,
        *(
            _BEFORE_ALL
            if after is None
            else (after.wake_at, after.registration, after.grain_type, after.grain_key, after.name)
        ),
        max(query.limit, 0),
        None if query.partitions is None else json.dumps(sorted(query.partitions)),
    )


def listing(
    service_id: str, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None
) -> tuple[str, dict[str, Any]]:
    """The statement and values of one page.

    The cursor compares only the part of the key that the filter leaves open.  A range over the whole key
    beside an equality on its first column would be read from the start of the grain type on every page, or
    sorted.
    """
    filters, values = _filters(service_id, where)
    values["limit"] = max(limit, 0)
    if after is not None:
        given: tuple[str, ...] = () if where.grain_type is None else (where.grain_type,)
        if given and where.grain_key is not None:
            given += (where.grain_key,)
        start = after[: len(given)]
        if start > given:
            values["limit"] = 0  # the whole of what the filter names lies before the cursor
        elif start == given:
            filters += _AFTER[len(given)]
            values.update(zip(("after_type", "after_key", "after_name"), after, strict=True))
    return QUERIES["list_reminders"].replace("{filters}", filters), values


def counting(service_id: str, where: ReminderFilter) -> tuple[str, dict[str, Any]]:
    filters, values = _filters(service_id, where)
    return QUERIES["count_reminders"].replace("{filters}", filters), values


def _filters(service_id: str, where: ReminderFilter) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {"service_id": service_id}
    text = ""
    for name in _EQUAL:
        if (wanted := getattr(where, name)) is not None:
            text += f" AND {name} = :{name}"
            values[name] = wanted
    if where.due_until is not None:
        text += " AND next_due_at <= :due_until"
        values["due_until"] = where.due_until
    return text, values


def list_reminders(
    connection: sqlite3.Connection,
    service_id: str,
    where: ReminderFilter,
    limit: int,
    after: tuple[str, str, str] | None,
) -> list[ReminderRow]:
    return [ReminderRow(*row) for row in fetch(connection, *listing(service_id, where, limit, after))]


def count_reminders(
    connection: sqlite3.Connection, service_id: str, where: ReminderFilter
) -> list[ReminderCount]:
    return [ReminderCount(*row) for row in fetch(connection, *counting(service_id, where))]


def events(
    connection: sqlite3.Connection, service_id: str, partition: int, stream: str, after: int, limit: int
) -> list[tuple[int, EventRow]]:
    if not is_storable(stream):
        return []
    values = (service_id, partition, stream, after, max(limit, 0))
    return [(row[0], EventRow(*row[1:])) for row in fetch(connection, QUERIES["events"], values)]


def outbox(
    connection: sqlite3.Connection, service_id: str, partition: int, after: int, limit: int
) -> list[tuple[int, OutboxRow]]:
    values = (service_id, partition, after, max(limit, 0))
    return [(row[0], OutboxRow(*row[1:])) for row in fetch(connection, QUERIES["outbox"], values)]


def stream_heads(connection: sqlite3.Connection, service_id: str, stream: str) -> list[tuple[int, int]]:
    if not is_storable(stream):
        return []
    found = fetch(connection, QUERIES["stream_heads"], (service_id, stream))
    return [(partition, sequence) for partition, sequence in found]


def watermarks(connection: sqlite3.Connection, service_id: str, *grain: str) -> dict[str, int]:
    if not all(map(is_storable, grain)):
        return {}
    return dict(fetch(connection, QUERIES["watermarks"], (service_id, *grain)))


def unpollable(connection: sqlite3.Connection, service_id: str, limit: int) -> list[ReminderRow]:
    found = fetch(connection, QUERIES["unpollable"], (service_id, max(limit, 0)))
    return [ReminderRow(*row) for row in found]


def answer_to(
    connection: sqlite3.Connection, service_id: str, grain_type: str, grain_key: str, request_id: str
) -> bytes | None:
    key = (grain_type, grain_key, request_id)
    if not all(map(is_storable, key)):
        return None
    found = fetch(connection, QUERIES["answer_to"], (service_id, *key))
    return found[0][0] if found else None
