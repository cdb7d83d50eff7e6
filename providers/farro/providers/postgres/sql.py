"""The texts of this store: named queries and numbered migrations, with its schema put in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType

_ROOM = "farro.providers.postgres"
_HEADS = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Of the text with \\n line ends and without a schema: the same in every store and checkout."""
        return hashlib.sha256("\n".join(self.text.splitlines()).encode()).hexdigest()

    def script(self, schema: str) -> str:
        return self.text.replace("{schema}", quoted(schema))


def quoted(name: str) -> str:
    """An identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


@cache
def known_migrations() -> tuple[Migration, ...]:
    """The migrations of this farro, by number from 1."""
    found: list[Migration] = []
    for file in sorted(files(_ROOM).joinpath("migrations").iterdir(), key=lambda entry: entry.name):
        stem, _, ending = file.name.rpartition(".")
        if ending == "sql":
            number, _, name = stem.partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations must be numbered from 1 without gaps: {[m.number for m in found]}")
    return tuple(found)


@lru_cache(maxsize=16)
def queries(schema: str) -> Mapping[str, str]:
    """The statements of queries.sql by name, comments dropped.  ``{filters}`` stays for the caller."""
    text = files(_ROOM).joinpath("queries.sql").read_text(encoding="utf-8")
    heads = list(_HEADS.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    parts: dict[str, dict[str, str]] = {"name": {}, "fragment": {"schema": quoted(schema)}}
    for head, end in zip(heads, ends, strict=True):
        kind, name = head.groups()
        if any(name in known for known in parts.values()):
            raise ValueError(f"two queries are named {name}")
        parts[kind][name] = _COMMENT.sub("", text[head.end() : end]).strip()
    found = parts["name"]
    for fragment, replacement in parts["fragment"].items():
        for name in found:
            found[name] = found[name].replace("{" + fragment + "}", replacement)
    return MappingProxyType(found)
