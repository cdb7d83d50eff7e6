"""Brings a schema to this farro's state, and refuses what it does not know.

However many silos start at once, one applies what is missing, under an advisory lock, in one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from farro.providers.errors import SchemaMismatch, StoreMissing
from farro.providers.postgres.connecting import Connection
from farro.providers.postgres.sql import known_migrations, queries, quoted, script
from farro.providers.sql_files import Migration

MIGRATE_LOCK_MS = 60_000  # a long wait: the first of many silos creates everything meanwhile


class Migrating:
    """The schema of one store over one connection."""

    def __init__(
        self,
        connection: Connection,
        url: str,
        schema: str,
        known: Sequence[Migration] | None = None,
    ) -> None:
        self._connection = connection
        self._url = url
        self._schema = schema
        self._known = known_migrations() if known is None else known
        self._queries: Mapping[str, str] = queries(schema)

    async def pending(self) -> Sequence[Migration]:
        """The migrations still to apply.  SchemaMismatch: a newer farro's, tampered with, or not farro's."""
        has = await self._connection.fetchrow(self._queries["has_schema"], self._schema)
        assert has is not None
        if not has["farros"]:
            if has["tables"]:
                raise SchemaMismatch(
                    f"{self._url}: the schema {self._schema} holds the tables of another program"
                    f" ({', '.join(has['tables'])[:200]}): give farro a schema of its own with ?schema=name"
                )
            return self._known
        applied = await self._connection.fetch(self._queries["applied"])
        if applied and applied[-1]["number"] > len(self._known):
            raise SchemaMismatch(
                f"{self._url} was written by a newer farro (schema {applied[-1]['number']}; this farro knows"
                f" up to {len(self._known)}): upgrade farro"
            )
        for migration, row in zip(self._known, applied, strict=False):
            if (row["number"], row["checksum"]) != (migration.number, migration.checksum):
                raise SchemaMismatch(
                    f"{self._url}: migration {row['number']} ({row['name']}) is not the one of this farro:"
                    " the store was changed by hand or by another build; use the farro that wrote it, or"
                    " restore a backup"
                )
        return self._known[len(applied) :]

    async def names_of_pending(self) -> list[str]:
        """Such as ``0002_commit``.  StoreMissing when there is no store: a dry run promises no new one."""
        missing = await self.pending()
        if len(missing) == len(self._known):
            raise StoreMissing(f"there is no store at {self._url}: check the address, or start a silo on it")
        return [f"{migration.number:04}_{migration.name}" for migration in missing]

    async def migrate(self, service_id: str, partitions: int, now: int) -> tuple[int, int]:
        """Apply what is missing, add the service.  Answers (schema version, partitions of the service)."""
        if await self.pending() or await self._partitions(service_id) is None:
            async with self._connection.transaction():
                await self._connection.execute(f"SET LOCAL lock_timeout = {MIGRATE_LOCK_MS}")
                await self._connection.execute("SELECT pg_advisory_xact_lock($1)", self._lock_key())
                await self._apply(now)
                await self._connection.execute(self._queries["create_service"], service_id, partitions)
        found = await self._partitions(service_id)
        assert found is not None
        return len(self._known), found

    async def check_for_reading(self, service_id: str) -> tuple[int, int]:
        """For tools: nothing is created.  Answers (schema version, partitions of the service)."""
        missing = await self.pending()
        found = None if missing else await self._partitions(service_id)
        if len(missing) == len(self._known) or (not missing and found is None):
            raise StoreMissing(
                f"there is no store of the service {service_id!r:.100} at {self._url}: check the address, or"
                " start a silo on it"
            )
        if missing or found is None:
            raise SchemaMismatch(
                f"{self._url} was written by an older farro (schema {missing[0].number - 1}, this farro needs"
                f" {len(self._known)}): start a silo on it or run farro migrate"
            )
        return len(self._known), found

    async def _apply(self, now: int) -> None:
        # looked at again: another silo may have done it while this one waited for the lock
        to_apply = await self.pending()
        if to_apply and to_apply[0].number == 1:
            has = await self._connection.fetchrow(self._queries["has_schema"], self._schema)
            assert has is not None
            if not has["there"]:  # one that an administrator made needs no right to make one
                await self._connection.execute(f"CREATE SCHEMA {quoted(self._schema)}")
            await self._connection.execute(self._queries["create_migrations"])
        for migration in to_apply:
            await self._connection.execute(script(migration, self._schema))
            await self._connection.execute(
                self._queries["add_migration"], migration.number, migration.name, migration.checksum, now
            )

    async def _partitions(self, service_id: str) -> int | None:
        found: int | None = await self._connection.fetchval(
            self._queries["partitions_of_service"], service_id
        )
        return found

    def _lock_key(self) -> int:
        digest = hashlib.blake2b(f"farro migrations {self._schema}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)
