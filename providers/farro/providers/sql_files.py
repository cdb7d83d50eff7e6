"""Named queries and numbered migrations in .sql files, as the SQL stores keep them.

``queries.sql`` holds blocks that begin ``-- name: NAME`` or ``-- fragment: NAME``, each described by the
comment under it; ``{fragment}`` in a query is replaced.  A migration is a file ``migrations/NNNN_name.sql``;
one that was applied never changes, a new one is added.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_HEADS = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Of the text as written, with \\n line ends: the same in every checkout and store."""
        return hashlib.sha256("\n".join(self.text.splitlines()).encode()).hexdigest()


@cache
def migrations_of(package: str) -> tuple[Migration, ...]:
    """The migrations of a store's room, by number from 1."""
    found: list[Migration] = []
    for file in sorted(files(package).joinpath("migrations").iterdir(), key=lambda entry: entry.name):
        stem, _, ending = file.name.rpartition(".")
        if ending == "sql":
            number, _, name = stem.partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations must be numbered from 1 without gaps: {[m.number for m in found]}")
    return tuple(found)


def read_queries(text: str, fragments: Mapping[str, str] | None = None) -> dict[str, str]:
    """Statements by name, comments dropped, fragments put in, into later fragments as well.

    Unknown ``{names}`` stay for the caller.
    """
    heads = list(_HEADS.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    known = dict(fragments or {})
    parts: dict[str, dict[str, str]] = {"name": {}, "fragment": known}
    for head, end in zip(heads, ends, strict=True):
        kind, name = head.groups()
        if any(name in part for part in parts.values()):
            raise ValueError(f"two queries are named {name}")
        parts[kind][name] = _COMMENT.sub("", text[head.end() : end]).strip()
    for name in known:
        known[name] = _filled(known[name], known)
    return {name: _filled(statement, known) for name, statement in parts["name"].items()}


def _filled(statement: str, fragments: Mapping[str, str]) -> str:
    for fragment, text in fragments.items():
        statement = statement.replace("{" + fragment + "}", text)
    return statement


def queries_of(package: str, fragments: Mapping[str, str] | None = None) -> dict[str, str]:
    """The queries of a store's room."""
    return read_queries(files(package).joinpath("queries.sql").read_text(encoding="utf-8"), fragments)
