"""The group commit of the PostgreSQL store beside what the same server does with the same rows alone.

The limit probe writes the rows of a turn into farro's own tables by one statement a group (unnest, one round
trip, one transaction): no fence, no version check, no verdicts.  Both run in turn on one server with fsync,
A B A B, and the ratio of their medians is the figure.

    python -m benchmarks.pg_group_commit [--seconds 2] [--rounds 5] [--group 64] [--work turn] [--lanes 1]
                                         [--url postgresql://…]

Without ``--url`` it starts a server from the wheel of the 'services' dependency group.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import count
from operator import attrgetter
from statistics import median
from time import perf_counter
from typing import Any, Literal

import asyncpg

from farro.providers.postgres.store import PostgresProvider
from farro.providers.rows import (
    Commit,
    DeleteReminder,
    GrainWrite,
    Outcome,
    Progress,
    PutReminder,
    ReminderRow,
    Settle,
)
from tests.support import servers

Work = Literal["state", "turn", "tick"]
WORKS: tuple[Work, ...] = ("state", "turn", "tick")
GRAINS = 2_048  # a multiple of every group: a grain comes once in a group
PARTITIONS = 64
STATE = b"\x82\xa6status\xa9on its way\xa5count\x01" + bytes(64)
START_AT = 1_700_000_000_000_000
SCHEMA = "farro_bench"
# as in the store's own function
PLANS = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off")
KEYS = [f"s-{number}" for number in range(GRAINS)]

_COLUMNS = [field.name for field in fields(ReminderRow)]
_TYPES = {"args": "bytea", "partition": "int"} | dict.fromkeys(
    (
        "grain_type",
        "grain_key",
        "name",
        "operation",
        "key",
        "cron",
        "timezone",
        "day_match",
        "status",
        "note",
    ),
    "text",
)
_row_values = attrgetter(*_COLUMNS)

_STATES = f"""INSERT INTO {SCHEMA}.grains AS g
    SELECT 'default', 'shipments', k, p, 1, 1, 1, s
    FROM unnest($1::text[], $2::int[], $3::bytea[]) AS t (k, p, s)
    ON CONFLICT (service_id, grain_type, grain_key)
    DO UPDATE SET version = g.version + 1, layout = excluded.layout, state = excluded.state"""
_ARRAYS = ", ".join(f"${n}::{_TYPES.get(column, 'bigint')}[]" for n, column in enumerate(_COLUMNS, 5))
_PUTS = f"""INSERT INTO {SCHEMA}.reminders (service_id, {", ".join(_COLUMNS)})
    SELECT 'default', t.* FROM unnest({_ARRAYS}) AS t
    ON CONFLICT (service_id, grain_type, grain_key, name)
    DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in _COLUMNS[2:] if c != "name")}"""
# found by scalar subqueries: a join with an empty table would be planned for an empty table
_FOUND = f"""(SELECT r.ctid FROM {SCHEMA}.reminders AS r WHERE r.service_id = 'default'
    AND r.grain_type = 'shipments' AND r.grain_key = t.k AND r.name = t.n)"""
_DELETES = f"""DELETE FROM {SCHEMA}.reminders WHERE ctid = ANY (ARRAY (
    SELECT {_FOUND} FROM unnest($1::text[], $4::text[]) AS t (k, n)))"""
_MOVES = f"""UPDATE {SCHEMA}.reminders AS r
    SET next_due_at = t.d, wake_at = t.d, last_fire_at = t.d, occurrence = r.occurrence + 1
    FROM (SELECT t.d, {_FOUND} AS place
          FROM (SELECT k, d, 'a' AS n FROM unnest($1::text[], $4::bigint[]) AS t (k, d)) AS t OFFSET 0) AS t
    WHERE r.ctid = t.place"""
RAW = {
    "state": _STATES,
    "turn": f"WITH states AS ({_STATES}), puts AS ({_PUTS}) {_DELETES}",
    "tick": f"WITH states AS ({_STATES}) {_MOVES}",
}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Turns per second, medians."""

    raw: float
    provider: float

    @property
    def ratio(self) -> float:
        return self.provider / self.raw


def _reminder(index: int, name: str, due: int) -> ReminderRow:
    return ReminderRow(
        grain_type="shipments",
        grain_key=KEYS[index],
        partition=index % PARTITIONS,
        name=name,
        operation="chase",
        key=None,
        args=b"\x90",
        start_at=due,
        period_us=60_000_000,
        cron=None,
        timezone="UTC",
        day_match="and",
        until_at=None,
        times_left=None,
        jitter_us=0,
        next_due_at=due,
        wake_at=due,
        last_fire_at=None,
        priority=1,
        action=0,
        registration=1,
        occurrence=1,
    )


def _group(number: int, size: int) -> tuple[range, int]:
    """The grains of a group and how many turns each had before."""
    first = number * size % GRAINS
    return range(first, first + size), number * size // GRAINS


