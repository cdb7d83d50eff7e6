"""What the planner makes of the hot statements, with enough rows, and of the commit with none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from farro.providers.conformance.made import NOW, Owner, a_reminder, an_owner, writing
from farro.providers.postgres.reading import listing, poll_parameters
from farro.providers.postgres.sql import queries
from farro.providers.postgres.store import PostgresProvider
from farro.providers.rows import (
    DeleteOperation,
    DeleteReminder,
    EditReminder,
    EventRow,
    GrainWrite,
    OutboxRow,
    PollQuery,
    Progress,
    PutMode,
    PutReminder,
    ReminderFilter,
    Settle,
    Watermark,
)
from tests.support.servers import Server

pytestmark = pytest.mark.service

ROWS = 20_000
MARGIN = 3  # what a page may touch beyond its rows
FILL = f"""
INSERT INTO plans.reminders SELECT 'default', 'shipments', 'k' || n, n % 64, 'chase', 'chase', NULL, '\\x90',
    {NOW}, 60000000, NULL, 'UTC', 'and', NULL, NULL, 0, {NOW} + n, {NOW} + n, NULL, n % 3, 0, n, 1, 0, 0,
    NULL, NULL, 'scheduled', NULL FROM generate_series(1, {ROWS}) AS n;
INSERT INTO plans.grains SELECT 'default', 'shipments', 'k' || n, n % 64, 1, 1, 1, '\\x00'
    FROM generate_series(1, {ROWS}) AS n;
INSERT INTO plans.events SELECT 'default', n % 64, 's', n, '\\x00', 1 FROM generate_series(1, {ROWS}) AS n;
INSERT INTO plans.outbox SELECT 'default', n % 64, n, 'a', 'b', 'c', 'd', 'e', '\\x90', 1
    FROM generate_series(1, {ROWS}) AS n;
