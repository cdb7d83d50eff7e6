"""Loads queries.sql: every statement by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