def _member(work: Work, index: int, turn: int, epoch: int) -> Commit:
    due = START_AT + turn * 1_000_000
    member: dict[str, Any] = {}
    if work == "turn":
        put, gone = "ab"[turn % 2], "ba"[turn % 2]
        member["reminders"] = (PutReminder(_reminder(index, put, due)), DeleteReminder(gone))
    elif work == "tick":
        member["settle"] = Settle("a", 1, turn + 1, Progress(due, due, due, turn + 2))
    grain = GrainWrite(turn, writes_state=True, state=STATE)
    return Commit(index % PARTITIONS, epoch, "shipments", KEYS[index], grain=grain, **member)


class Raw:
    """The limit probe."""

    def __init__(self, connection: Any, work: Work, size: int) -> None:
        self._connection, self._work, self._size = connection, work, size

    async def send(self, number: int) -> None:
        grains, turn = _group(number, self._size)
        due = START_AT + turn * 1_000_000
        values: list[Any] = [
            [KEYS[g] for g in grains],
            [g % PARTITIONS for g in grains],
            [STATE] * self._size,
        ]
        if self._work == "turn":
            values.append(["ba"[turn % 2]] * self._size)
            rows = [_row_values(_reminder(g, "ab"[turn % 2], due)) for g in grains]
            values += map(list, zip(*rows, strict=True))
        elif self._work == "tick":
            values.append([due] * self._size)
        await self._connection.execute(RAW[self._work], *values)


class Provided:
    """The store as a silo uses it: one batch after the other."""

    def __init__(self, provider: PostgresProvider, owner: int, epoch: int, work: Work, size: int) -> None:
        self._provider, self._owner, self._epoch = provider, owner, epoch
        self._work, self._size = work, size

    async def send(self, number: int) -> None:
        grains, turn = _group(number, self._size)
        batch = [_member(self._work, index, turn, self._epoch) for index in grains]
        verdicts = await self._provider.commit(batch, self._owner, START_AT + number)
        if any(verdict.outcome is not Outcome.COMMITTED for verdict in verdicts):
            raise RuntimeError(f"a commit was refused: {verdicts}")


async def _rate(
    send: Callable[[int], Awaitable[None]], numbers: Iterator[int], seconds: float, size: int
) -> float:
    begun = perf_counter()
    done = 0
    while (elapsed := perf_counter() - begun) < seconds:
        await send(next(numbers))
        done += size
    return done / elapsed


async def group_commit(
    url: str, seconds: float, rounds: int, *, group: int = 64, work: Work = "turn", lanes: int = 1
) -> Ratio:
    """Both rates, ``rounds`` times ``seconds`` each, in tables of their own that are emptied before each."""
    connection = await asyncpg.connect(url, server_settings=PLANS)
    separator = "&" if "?" in url else "?"
    provider = PostgresProvider(f"{url}{separator}schema={SCHEMA}&partitions={PARTITIONS}&lanes={lanes}")
    await provider.open(START_AT)
    silo = await provider.join("bench", START_AT)
    taken = await provider.take(silo.number, range(PARTITIONS), START_AT)
    if len({row.epoch for row in taken}) != 1:
        raise RuntimeError("the partitions of the bench have different epochs: drop its schema")
    provided = Provided(provider, silo.number, taken[0].epoch, work, group)
    raw = Raw(connection, work, group)
    rates: dict[str, list[float]] = {"raw": [], "provider": []}
    for _ in range(rounds):
        for name, send in (("raw", raw.send), ("provider", provided.send)):
            await connection.execute(f"TRUNCATE {SCHEMA}.grains, {SCHEMA}.reminders")
            if work == "tick":
                await _fill(connection)
            rates[name].append(await _rate(send, count(), seconds, group))
    await provider.close()
    await connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    await connection.close()
    return Ratio(median(rates["raw"]), median(rates["provider"]))


async def _fill(connection: Any) -> None:
    rows = [("default", *_row_values(_reminder(index, "a", START_AT))) for index in range(GRAINS)]
    await connection.copy_records_to_table(
        "reminders", schema_name=SCHEMA, columns=["service_id", *_COLUMNS], records=rows
    )


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with servers.postgres(fsync="on", synchronous_commit="on", full_page_writes="on") as server:
        yield f"postgresql://farro@127.0.0.1:{server.port}/postgres"


def main() -> None:
    parser = argparse.ArgumentParser(description="Group commits on PostgreSQL: raw rows and farro's.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn, default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="of A and B, default: %(default)s")
    parser.add_argument("--group", type=int, default=64, help="turns a transaction, default: %(default)s")
    parser.add_argument("--work", choices=WORKS, default="turn", help="default: %(default)s")
    parser.add_argument("--lanes", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--url", help="a server that exists; its schema farro_bench is created and dropped")
    options = parser.parse_args()
    if GRAINS % options.group:
        parser.error(f"--group must divide {GRAINS}")
    with _server(options.url) as url:
        found = asyncio.run(
            group_commit(
                url,
                options.seconds,
                options.rounds,
                group=options.group,
                work=options.work,
                lanes=options.lanes,
            )
        )
    print(
        f"{options.work}, {options.group} a group, {options.lanes} lane(s): raw {found.raw:,.0f} turns/s,"
        f" farro {found.provider:,.0f} turns/s, ratio {found.ratio:.2f}"
    )


if __name__ == "__main__":
    main()
