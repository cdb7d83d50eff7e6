"""``farro reminders``: what grains have scheduled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from farro.client.clock import SystemClock
from farro.client.errors import FarroError
from farro.client.identity import GrainId
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderStatus
from farro.providers.errors import BadStoreUrl, StoreError
from farro.providers.opening import open_provider
from farro.providers.rows import ReminderFilter
from farro.silo.cli import options as given
from farro.silo.cli.call import CONNECT_TIMEOUT_S, ask
from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.grains.reminder_rows import status_of

LIMIT = 1_000
LIMIT_MAX = 1_000_000
PAGE = 500  # rows in one read of the store
MANAGEMENT = ("farro.reminders", "cli", "list_for_grain")


@click.group()
def reminders() -> None:
    """Look at the reminders of grains."""


@reminders.command("list")
@click.argument("grain_type", metavar="TYPE")
@click.argument("grain_key", metavar="KEY")
@given.silo_url
@click.option(
    "--store",
    metavar="URL",
    envvar="FARRO_STORE",
    show_default="ask the silo",
    help="Read this store instead; nothing is written, a missing store is not made.",
)
@given.service_id
@click.option("--json", "as_json", is_flag=True, show_default="off", help="A JSON array instead of a table.")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT,
    show_default=True,
    help="How many reminders are shown.",
)
@click.pass_context
def list_command(
    context: click.Context,
    grain_type: str,
    grain_key: str,
    silo_url: str,
    store: str | None,
    service_id: str,
    as_json: bool,
    limit: int,
) -> None:
    """Print the reminders of the grain TYPE/KEY, by name.

    An option on the command line beats one from the environment; where --silo and --store are equals, the
    silo is asked.  The store of a running silo may be read at any time.
    """
    try:
        GrainId(grain_type, grain_key)
    except FarroError as error:
        raise BadUsage(one_line(str(error))) from None
    if store is not None and _prefers_store(context):
        found = asyncio.run(_from_store(store, service_id, grain_type, grain_key, limit + 1))
    else:
        found = asyncio.run(_from_silo(silo_url, grain_type, grain_key))
    rows = [_row(status) for status in found[:limit]]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        _print_table(rows)
    else:
        click.echo(f"{one_line(grain_type)}/{one_line(grain_key)} has no reminders", err=True)
    if len(found) > limit:
        click.echo(f"there are more; --limit {limit} were shown", err=True)


def _prefers_store(context: click.Context) -> bool:
    """A flag beats the environment, the environment beats the default; between equals the silo."""
    order = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT)
    silo = context.get_parameter_source("silo_url") or ParameterSource.DEFAULT
    store = context.get_parameter_source("store") or ParameterSource.DEFAULT
    return order.index(store) < order.index(silo)


async def _from_silo(silo_url: str, grain_type: str, grain_key: str) -> list[Any]:
    found = await ask(silo_url, CONNECT_TIMEOUT_S, *MANAGEMENT, [grain_type, grain_key])
    return list(found)


async def _from_store(
    url: str, service_id: str, grain_type: str, grain_key: str, limit: int
) -> list[ReminderStatus]:
    """Read the rows themselves, page by page, without a silo."""
    try:
        provider = open_provider(url, service_id=service_id, read_only=True)
        if url.lower().startswith("memory:"):
            raise Failed(f"--store: {one_line(url)} lives inside its silo; ask that silo with --silo")
        await provider.open(SystemClock().now())
        try:
            return [status async for status in _pages(provider, grain_type, grain_key, limit)]
        finally:
            await provider.close()
    except BadStoreUrl as error:
        raise BadUsage(f"--store: {one_line(str(error))}") from None
    except StoreError as error:
        raise Failed(f"--store: {one_line(str(error))}") from None


async def _pages(provider: Any, grain_type: str, grain_key: str, limit: int) -> AsyncIterator[ReminderStatus]:
    where = ReminderFilter(grain_type=grain_type, grain_key=grain_key)
    after: tuple[str, str, str] | None = None
    left = limit
    while left > 0:
        page = await provider.list_reminders(where, min(left, PAGE), after)
        for row in page:
            yield status_of(row)
        if len(page) < min(left, PAGE):
            return
        left -= len(page)
        after = (page[-1].grain_type, page[-1].grain_key, page[-1].name)


# ---- showing

_COLUMNS = ("name", "next run", "schedule", "priority", "missed", "status", "note")


def _row(status: ReminderStatus | Mapping[str, Any]) -> dict[str, Any]:
    """One reminder with plain values, whether it came as an object from the store or as fields by wire."""
    get: Callable[[str], Any] = (
        status.__getitem__ if isinstance(status, Mapping) else lambda name: getattr(status, name)
    )
    return {
        "name": get("name"),
        "operation": get("operation"),
        "key": get("key"),
        "status": get("status"),
        "next_run_at": _iso(get("next_run_at")),
        "interval_seconds": get("interval_seconds"),
        "cron": get("cron"),
        "timezone": get("timezone"),
        "priority": ReminderPriority(get("priority")).name,
        "action": MissedReminderAction(get("missed_policy")).name,
        "occurrence": get("occurrence"),
        "last_fired_at": _iso(get("last_fired_at")),
        "missed_count": get("missed_count"),
        "attempts": get("attempts"),
        "note": get("note"),
    }


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")


def _cells(row: dict[str, Any]) -> list[str]:
    if row["cron"] is not None:
        schedule = f"{row['cron']} {row['timezone']}"
    elif row["interval_seconds"] is not None:
        schedule = f"every {row['interval_seconds']:g} s"
    else:
        schedule = "once"
    missed = f"{row['action']}, {row['missed_count']} passed over" if row["missed_count"] else row["action"]
    texts = (
        row["name"],
        row["next_run_at"] or "-",
        schedule,
        row["priority"],
        missed,
        row["status"],
        row["note"],
    )
    return [one_line(text or "") for text in texts]


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Columns as wide as their widest cell; nothing is cut, so that lines can be searched and piped."""
    lines = [list(_COLUMNS), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
