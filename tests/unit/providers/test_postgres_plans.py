"""What the planner makes of the hot statements, with enough rows, and of the commit with none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from farro.providers.conformance.made import NOW, Owner, a_reminder, an_owner, writing
from farro.providers.members import SiloStatus
from farro.providers.postgres.connecting import Linked
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
    RequestRow,
    Settle,
    Watermark,
)
from tests.support.servers import Server

pytestmark = pytest.mark.service

ROWS = 20_000
SERVICES = 500
EXPLAIN_ALL = (
    "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;"
    "SET auto_explain.log_nested_statements = on;"
    "SET auto_explain.log_format = json; SET auto_explain.log_level = notice"
)
MARGIN = 3  # what a page may touch beyond its rows
FILL = f"""
INSERT INTO plans.reminders SELECT 'default', 'shipments', 'k' || n, n % 64, 'chase', 'chase', NULL, '\\x90',
    {NOW}, 60000000, NULL, 'UTC', 'and', NULL, NULL, 0, {NOW} + n, {NOW} + n, NULL, n % 3, 0, n, 1, 0, 0,
    NULL, NULL, 'scheduled', NULL FROM generate_series(1, {ROWS}) AS n;
INSERT INTO plans.grains SELECT 'default', 'shipments', 'k' || n, n % 64, 1, 1, 1, '\\x00'
    FROM generate_series(1, {ROWS}) AS n;
INSERT INTO plans.events SELECT 'default', n % 64, 's', n, '\\x00', 1 FROM generate_series(1, {ROWS}) AS n;
INSERT INTO plans.requests SELECT 'default', 'shipments', 'k' || n % 100, 'r' || n, '\\x90', n
    FROM generate_series(1, {ROWS}) AS n;
INSERT INTO plans.services SELECT 's' || n, 64, 20 FROM generate_series(1, {SERVICES}) AS n;
INSERT INTO plans.partitions SELECT 's' || n, p FROM generate_series(1, {SERVICES}) AS n,
    generate_series(0, 63) AS p;
INSERT INTO plans.silos SELECT 's' || n, s, 'a', 1, 1 FROM generate_series(1, {SERVICES}) AS n,
    generate_series(1, 20) AS s;
INSERT INTO plans.signs_of_life SELECT service_id, number, 1 FROM plans.silos;
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


@pytest.mark.parametrize("partitions", [None, *(frozenset(range(owned)) for owned in (64, 32, 8))])
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
    check(await explained(sql, texts["answer_to"], "default", "shipments", "k7", "r107"), "requests_pkey", 1)
    check(await explained(sql, texts["reminders_of"], "default", "shipments", "k7"), "reminders_pkey", MARGIN)


async def test_a_load_looks_up_each_grain_by_its_key(sql: Any) -> None:
    keys = [f"k{number}" for number in range(1, ROWS, 400)]
    plan = await explained(sql, queries("plans")["load"], "default", ["shipments"] * len(keys), keys)
    (lookup,) = [node for node in plan if node.get("Relation Name") == "grains"]
    assert (lookup["Index Name"], lookup["Actual Loops"]) == ("grains_pkey", len(keys))


async def test_forgetting_requests_reads_the_oldest_alone(sql: Any) -> None:
    transaction = sql.transaction()
    await transaction.start()
    plan = await explained(sql, queries("plans")["forget_requests"], "default", ROWS, 50)
    await transaction.rollback()
    (oldest,) = [node for node in plan if node.get("Index Name") == "requests_by_age"]
    assert oldest["Actual Rows"] == 50
    assert not {"Seq Scan", "Sort"} & {node["Node Type"] for node in plan}


async def test_a_snapshot_of_one_service_reads_nothing_of_the_others(sql: Any) -> None:
    plan = await explained(sql, queries("plans")["cluster"], "s7")
    assert {node["Relation Name"] for node in plan if "Relation Name" in node} == {
        "partitions",
        "services",
        "signs_of_life",
        "silos",
    }
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert max(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in plan) <= 64


async def heard_while(
    provider: PostgresProvider, linked: Linked, act: Callable[[], Awaitable[None]]
) -> list[list[dict[str, Any]]]:
    """The plans of every statement, those inside of functions too, that the connection runs in ``act``."""
    heard: list[str] = []
    linked.connection.add_log_listener(lambda _, message: heard.append(message.message))
    await linked.connection.execute(EXPLAIN_ALL)
    await act()
    await provider.close()
    return [nodes(json.loads(message[message.index("{") :])["Plan"]) for message in heard if "{" in message]


async def test_the_verbs_of_membership_read_their_own_service_by_key(
    postgres_server: Server, sql: Any
) -> None:
    provider = PostgresProvider(
        f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres?schema=plans", service_id="s9"
    )
    await provider.open(NOW)
    link, _ = provider._control()
    assert link._linked is not None

    async def verbs() -> None:
        for _ in range(7):  # beyond the five runs after which a plan may be kept
            silo = await provider.join("a", NOW)
            assert await provider.renew(silo.number, NOW)
            epochs = (await provider.cluster()).epochs
            await provider.take(silo.number, range(8), NOW, epochs[:8])
            await provider.take(silo.number, range(8), NOW)
            await provider.release(silo.number, [3, 4], NOW)
            await provider.set_status(silo.number, SiloStatus.ACTIVE, NOW)
            assert await provider.mark_dead(silo.number, 1, NOW)

    tables = {"partitions", "services", "signs_of_life", "silos"}
    seen: set[str] = set()
    for plan in await heard_while(provider, link._linked, verbs):
        for node in plan:  # the driver's own look at types is among them
            if "Scan" in node["Node Type"] and node.get("Relation Name") in tables:
                seen.add(node["Relation Name"])
                assert node["Node Type"] != "Seq Scan", (node, plan)
                assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 64, (node, plan)
    assert seen == tables


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
                    request=RequestRow(f"r{version}", b"x", NOW) if number % 2 else None,
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
    assert provider._opened is not None and provider._opened.committing is not None
    linked = provider._opened.committing._links[0]._linked
    assert linked is not None
    tables = {"grains", "reminders", "requests", "watermarks", "partitions", "signs_of_life"}
    seen: set[str] = set()
    for plan in await heard_while(provider, linked, lambda: everything(owner)):
        for node in plan:
            name = node.get("Relation Name")
            if name in tables and "Scan" in node["Node Type"]:
                seen.add(name)
                keyed = "grain_key" in node.get("Index Cond", "") or "TID Cond" in node
                assert keyed or name in ("partitions", "signs_of_life"), (node, plan)
    assert seen == tables
