"""Reminders as people and scripts read them: lines in columns, or JSON; written page by page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from textwrap import indent
from typing import Any, Protocol

import click

from farro.client.reminders import PastTick, ReminderListing, ReminderStatus
from farro.silo.cli.failing import one_line

LINES_HELD = 500  # lines that are measured together, and written in one go


class Writer(Protocol):
    """Takes one value after the other and shows them; memory does not grow with them."""

    def add(self, value: dict[str, Any]) -> None: ...

    def end(self) -> None: ...


class Table:
    """Columns as wide as their widest cell; nothing is cut, so that lines can be searched and piped.

    ``columns`` are the keys of the values, which are their headings too.  A later page may widen a column.
    Control characters are escaped: no name moves the cursor or forges a line.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._widths = [0] * len(columns)
        self._lines = [list(columns)]

    def add(self, value: dict[str, Any]) -> None:
        self._lines.append([_cell(value[column]) for column in self._columns])
        if len(self._lines) >= LINES_HELD:
            self._write()

    def end(self) -> None:
        self._write()

    def _write(self) -> None:
        from rich.cells import cell_len  # imported when a table is shown: help stays quick

        if not self._lines:
            return
        sizes = [[cell_len(cell) for cell in line] for line in self._lines]
        self._widths = [max(column) for column in zip(self._widths, *sizes, strict=True)]
        click.echo(
            "\n".join(
                "  ".join(
                    cell + " " * (width - size)
                    for cell, width, size in zip(line, self._widths, measured, strict=True)
                ).rstrip()
                for line, measured in zip(self._lines, sizes, strict=True)
            )
        )
        self._lines = []


class JsonArray:
    """One JSON document, an array, however long."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._before = "[\n"

    def add(self, value: dict[str, Any]) -> None:
        self._held.append(indent(json.dumps(value, indent=2), "  "))
        if len(self._held) >= LINES_HELD:
            self._write()

    def end(self) -> None:
        self._write()
        click.echo("[]" if self._before == "[\n" else "\n]")

    def _write(self) -> None:
        if self._held:
            click.echo(self._before + ",\n".join(self._held), nl=False)
            self._held, self._before = [], ",\n"


def _cell(value: Any) -> str:
    return "" if value is None else one_line(str(value))


# ---- reminders

COLUMNS = ("name", "next run", "schedule", "priority", "missed", "status", "note")
GRAIN_COLUMNS = ("grain", *COLUMNS)


def listing_fields(listing: ReminderListing) -> dict[str, Any]:
    """A reminder with plain values, as JSON shows it."""
    return {
        "grain_type": listing.grain_type,
        "grain_key": listing.grain_key,
        "overdue": listing.overdue,
        **status_fields(listing.status),
    }


def status_fields(status: ReminderStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "operation": status.operation,
        "key": status.key,
        "status": status.status,
        "next_run_at": iso(status.next_run_at),
        "interval_seconds": status.interval_seconds,
        "cron": status.cron,
        "timezone": status.timezone,
        "priority": status.priority.name,
        "action": status.action.name,
        "occurrence": status.occurrence,
        "last_fired_at": iso(status.last_fired_at),
        "missed_count": status.missed_count,
        "attempts": status.attempts,
        "note": status.note,
    }


def interval_words(seconds: float) -> str:
    """``30 d``, ``1 h 30 min``, ``2.5 s``: what is zero is left out."""
    left, words = round(seconds * 1_000_000), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        whole, left = divmod(left, length * 1_000_000)
        if whole:
            words.append(f"{whole} {unit}")
    if left or not words:
        words.append(f"{left / 1_000_000:.10g} s")
    return " ".join(words)


def listing_columns(listing: ReminderListing) -> dict[str, Any]:
    """A reminder as a line of a table shows it."""
    status = listing.status
    if status.cron is not None:
        schedule = f"{status.cron} {status.timezone}"
    elif status.interval_seconds is not None:
        schedule = f"every {interval_words(status.interval_seconds)}"
    else:
        schedule = "once"
    passed = f", {status.missed_count} passed over" if status.missed_count else ""
    return {
        "grain": f"{listing.grain_type}/{listing.grain_key}",
        "name": status.name,
        "next run": iso(status.next_run_at) or "-",
        "schedule": schedule,
        "priority": status.priority.name,
        "missed": f"{status.action.name}{passed}",
        "status": "overdue" if listing.overdue else status.status,
        "note": status.note,
    }


TICK_COLUMNS = ("fired", "late", "grain", "name", "occurrence", "attempt", "outcome", "detail")


def tick_fields(tick: PastTick) -> dict[str, Any]:
    return {
        "grain_type": tick.grain_type,
        "grain_key": tick.grain_key,
        "name": tick.name,
        "occurrence": tick.occurrence,
        "attempt": tick.attempt,
        "due_at": iso(tick.due_at),
        "fired_at": iso(tick.fired_at),
        "outcome": tick.outcome,
        "detail": tick.detail,
    }


def tick_columns(tick: PastTick) -> dict[str, Any]:
    return {
        "fired": iso(tick.fired_at),
        "late": f"{max(0.0, (tick.fired_at - tick.due_at).total_seconds()):.3f} s",
        "grain": f"{tick.grain_type}/{tick.grain_key}",
        "name": tick.name,
        "occurrence": tick.occurrence,
        "attempt": tick.attempt,
        "outcome": tick.outcome,
        "detail": tick.detail,
    }


def iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")
