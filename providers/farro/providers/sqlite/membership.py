"""Silos and partitions: who lives and who owns, each verb one function for the writer's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from farro.providers.checks import is_storable
from farro.providers.errors import StoreError
from farro.providers.members import PartitionRow, SiloRow
from farro.providers.sqlite.failures import writing
from farro.providers.sqlite.queries import QUERIES

PARTITIONS = 64
_LAST_NUMBER = "last_silo_number"


def join(connection: sqlite3.Connection, url: str, service_id: str, address: str, now: int) -> SiloRow:
    if not is_storable(address):
        raise StoreError(f"the address {address!r:.100} has a NUL or a lone surrogate")
    with writing(connection, url):
        # a counter, not max(number): a number stays used after its row is gone
        found = connection.execute(QUERIES["read_setting"], (service_id, _LAST_NUMBER)).fetchone()
        number = (found[0] if found else 0) + 1
        connection.execute(QUERIES["write_setting"], (service_id, _LAST_NUMBER, number))
        connection.execute(QUERIES["add_silo"], (service_id, number, address, now))
    return SiloRow(number, address, started_at=now, renewed_at=now, left_at=None)


def renew(
    connection: sqlite3.Connection, url: str, service_id: str, number: int, now: int, synchronous: str
) -> bool:
    """Without fsync: the next commit brings it to the disk; a crash before that loses seconds of a sign."""
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        with writing(connection, url):
            return connection.execute(QUERIES["sign_of_life"], (service_id, number, now)).rowcount == 1
    finally:
        connection.execute(f"PRAGMA synchronous = {synchronous}")


def leave(connection: sqlite3.Connection, url: str, service_id: str, number: int, now: int) -> None:
    with writing(connection, url):
        if connection.execute(QUERIES["leave"], (service_id, number, now)).rowcount == 1:
            connection.execute(QUERIES["free_partitions"], (service_id, number, now))


def take(
    connection: sqlite3.Connection,
    url: str,
    service_id: str,
    number: int,
    partitions: Sequence[int],
    now: int,
) -> list[PartitionRow]:
    wanted = sorted(set(partitions))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < PARTITIONS:
        raise StoreError(f"partitions go from 0 to {PARTITIONS - 1}, not from {wanted[0]} to {wanted[-1]}")
    taken: list[PartitionRow] = []
    with writing(connection, url):
        if connection.execute(QUERIES["is_member"], (service_id, number)).fetchone() is None:
            raise StoreError(f"silo {number} is not a member: join first")
        for partition in wanted:
            key = (service_id, partition)
            found = connection.execute(QUERIES["last_alive"], key).fetchone()
            (epoch,) = connection.execute(QUERIES["take_partition"], (*key, number)).fetchone()
            taken.append(PartitionRow(partition, epoch, found[0] if found else None))
        connection.execute(QUERIES["sign_of_life"], (service_id, number, now))
    return taken
