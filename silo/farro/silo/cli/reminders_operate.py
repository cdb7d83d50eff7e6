"""The reminders commands that change something: one reminder by TYPE KEY NAME, or many by a filter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from farro.client.identity import GrainId
from farro.client.management import Reminders
from farro.client.reminders import MissedReminderAction, ReminderPriority, ReminderQuery
from farro.providers.rows import FAILED, PAUSED, SCHEDULED
from farro.silo.cli import options as given
from farro.silo.cli.failing import BadUsage, one_line
from farro.silo.cli.reminders_source import of_silo, reminder_of, run
from farro.silo.cli.reminders_words import ACTIONS, PRIORITIES, filters, query_of

Command = TypeVar("Command", bound=Callable[..., Any])
One = Callable[[Reminders, GrainId, str], Awaitable[bool | None]]  # False: there was nothing to change
Many = Callable[[Reminders, ReminderQuery], Awaitable[int]]

_all = click.option("--all", "everything", is_flag=True, show_default="off", help="Every reminder there is.")
_yes = click.option(
    "--yes", is_flag=True, show_default="off", help="Do it; without this a bulk change only says how many."
)
_note = click.option("--note", metavar="TEXT", show_default="none", help="Why; shown with the reminder.")


def _one(command: Command) -> Command:
    """The arguments of a command on one reminder."""
    named = click.argument("name", metavar="NAME")(given.silo_url(command))
    keyed = click.argument("grain_key", metavar="KEY")(named)
    return click.argument("grain_type", metavar="TYPE")(keyed)


def _one_or_many(command: Command) -> Command:
    """The arguments and options of a command on one reminder or on all that a filter finds."""
    named = click.argument("name", metavar="[NAME]]]", required=False)
    keyed = click.argument("grain_key", metavar="[KEY", required=False)
    typed = click.argument("grain_type", metavar="[TYPE", required=False)
    return typed(keyed(named(filters(_all(_yes(given.silo_url(command)))))))


def _change(silo_url: str, grain_type: str, grain_key: str, name: str, change: One, done: str) -> None:
    """Change one reminder and say so."""
    grain, name = reminder_of(grain_type, grain_key, name)

    async def work() -> bool | None:
        async with of_silo(silo_url) as reminders:
            return await change(reminders, grain, name)

    outcome = "was not there" if run(work()) is False else done
    click.echo(f"{outcome}: {one_line(str(grain))} {one_line(name)}")


def _change_many(
    silo_url: str,
    query: ReminderQuery,
    statuses: tuple[str, ...],
    change: Many,
    done: str,
    *,
    everything: bool,
    yes: bool,
) -> None:
    """Change all that the query finds and say how many; without ``yes``, only how many it would be."""
    if (query == ReminderQuery()) is not everything:
        raise click.UsageError("--all takes no filter" if everything else _NOTHING_NAMED)

    async def work() -> int:
        async with of_silo(silo_url) as reminders:
            if yes:
                return await change(reminders, query)
            counts = await reminders.count_all(query)
            return sum(each.count for each in counts.groups if each.status in statuses)

    count = run(work())
    if not yes:
        raise BadUsage(f"{_reminders(count)} would be {done}; add --yes to do it")
    click.echo(f"{done}: {_reminders(count)}")


_NOTHING_NAMED = "name a reminder (TYPE KEY NAME), or say which ones: TYPE, TYPE KEY, a filter, or --all"


def _reminders(count: int) -> str:
    return f"{count} reminder" if count == 1 else f"{count} reminders"


def _either(
    one: One,
    many: Many,
    statuses: tuple[str, ...],
    done: str,
    *,
    silo_url: str,
    grain_type: str | None,
    grain_key: str | None,
    name: str | None,
    everything: bool,
    yes: bool,
    words: dict[str, Any],
) -> None:
    if grain_type is None or grain_key is None or name is None:
        query = query_of(grain_type, grain_key, **words)
        _change_many(silo_url, query, statuses, many, done, everything=everything, yes=yes)
        return
    if everything or any(words.values()):
        raise click.UsageError("TYPE KEY NAME is one reminder; filters and --all are for many")
    _change(silo_url, grain_type, grain_key, name, one, done)


@click.command(short_help="Fire nothing until resumed.")
@_one_or_many
@_note
def pause(note: str | None, **where: Any) -> None:
    """Fire nothing until resumed: one reminder, or all that a filter finds (with --yes).

    A tick that runs goes on to its end.
    """
    _either(
        lambda reminders, grain, name: reminders.pause(grain, name, note),
        lambda reminders, query: reminders.pause_all(query, note),
        (SCHEDULED,),
        "paused",
        **_split(where),
    )


@click.command(short_help="Go on after a pause or a failure.")
@_one_or_many
@_note
def resume(note: str | None, **where: Any) -> None:
    """Go on with the next instant after now: one reminder, or all that a filter finds (with --yes).

    Revives failed ones too.  What passed during the pause is not made up for; a one-shot fires at once.
    """
    _either(
        lambda reminders, grain, name: reminders.resume(grain, name, note),
        lambda reminders, query: reminders.resume_all(query, note),
        (PAUSED, FAILED),
        "resumed",
        **_split(where),
    )


async def _delete(reminders: Reminders, grain: GrainId, name: str) -> bool:
    """Whether it was there a moment before."""
    was_there = await reminders.get(grain, name) is not None
    await reminders.delete(grain, name)
    return was_there


@click.command(short_help="Delete reminders.")
@_one_or_many
def delete(**where: Any) -> None:
    """Delete one reminder, or all that a filter finds (with --yes).  One that is not there is no error."""
    _either(
        _delete,
        lambda reminders, query: reminders.delete_all(query),
        (SCHEDULED, PAUSED, FAILED),
        "deleted",
        **_split(where),
    )


def _split(where: dict[str, Any]) -> dict[str, Any]:
    """The filter options apart from what says where."""
    own = ("silo_url", "grain_type", "grain_key", "name", "everything", "yes")
    words = {word: value for word, value in where.items() if word not in own}
    return {**{word: where[word] for word in own}, "words": words}


@click.command("set-priority", short_help="Rank a reminder differently.")
@_one
@click.argument("priority", type=PRIORITIES)
def set_priority(grain_type: str, grain_key: str, name: str, priority: str, silo_url: str) -> None:
    """Rank a reminder differently from now on, also one that is due and waits."""
    wanted = ReminderPriority[priority.upper()]
    _change(
        silo_url,
        grain_type,
        grain_key,
        name,
        lambda reminders, grain, name: reminders.set_priority(grain, name, wanted),
        f"priority {wanted.name}",
    )


@click.command("set-action", short_help="Say what becomes of missed ticks.")
@_one
@click.argument("action", type=ACTIONS)
def set_action(grain_type: str, grain_key: str, name: str, action: str, silo_url: str) -> None:
    """Say what becomes of a reminder's missed ticks from now on."""
    wanted = MissedReminderAction[action.upper()]
    _change(
        silo_url,
        grain_type,
        grain_key,
        name,
        lambda reminders, grain, name: reminders.set_action(grain, name, wanted),
        f"action {wanted.name}",
    )


@click.command(short_help="Put a reminder back on its grid.")
@_one
def repair(grain_type: str, grain_key: str, name: str, silo_url: str) -> None:
    """Put a reminder back on its grid: its next instant after now is owed, and was not tried yet."""
    _change(
        silo_url,
        grain_type,
        grain_key,
        name,
        lambda reminders, grain, name: reminders.repair(grain, name),
        "repaired",
    )


@click.command("trigger-now", short_help="Fire a reminder once now.")
@_one
def trigger_now(grain_type: str, grain_key: str, name: str, silo_url: str) -> None:
    """Fire a reminder once now; its grid stays.  A one-shot is consumed by it."""
    _change(
        silo_url,
        grain_type,
        grain_key,
        name,
        lambda reminders, grain, name: reminders.trigger_now(grain, name),
        "triggered",
    )


COMMANDS: tuple[click.Command, ...] = (
    pause,
    resume,
    delete,
    set_priority,
    set_action,
    repair,
    trigger_now,
)
