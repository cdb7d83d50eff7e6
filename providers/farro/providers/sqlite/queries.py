"""Loads queries.sql: every statement by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

_HEADS = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)


def read_queries(text: str) -> dict[str, str]:
    """Statements by name, comments dropped, fragments put in.  Unknown ``{names}`` stay for the caller."""
    heads = list(_HEADS.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    queries: dict[str, str] = {}
    fragments: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=True):
        kind, name = head.groups()
        if name in queries or name in fragments:
            raise ValueError(f"two queries are named {name}")
        body = _COMMENT.sub("", text[head.end() : end]).strip()
        (queries if kind == "name" else fragments)[name] = body
    for name, body in queries.items():
        for fragment, replacement in fragments.items():
            body = body.replace("{" + fragment + "}", replacement)
        queries[name] = body
    return queries


QUERIES: Mapping[str, str] = MappingProxyType(
    read_queries(files("farro.providers.sqlite").joinpath("queries.sql").read_text(encoding="utf-8"))
)

ROWS_MAX = 64  # rows in one statement: 64 reminders are 1,856 values, far below SQLite's limit of 32,766


@lru_cache(maxsize=256)
def with_rows(name: str, columns: int, rows: int) -> str:
    """The query ``name`` with ``{rows}`` rows of ``columns`` parameters each."""
    row = "(" + ", ".join(["?"] * columns) + ")"
    return QUERIES[name].replace("{rows}", ", ".join([row] * rows))


def in_statements(name: str, rows: Sequence[tuple[object, ...]]) -> Iterator[tuple[str, list[object]]]:
    """Statements, with their values, that pass ``rows`` (of equal length) to the query ``name``, in order.

    The number of rows in each is a power of two, so that a handful of texts stays prepared whatever the
    batch.
    """
    start = 0
    while start < len(rows):
        size = min(ROWS_MAX, 1 << ((len(rows) - start).bit_length() - 1))
        values = [value for row in rows[start : start + size] for value in row]
        yield with_rows(name, len(rows[start]), size), values
        start += size
