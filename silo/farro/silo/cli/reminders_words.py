"""The words of the reminders commands: filters, durations, instants."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from farro.client.clock import Clock, SystemClock, from_us
from farro.client.errors import InvalidPayload
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderQuery
from farro.providers.rows import FAILED, PAUSED, SCHEDULED
from farro.silo.cli.failing import BadUsage, one_line
from farro.silo.reminders.management_reading import filter_of

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
DURATION_RULE = "write it like 90s, 15m, 1h30m, 2d or 1w"
CENTURY_S = 100 * 365.25 * 86_400


def duration(text: str) -> timedelta | None:
    """``1h30m`` and the like; None for a text that is no duration, or one beyond a century."""
    if not _DURATION.fullmatch(text):
        return None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    return timedelta(seconds=seconds) if seconds <= CENTURY_S else None


def length(context: click.Context, parameter: click.Parameter, text: str) -> timedelta:
    """The callback of an option that takes a duration."""
    found = duration(text)
    if found is None:
        raise click.BadParameter(
            f"{text[:60]!a} is no length of time up to 100 years; {DURATION_RULE}", context, parameter
        )
    return found


def instant(text: str, clock: Clock) -> datetime:
    """An ISO instant (UTC unless it says otherwise), or a duration from now."""
    ahead = duration(text)
    try:
        if ahead is not None:
            return from_us(clock.now()) + ahead
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadUsage(
            f"--due-before: {text[:60]!a} is neither an ISO date and time, like 2026-01-31T09:00:00Z, nor a "
            f"length of time from now; {DURATION_RULE}"
        ) from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def filters(command: Command) -> Command:
    """The options that say which reminders are meant; :func:`query_of` takes their values."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


PRIORITIES = click.Choice([each.name.lower() for each in ReminderPriority], case_sensitive=False)
ACTIONS = click.Choice([each.name.lower() for each in MissedReminderAction], case_sensitive=False)

_FILTERS = (
    click.option("--operation", metavar="NAME", show_default="any", help="Only those that call this method."),
    click.option("--priority", type=PRIORITIES, show_default="any", help="Only those of this priority."),
    click.option(
        "--action", type=ACTIONS, show_default="any", help="Only those with this action for missed ticks."
    ),
    click.option(
        "--status",
        type=click.Choice([SCHEDULED, PAUSED, FAILED]),
        show_default="any",
        help="Only those that stand like this.",
    ),
    click.option(
        "--due-before",
        metavar="WHEN",
        show_default="any time",
        help="Only those owed until then: an ISO date and time, or a length from now such as 1h.",
    ),
)


def query_of(
    grain_type: str | None,
    grain_key: str | None,
    *,
    operation: str | None,
    priority: str | None,
    action: str | None,
    status: str | None,
    due_before: str | None,
) -> ReminderQuery:
    """The query that arguments and filter options ask for, or bad usage."""
    query = ReminderQuery(
        grain_type=grain_type,
        grain_key=grain_key,
        operation=operation,
        priority=None if priority is None else ReminderPriority[priority.upper()],
        action=None if action is None else MissedReminderAction[action.upper()],
        status=status,
        due_before=None if due_before is None else instant(due_before, SystemClock()),
    )
    try:
        filter_of(query)
    except (InvalidPayload, OverflowError) as error:
        raise BadUsage(one_line(str(error))) from None
    return query
