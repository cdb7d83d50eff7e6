"""Reads of many rows, of which a good many come in one value, as JSON.

For every row that is fetched by itself the reading thread lets go of Python's lock, and waits for a busy
event loop to get it back: some fifty microseconds, where SQLite needs ten for the row.  So the thread fetches
texts, and rows are made of them on the loop.  What JSON cannot say, which only another program can have
written, is for ``reading`` to read row by row.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace

from farro.providers.checks import is_storable
from farro.providers.rows import GrainRow, PollCursor, PollQuery, ReminderRow
from farro.providers.sqlite.failures import reading
from farro.providers.sqlite.queries import QUERIES, in_statements
from farro.providers.sqlite.reading import poll_parameters

ROWS_A_VALUE = 128  # half a millisecond of the loop's time

_NO_TEXT = (sqlite3.OperationalError, sqlite3.DataError)  # bad text, too long a text

_COLUMNS = list(ReminderRow.__dataclass_fields__)
_ARGS = _COLUMNS.index("args")
_CURSOR = [_COLUMNS.index(name) for name in PollCursor.__dataclass_fields__]


def load(
    connection: sqlite3.Connection, service_id: str, grains: Sequence[tuple[str, str]]
) -> list[str] | None:
    """Texts for :func:`grain_rows`; None: read row by row."""
    asked = [
        (number, service_id, grain_type, grain_key)
        for number, (grain_type, grain_key) in enumerate(grains)
        if is_storable(grain_type) and is_storable(grain_key)
    ]
    try:
        with reading(connection):
            return [
                connection.execute(statement, values).fetchone()[0]
                for statement, values in in_statements("load_grains", asked)
            ]
    except _NO_TEXT:
        return None  # trouble of another kind is met again there, and told


def grain_rows(texts: Iterable[str], count: int) -> tuple[list[GrainRow | None], list[int]]:
    """The rows of ``count`` grains, and the positions of those whose state is too long to come this way."""
    rows: list[GrainRow | None] = [None] * count
    left_out = []
    for text in texts:
        for number, *columns in json.loads(text):
            state = columns[-1]
            if state == 0:
                left_out.append(number)
                continue
            if state is not None:
                columns[-1] = bytes.fromhex(state)
            rows[number] = GrainRow(*columns)
    return rows, left_out


def poll(
    connection: sqlite3.Connection, service_id: str, queries: Sequence[PollQuery]
) -> list[list[str]] | None:
    """Texts for :func:`reminder_rows`, of each query; None: read row by row."""
    try:
        with reading(connection):  # one snapshot, so that a row that changes its priority is not seen twice
            pages = []
            for query in queries:
                if (page := _page(connection, service_id, query)) is None:
                    return None
                pages.append(page)
            return pages
    except _NO_TEXT:
        return None


def _page(connection: sqlite3.Connection, service_id: str, query: PollQuery) -> list[str] | None:
    texts: list[str] = []
    after, left = query.after, query.limit
    while left > 0:
        part = replace(query, after=after, limit=min(left, ROWS_A_VALUE))
        found = connection.execute(QUERIES["poll_packed"], poll_parameters(service_id, part))
        text, count, last, left_out = found.fetchone()
        if left_out:
            return None  # long arguments take more time as text than row by row
        texts.append(text)
        if count < part.limit:
            break
        left -= count
        columns = json.loads(last)
        after = PollCursor(*(columns[column] for column in _CURSOR))
    return texts


async def reminder_rows(texts: Sequence[str]) -> list[ReminderRow]:
    """The rows; the event loop has its turn in between."""
    rows: list[ReminderRow] = []
    for text in texts:
        for columns in json.loads(text):
            columns[_ARGS] = bytes.fromhex(columns[_ARGS])
            rows.append(ReminderRow(*columns))
        await asyncio.sleep(0)
    return rows
