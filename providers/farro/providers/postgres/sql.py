"""The texts of this store: named queries and numbered migrations, with its schema put in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from farro.providers.sql_files import Migration, migrations_of, queries_of

_ROOM = "farro.providers.postgres"


def quoted(name: str) -> str:
    """An identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def known_migrations() -> tuple[Migration, ...]:
    """The migrations of this farro, by number from 1."""
    return migrations_of(_ROOM)


def script(migration: Migration, schema: str) -> str:
    """The text to run; the checksum is of the text without a schema."""
    return migration.text.replace("{schema}", quoted(schema))


@lru_cache(maxsize=16)
def queries(schema: str) -> Mapping[str, str]:
    """The statements of queries.sql by name, comments dropped.  ``{filters}`` stays for the caller."""
    return MappingProxyType(queries_of(_ROOM, {"schema": quoted(schema)}))
