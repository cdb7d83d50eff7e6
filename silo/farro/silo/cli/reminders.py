"""``farro reminders``: what grains have scheduled, and how operators change it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import click

from farro.client.reminders import ReminderListing
from farro.silo.cli import options as given
from farro.silo.cli import reminders_operate as operate
from farro.silo.cli import reminders_show as show
from farro.silo.cli.failing import Failed, one_line
from farro.silo.cli.reminders_source import Source, grain_of, of_silo, readable, reminder_of, run, source
from farro.silo.cli.reminders_words import filters, length, query_of
from farro.silo.reminders.management_reading import PAGE_MAX

LIMIT = 1_000
LIMIT_MAX = 1_000_000
HISTORY = 20

_json = click.option(
    "--json", "as_json", is_flag=True, show_default="off", help="A JSON document instead of a table."
)
_limit = click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT,
    show_default=True,
    help="How many reminders are shown.",
)


@click.group()
def reminders() -> None:
    """Look at the reminders of grains, and operate them.

    Changes act at once, also on what is queued or while a handler runs, and wake no grain.
    """


@reminders.command("list", short_help="Print reminders by grain and name.")
@click.argument("grain_type", metavar="[TYPE", required=False)
@click.argument("grain_key", metavar="[KEY]]", required=False)
@filters
@readable
@_json
@_limit
@click.pass_context
def list_command(
    context: click.Context,
    /,
    grain_type: str | None,
    grain_key: str | None,
    silo_url: str,
    store: str | None,
    service_id: str,
    as_json: bool,
    limit: int,
    **words: Any,
) -> None:
    """Print reminders by grain and name: all, those of a TYPE, or those of the grain TYPE/KEY.

    An option on the command line beats one from the environment; where --silo and --store are equals, the
    silo is asked.  The store of a running silo may be read at any time.
    """
    if grain_type is not None and grain_key is not None:
        grain_of(grain_type, grain_key)
    query = query_of(grain_type, grain_key, **words)
    columns = show.COLUMNS if grain_key is not None else show.GRAIN_COLUMNS
    nothing = "no reminder fits"
    if grain_key is not None and not any(words.values()):
        nothing = f"{one_line(str(grain_type))}/{one_line(grain_key)} has no reminders"
    found = source(context, silo_url, store, service_id)

    async def work() -> None:
        async with found as reading:
            await _print(reading.list(query), columns, nothing, as_json=as_json, limit=limit)

    run(work())


@reminders.command(short_help="Print what is due soon.")
@click.option(
    "--within",
    metavar="LENGTH",
    callback=length,
    default="1h",
    show_default=True,
    help="How far ahead: 90s, 15m, 1h30m, 2d, 1w.",
)
@readable
@_json
@_limit
@click.pass_context
def upcoming(
    context: click.Context,
    within: timedelta,
    silo_url: str,
    store: str | None,
    service_id: str,
    as_json: bool,
    limit: int,
) -> None:
    """Print what is due soon, by due time; what is overdue comes first."""
    found = source(context, silo_url, store, service_id)

    async def work() -> None:
        async with found as reading:
            listings = reading.upcoming(within)
            await _print(listings, show.GRAIN_COLUMNS, "nothing is due", as_json=as_json, limit=limit)

    run(work())


async def _print(
    listings: AsyncGenerator[ReminderListing],
    columns: tuple[str, ...],
    nothing: str,
    *,
    as_json: bool,
    limit: int,
) -> None:
    """Write listings as they come."""
    writer: show.Writer = show.JsonArray() if as_json else show.Table(columns)
    fields: Callable[[ReminderListing], dict[str, Any]] = (
        show.listing_fields if as_json else show.listing_columns
    )
    count = 0
    async with aclosing(listings):
        async for listing in listings:
            if count == limit:
                writer.end()
                click.echo(f"there are more; --limit {limit} were shown", err=True)
                return
            writer.add(fields(listing))
            count += 1
    if count or as_json:
        writer.end()
    else:
        click.echo(nothing, err=True)


@reminders.command(short_help="Count reminders by priority and status.")
@click.argument("grain_type", metavar="[TYPE", required=False)
@click.argument("grain_key", metavar="[KEY]]", required=False)
@filters
@readable
@_json
@click.pass_context
def count(
    context: click.Context,
    /,
    grain_type: str | None,
    grain_key: str | None,
    silo_url: str,
    store: str | None,
    service_id: str,
    as_json: bool,
    **words: Any,
) -> None:
    """Count reminders by priority and status: all, those of a TYPE, or those of the grain TYPE/KEY."""
    query = query_of(grain_type, grain_key, **words)
    found = source(context, silo_url, store, service_id)

    async def work() -> None:
        async with found as reading:
            counts = await reading.count_all(query)
        groups = [
            {"priority": each.priority.name, "status": each.status, "count": each.count}
            for each in counts.groups
        ]
        if as_json:
            click.echo(json.dumps({"total": counts.total, "groups": groups}, indent=2))
            return
        table = show.Table(("priority", "status", "count"))
        for each in groups:
            table.add(each)
        table.add({"priority": "all", "status": "", "count": counts.total})
        table.end()

    run(work())


@reminders.command("show", short_help="Print everything about one reminder.")
@click.argument("grain_type", metavar="TYPE")
@click.argument("grain_key", metavar="KEY")
@click.argument("name", metavar="NAME")
@readable
@_json
@click.pass_context
def show_command(
    context: click.Context,
    grain_type: str,
    grain_key: str,
    name: str,
    silo_url: str,
    store: str | None,
    service_id: str,
    as_json: bool,
) -> None:
    """Print everything about one reminder."""
    grain, name = reminder_of(grain_type, grain_key, name)
    found = source(context, silo_url, store, service_id)

    async def look(reading: Source) -> dict[str, Any]:
        status = await reading.get(grain, name)
        if status is None:
            raise Failed(f"{one_line(str(grain))} has no reminder {one_line(name)}")
        return {"grain_type": grain.type, "grain_key": grain.key, **show.status_fields(status)}

    async def work() -> None:
        async with found as reading:
            fields = await look(reading)
        if as_json:
            click.echo(json.dumps(fields, indent=2))
            return
        for field, value in fields.items():
            if value is not None:
                click.echo(f"{field:<16}  {one_line(str(value))}")

    run(work())


@reminders.command(short_help="Print the last ticks.")
@click.argument("grain_type", metavar="[TYPE", required=False)
@click.argument("grain_key", metavar="KEY", required=False)
@click.argument("name", metavar="[NAME]]", required=False)
@given.silo_url
@_json
@click.option(
    "--limit",
    type=click.IntRange(1, PAGE_MAX),
    default=HISTORY,
    show_default=True,
    help="How many ticks are shown.",
)
def history(
    grain_type: str | None, grain_key: str | None, name: str | None, silo_url: str, as_json: bool, limit: int
) -> None:
    """Print the last ticks that the silos remember, newest first: all, of a grain, or of one reminder."""
    if grain_type is not None and grain_key is None:
        raise click.UsageError("a grain is named by TYPE and KEY")
    grain = None if grain_type is None or grain_key is None else grain_of(grain_type, grain_key)

    async def work() -> None:
        async with of_silo(silo_url) as reminders:
            history = await reminders.history(grain, name, limit)
        writer: show.Writer = show.JsonArray() if as_json else show.Table(show.TICK_COLUMNS)
        for tick in history.ticks:
            writer.add(show.tick_fields(tick) if as_json else show.tick_columns(tick))
        if history.ticks or as_json:
            writer.end()
        else:
            click.echo("no tick is remembered", err=True)
        for number in history.unanswered:
            click.echo(f"silo {number} did not answer: its ticks are missing", err=True)

    run(work())


for command in operate.COMMANDS:
    reminders.add_command(command)
