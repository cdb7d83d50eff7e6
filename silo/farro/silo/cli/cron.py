"""``farro cron``: what a cron text means and when it fires, without a silo or a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from farro.client.clock import SystemClock, from_us, to_us
from farro.client.errors import InvalidSchedule
from farro.silo.schedules.cron import Cron

COUNT_DEFAULT = 5
COUNT_MAX = 10_000  # more is a loop that nobody reads

_timezone = click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="IANA name of the zone whose clock the text means.",
)
_day_match = click.option(
    "--day-match",
    type=click.Choice(["and", "or"]),
    default="and",
    show_default=True,
    help="How two restricted day fields meet: both must match, or either may (the crontab rule).",
)


class BadInput(click.ClickException):
    """One line on stderr, exit code 2."""

    exit_code = 2


@click.group()
def cron() -> None:
    """Read cron texts: when they fire, and what they mean."""


@cron.command("next")
@click.argument("text", metavar="EXPR")
@click.option("--from", "start", metavar="ISO", show_default="now", help="Instants strictly after this one.")
@_timezone
@_day_match
@click.option(
    "--count",
    type=click.IntRange(1, COUNT_MAX),
    default=COUNT_DEFAULT,
    show_default=True,
    help="How many instants.",
)
@click.option("--json", "as_json", is_flag=True, show_default="off", help="One JSON object.")
@click.pass_context
def next_command(
    context: click.Context,
    text: str,
    start: str | None,
    timezone: str,
    day_match: str,
    count: int,
    as_json: bool,
) -> None:
    """Print the next instants of EXPR in UTC, one a line.

    EXPR is one argument: quote it.  A text that can never fire prints "never" and exits with 1; where the
    calendar ends (year 9999) stands "no more".
    """
    expression = _read(text, timezone, day_match)
    after_us = SystemClock().now() if start is None else _instant(start)
    instants = [] if expression.never_fires else list(_instants(expression, after_us, count))
    if as_json:
        click.echo(json.dumps(_as_object(expression, after_us, instants, count), indent=2))
    elif expression.never_fires:
        click.echo("never")
    else:
        for instant in instants:
            click.echo(_iso(instant))
        if len(instants) < count:
            click.echo("no more")
    if expression.never_fires:
        context.exit(1)


@cron.command("explain")
@click.argument("text", metavar="EXPR")
@_timezone
@_day_match
def explain_command(text: str, timezone: str, day_match: str) -> None:
    """Say in plain English what EXPR means, and how its two day fields meet."""
    click.echo(_read(text, timezone, day_match).explain())


def _read(text: str, timezone: str, day_match: str) -> Cron:
    try:
        return Cron(text, timezone, day_match)
    except InvalidSchedule as error:
        raise BadInput(str(error)) from None


def _instant(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"--from: {text[:60]!a} is no ISO date and time; write it like 2026-01-31T09:00:00Z"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
        click.echo(f"--from has no time zone; read as {at.isoformat()}", err=True)
    return to_us(at)


def _instants(expression: Cron, after_us: int, count: int) -> Iterator[int]:
    for _ in range(count):
        due = expression.next_us(after_us)
        if due is None:
            return
        yield due
        after_us = due


def _iso(instant_us: int) -> str:
    return from_us(instant_us).isoformat().replace("+00:00", "Z")


def _as_object(expression: Cron, after_us: int, instants: list[int], count: int) -> dict[str, object]:
    return {
        "text": expression.text,
        "timezone": expression.timezone,
        "day_match": expression.day_match,
        "next": [_iso(instant) for instant in instants],
        "never": expression.never_fires,
        "no_more": len(instants) < count,
    }