"""


@pytest.fixture
async def sql(postgres_server: Server) -> AsyncIterator[Any]:
    url = f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres"
    provider = PostgresProvider(f"{url}?schema=plans&partitions=64")
    await provider.open(NOW)
    await provider.close()
    connection = await asyncpg.connect(url)
    if not await connection.fetchval("SELECT EXISTS (SELECT 1 FROM plans.events)"):
        await connection.execute(FILL)
    await connection.execute("VACUUM ANALYZE")
    yield connection
    await connection.close()


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in nodes(child))]


async def explained(sql: Any, statement: str, *values: Any) -> list[dict[str, Any]]:
    text = await sql.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
    return nodes(json.loads(text)[0]["Plan"])


def check(plan: list[dict[str, Any]], index: str, rows_max: int) -> None:
    """One index in its own order: nothing sorted, nothing scanned, no more rows touched than asked for."""
    kinds = {node["Node Type"] for node in plan}
    assert not kinds & {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan", "Hash Join"}, kinds
    assert index in {node.get("Index Name") for node in plan}
    touched = max(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in plan)
    assert touched <= rows_max, touched


@pytest.mark.parametrize("partitions", [None, frozenset(range(64)), frozenset(range(32))])
async def test_a_poll_is_one_index_range_in_its_order(sql: Any, partitions: frozenset[int] | None) -> None:
    query = PollQuery(1, NOW + ROWS, 100, partitions=partitions)
    plan = await explained(sql, queries("plans")["poll"], *poll_parameters("default", query))
    share = 1 if partitions is None else 64 // len(partitions)
    check(plan, "reminders_to_wake", 100 * share + 32 * share)


async def test_a_later_page_of_a_poll_starts_at_its_cursor(sql: Any) -> None:
    rows = await sql.fetch(
        queries("plans")["poll"], *poll_parameters("default", PollQuery(1, NOW + ROWS, 5_000))
    )
    values = list(poll_parameters("default", PollQuery(1, NOW + ROWS, 100)))
    last = rows[-1]
    values[3:8] = [last[name] for name in ("wake_at", "registration", "grain_type", "grain_key", "name")]
    check(await explained(sql, queries("plans")["poll"], *values), "reminders_to_wake", 100 + MARGIN)


async def test_pages_of_listings_events_and_outbox_start_where_they_should(sql: Any) -> None:
    texts = queries("plans")
    for where in (ReminderFilter(), ReminderFilter(grain_type="shipments")):
        filters, values = listing("default", where, 50, ("shipments", "k15", "chase"))
        statement = texts["list_reminders"].replace("{filters}", filters)
        check(await explained(sql, statement, *values), "reminders_pkey", 50 + MARGIN)
    check(await explained(sql, texts["events"], "default", 3, "s", 9_000, 20), "events_pkey", 20 + MARGIN)
    check(await explained(sql, texts["outbox"], "default", 3, 9_000, 20), "outbox_pkey", 20 + MARGIN)
    check(await explained(sql, texts["unpollable"], "default", 20), "reminders_unpollable", MARGIN)
    check(await explained(sql, texts["reminders_of"], "default", "shipments", "k7"), "reminders_pkey", MARGIN)


async def test_a_load_looks_up_each_grain_by_its_key(sql: Any) -> None:
    keys = [f"k{number}" for number in range(1, ROWS, 400)]
    plan = await explained(sql, queries("plans")["load"], "default", ["shipments"] * len(keys), keys)
    (lookup,) = [node for node in plan if node.get("Relation Name") == "grains"]
    assert (lookup["Index Name"], lookup["Actual Loops"]) == ("grains_pkey", len(keys))


async def everything(owner: Owner) -> None:
    """A batch that passes through every statement of commit_1."""
    keys = [f"p{number}" for number in range(8)]
    for version in range(7):  # beyond the five runs after which a plan is kept
        await owner.commit(
            *(
                owner.member(
                    key,
                    grain=writing(version, key.encode()) if number % 2 else GrainWrite(version),
                    settle=Settle("tick", version, 1, None if number % 3 else Progress(NOW, NOW, NOW, 2)),
                    reminders=(
                        PutReminder(a_reminder(key, "tick", registration=version + 1)),
                        PutReminder(a_reminder(key, "cron", cron="* * * * *"), PutMode.KEEP_PROGRESS),
                        PutReminder(a_reminder(key, "once"), PutMode.IF_MISSING),
                        EditReminder("cron", priority=2),
                        DeleteReminder("gone"),
                        DeleteOperation("gone"),
                    ),
                    events=(EventRow("s", b"x", NOW),),
                    outbox=(OutboxRow("a", "b", "c", b"", NOW),),
                    watermarks=(Watermark("s", version),),
                    reminders_max=100,
                )
                for number, key in enumerate(keys)
            ),
            owner.member("destroyed", grain=GrainWrite(version, destroy=True)),
        )


async def test_the_commit_finds_rows_by_key_also_with_plans_made_for_empty_tables(
    postgres_server: Server,
) -> None:
    """The plans of a function are kept, so those made while the tables are empty must do for full ones."""
    url = f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres"
    provider = PostgresProvider(f"{url}?schema=planned&partitions=64")
    await provider.open(NOW)
    owner = await an_owner(provider)
    heard: list[str] = []
    assert provider._opened is not None and provider._opened.committing is not None
    linked = provider._opened.committing._links[0]._linked
    assert linked is not None
    linked.connection.add_log_listener(lambda _, message: heard.append(message.message))
    await linked.connection.execute(
        "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;"
        "SET auto_explain.log_nested_statements = on;"
        "SET auto_explain.log_format = json; SET auto_explain.log_level = notice"
    )
    await everything(owner)
    await provider.close()
    tables = {"grains", "reminders", "watermarks", "partitions", "silos"}
    seen: set[str] = set()
    for message in heard:
        plan = nodes(json.loads(message[message.index("{") :])["Plan"])
        for node in plan:
            name = node.get("Relation Name")
            if name in tables and "Scan" in node["Node Type"]:
                seen.add(name)
                keyed = "grain_key" in node.get("Index Cond", "") or "TID Cond" in node
                assert keyed or name in ("partitions", "silos"), (node, message)
    assert seen >= {"grains", "reminders", "watermarks", "partitions"}
