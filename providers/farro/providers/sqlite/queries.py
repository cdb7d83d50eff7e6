"""The statements of queries.sql, and how rows are put into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import MappingProxyType

from farro.providers.sql_files import queries_of

QUERIES: Mapping[str, str] = MappingProxyType(queries_of("farro.providers.sqlite"))

MANY_ROWS = frozenset(name for name, text in QUERIES.items() if "{rows}" in text)

ROWS_MAX = 64  # rows in one statement: 64 reminders are 1,856 values, far below SQLite's limit of 32,766


@lru_cache(maxsize=256)
def with_rows(name: str, columns: int, rows: int) -> str:
    """The query ``name`` with ``{rows}`` rows of ``columns`` parameters each."""
    row = "(" + ", ".join(["?"] * columns) + ")"
    return QUERIES[name].replace("{rows}", ", ".join([row] * rows))


def in_statements(name: str, rows: Sequence[tuple[object, ...]]) -> Iterator[tuple[str, list[object]]]:
    """Statements, with their values, that pass ``rows`` (of equal length) to the query ``name``, in order.

    The number of rows in each is a power of two, so that a handful of texts stays prepared whatever the
    batch; the last is filled up with rows of NULL, which every such query passes over.
    """
    for start in range(0, len(rows), ROWS_MAX):
        some = rows[start : start + ROWS_MAX]
        columns, size = len(some[0]), 1 << (len(some) - 1).bit_length()
        values = list(chain.from_iterable(some))
        values += [None] * ((size - len(some)) * columns)
        yield with_rows(name, columns, size), values
