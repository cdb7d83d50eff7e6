"""Silos and partitions: who lives and who owns, each verb one function for the writer's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

from farro.providers.checks import is_storable
from farro.providers.errors import StoreError
from farro.providers.members import ClusterRows, PartitionRow, SiloRow, SiloStatus
from farro.providers.sqlite.failures import reading, writing
from farro.providers.sqlite.queries import QUERIES
from farro.providers.sqlite.reading import fetch

PARTITIONS = 64
FORGET_AFTER_US = 86_400_000_000
_LAST_NUMBER = "last_silo_number"
_VIEW = "view"


@dataclass(frozen=True, slots=True)
class Service:
    """One service of one file: what every verb needs beside its connection."""

    url: str
    service_id: str
    synchronous: str


def _setting(connection: sqlite3.Connection, service: Service, key: str) -> int:
    found = connection.execute(QUERIES["read_setting"], (service.service_id, key)).fetchone()
    return found[0] if found else 0


def _move_view(connection: sqlite3.Connection, service: Service) -> None:
    connection.execute(QUERIES["move_view"], (service.service_id,))


def _member(
    connection: sqlite3.Connection, service: Service, number: int
) -> tuple[SiloStatus, int, int] | None:
    """Status, renewals and sign of life of a member; None when it is none."""
    found = connection.execute(QUERIES["silo"], (service.service_id, number)).fetchone()
    return (SiloStatus(found[0]), found[1], found[2]) if found else None


def join(
    connection: sqlite3.Connection, service: Service, address: str, now: int, lock: Callable[[int], bool]
) -> SiloRow:
    """``lock`` takes the lock of a number, before anybody can read that there is such a silo.

    A number whose lock another process has is passed over.
    """
    if not is_storable(address):
        raise StoreError(f"the address {address!r:.100} has a NUL or a lone surrogate")
    service_id = service.service_id
    with writing(connection, service.url):
        connection.execute(QUERIES["forget_silos"], (service_id, now - FORGET_AFTER_US))
        # a counter, not max(number): a number stays used after its row is gone
        number = _setting(connection, service, _LAST_NUMBER) + 1
        while not lock(number):
            number += 1
        connection.execute(QUERIES["write_setting"], (service_id, _LAST_NUMBER, number))
        connection.execute(QUERIES["add_silo"], (service_id, number, address, now))
        _move_view(connection, service)
    return SiloRow(number, address, started_at=now, renewed_at=now, left_at=None)


def member_numbers(connection: sqlite3.Connection, service: Service) -> set[int]:
    return {number for (number,) in connection.execute(QUERIES["member_numbers"], (service.service_id,))}


def renew(connection: sqlite3.Connection, service: Service, number: int, now: int, load: int) -> int | None:
    """Without fsync: the next commit brings it to the disk; a crash before that loses seconds of a sign."""
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        with writing(connection, service.url):
            renewed = connection.execute(QUERIES["renew"], (service.service_id, number, now, load))
            return _setting(connection, service, _VIEW) if renewed.rowcount == 1 else None
    finally:
        connection.execute(f"PRAGMA synchronous = {service.synchronous}")


def set_status(
    connection: sqlite3.Connection, service: Service, number: int, status: SiloStatus, now: int
) -> bool:
    with writing(connection, service.url):
        member = _member(connection, service, number)
        if member is None:
            return False
        if member[0] is not status:
            connection.execute(QUERIES["set_status"], (service.service_id, number, now, status.value))
            _move_view(connection, service)
    return True


def leave(connection: sqlite3.Connection, service: Service, number: int, now: int) -> None:
    key = (service.service_id, number, now)
    with writing(connection, service.url):
        if connection.execute(QUERIES["leave"], key).rowcount == 1:
            connection.execute(QUERIES["free_partitions"], key)
            _move_view(connection, service)


def mark_dead(connection: sqlite3.Connection, service: Service, number: int, renewals: int, now: int) -> bool:
    with writing(connection, service.url):
        member = _member(connection, service, number)
        if member is None or member[1] != renewals:
            return False
        connection.execute(QUERIES["mark_dead"], (service.service_id, number, now))
        connection.execute(QUERIES["free_partitions"], (service.service_id, number, member[2]))
        _move_view(connection, service)
    return True


def take(
    connection: sqlite3.Connection,
    service: Service,
    number: int,
    partitions: Sequence[int],
    now: int,
    epochs: Sequence[int] | None,
) -> list[PartitionRow]:
    asked = zip(partitions, repeat(None)) if epochs is None else zip(partitions, epochs, strict=True)
    wanted = sorted(set(asked))
    if wanted and not 0 <= wanted[0][0] <= wanted[-1][0] < PARTITIONS:
        raise StoreError(
            f"partitions go from 0 to {PARTITIONS - 1}, not from {wanted[0][0]} to {wanted[-1][0]}"
        )
    service_id = service.service_id
    taken: list[PartitionRow] = []
    with writing(connection, service.url):
        if _member(connection, service, number) is None:
            raise StoreError(f"silo {number} is not a member: join first")
        found = connection.execute(QUERIES["owned"], (service_id,))
        stood = {partition: (owner, epoch, alive_at) for partition, owner, epoch, alive_at in found}
        for partition, expected in wanted:
            owner, epoch, alive_at = stood.get(partition, (None, 0, None))
            if expected is not None and (epoch != expected or owner not in (None, number)):
                continue
            connection.execute(QUERIES["take_partition"], (service_id, partition, number))
            taken.append(PartitionRow(partition, epoch + 1, alive_at))
        connection.execute(QUERIES["sign_of_life"], (service_id, number, now))
        if taken:
            _move_view(connection, service)
    return taken


def release(
    connection: sqlite3.Connection, service: Service, number: int, partitions: Sequence[int], now: int
) -> None:
    values = (service.service_id, number, now, json.dumps(list(partitions)))
    with writing(connection, service.url):
        if connection.execute(QUERIES["release_partitions"], values).rowcount:
            _move_view(connection, service)


def silos(connection: sqlite3.Connection, service: Service) -> list[SiloRow]:
    found = fetch(connection, QUERIES["silos"], (service.service_id,))
    return [
        SiloRow(number, address, started_at, renewed_at, left_at, SiloStatus(status), renewals, load)
        for number, address, started_at, renewed_at, left_at, status, renewals, load in found
    ]


def cluster(connection: sqlite3.Connection, service: Service) -> ClusterRows:
    owners, epochs = [0] * PARTITIONS, [0] * PARTITIONS
    with reading(connection):
        view = _setting(connection, service, _VIEW)
        rows = tuple(silos(connection, service))
        for partition, owner, epoch, _ in connection.execute(QUERIES["owned"], (service.service_id,)):
            owners[partition], epochs[partition] = owner or 0, epoch
    return ClusterRows(view, rows, tuple(owners), tuple(epochs))
