"""What a server must show before a silo starts on it."""

from __future__ import annotations

import logging

from farro.providers.errors import SchemaMismatch, StoreError
from farro.providers.postgres.connecting import Linked
from farro.providers.postgres.sql import queries

VERSION_MIN = 140_000  # pg_terminate_backend that waits
SYNCHRONOUS = ("on", "remote_write", "remote_apply")

log = logging.getLogger("farro.providers.postgres")


async def self_test(
    url: str, schema: str, service_id: str, lock_class: int, partitions: int, one: Linked, other: Linked
) -> None:
    """Version, encoding, durable commits, the rows of the partitions, a clock, locks that exclude.

    ``one`` and ``other``: two connections, both of a primary (the connector has seen to that).  Raises
    StoreError naming what is wrong and the way out.
    """
    texts = queries(schema)
    found = await one.connection.fetchrow(texts["self_test"], service_id)
    assert found is not None
    if found["version"] < VERSION_MIN:
        raise StoreError(f"{url} is PostgreSQL {found['version'] // 10_000}: farro needs 14 or newer")
    if found["encoding"] != "UTF8":
        raise StoreError(f"{url} keeps text as {found['encoding']}: create the database with ENCODING 'UTF8'")
    for linked in (one, other):
        if linked.synchronous_commit not in SYNCHRONOUS:
            raise StoreError(
                f"{url} does not make commits durable (synchronous_commit = {linked.synchronous_commit}):"
                " set it to on"
            )
    if found["fsync"] != "on":
        log.warning("%s runs with fsync off: a crash of its machine loses or destroys data", url)
    if found["clock"] is None or found["clock"] <= 0:
        raise StoreError(f"{url}: the server's clock tells {found['clock']}: set it")
    if found["partition_rows"] != partitions:
        raise SchemaMismatch(
            f"{url}: the service {service_id!r:.100} has {found['partition_rows']} partition rows instead of"
            f" {partitions}: rows were removed by hand; restore a backup"
        )
    await _test_locks(url, schema, lock_class, one, other)


async def _test_locks(url: str, schema: str, lock_class: int, one: Linked, other: Linked) -> None:
    texts = queries(schema)
    held = await one.connection.fetchval(texts["hold_test_lock"], lock_class)
    try:
        shared = await other.connection.fetchval(texts["try_test_lock"], lock_class, one.backend.pid)
    finally:
        dropped = await one.connection.fetchval(texts["drop_test_lock"], lock_class)
    if not held or shared or not dropped:
        raise StoreError(
            f"{url}: advisory locks do not exclude each other here, and the fence rests on them: connect to"
            " the server itself, without a pooler or a proxy that spreads statements"
        )
