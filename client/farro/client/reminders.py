"""Values about reminders that both sides speak: priorities, missed actions, statuses and handles."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, TypedDict

from farro.client.errors import InvalidReminderHandle


class ReminderPriority(IntEnum):
    """Orders only what is due.  Lower fires first."""

    CRITICAL = 0
    NORMAL = 1
    BACKGROUND = 2


class MissedReminderAction(IntEnum):
    """What happens to occurrences that nobody was there to deliver (design/reminders.md has the matrix)."""

    FIRE_IMMEDIATELY = 0
    SKIP = 1
    NOTIFY = 2
    FIRE_ALL = 3


class ReminderHandle(TypedDict):
    """Plain data that names a reminder of the grain that holds it.  Survives in state; no capability."""

    reminder_name: str


def handle_name(handle: Any) -> str:
    """The reminder name in a handle.

    Raises :class:`InvalidReminderHandle` for anything else, ``None`` included.
    """
    if isinstance(handle, dict) and handle.keys() == {"reminder_name"}:
        name = handle["reminder_name"]
        if isinstance(name, str) and name:
            return name
    raise InvalidReminderHandle(
        f"expected a reminder handle that schedule returned, {{'reminder_name': …}}, got {handle!r:.200}"
    )


@dataclass(frozen=True, slots=True)
class ReminderStatus:
    """A reminder as it stands in the store, overlaid with what the reading turn has staged.  Frozen.

    ``next_run_at`` is the grid instant that is owed (None when paused, failed or finished);
    ``missed_policy`` is the same as ``action``; ``status`` is scheduled, paused or failed.
    """

    name: str
    operation: str
    key: str | None
    next_run_at: datetime | None
    interval_seconds: float | None
    cron: str | None
    timezone: str
    priority: ReminderPriority
    missed_policy: MissedReminderAction
    occurrence: int
    last_fired_at: datetime | None
    missed_count: int
    attempts: int
    status: str
    note: str | None

    @property
    def action(self) -> MissedReminderAction:
        return self.missed_policy

    @property
    def handle(self) -> ReminderHandle:
        """Cancels this reminder when given to ``unschedule``."""
        return {"reminder_name": self.name}


@dataclass(frozen=True, slots=True)
class Tick:
    """The occurrence that a tick's turn consumes; ``self.tick`` there, None in any other turn.

    ``id`` is the same on every delivery of this occurrence: an idempotency key for the outside world.
    """

    id: str
    name: str
    due_at: datetime
    fired_at: datetime
    occurrence: int
    attempt: int
    missed_count: int
    first_missed_at: datetime | None


@dataclass(frozen=True, slots=True)
class TickStatus:
    """What ``receive_reminder`` gets: Orleans' view of a tick.  ``current_tick_at`` is the due instant."""

    first_tick_at: datetime
    period: timedelta | None
    cron: str | None
    current_tick_at: datetime


@dataclass(frozen=True, slots=True)
class ReminderListing:
    """A reminder and whose it is, as listings give it.  ``overdue``: it should have fired by now."""

    grain_type: str
    grain_key: str
    overdue: bool
    status: ReminderStatus


@dataclass(frozen=True, slots=True)
class ReminderQuery:
    """Which reminders a listing, a count or a bulk change means; None: any.

    ``status`` is scheduled, paused or failed; ``due_before`` compares with ``next_run_at``.
    """

    grain_type: str | None = None
    grain_key: str | None = None
    operation: str | None = None
    priority: ReminderPriority | None = None
    action: MissedReminderAction | None = None
    status: str | None = None
    due_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReminderPage:
    """One page of a listing; ``next_page`` asks for the next one, None at the end."""

    reminders: list[ReminderListing]
    next_page: list[str | int] | None


@dataclass(frozen=True, slots=True)
class ReminderGroup:
    """How many reminders have this priority and status."""

    priority: ReminderPriority
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class ReminderCounts:
    """How many reminders there are, and how many of each priority and status; empty groups are absent."""

    total: int
    groups: list[ReminderGroup]


@dataclass(frozen=True, slots=True)
class PastTick:
    """One of the last ticks of a silo.  ``outcome``: delivered, failed or skipped; ``detail`` says more."""

    grain_type: str
    grain_key: str
    name: str
    occurrence: int
    attempt: int
    due_at: datetime
    fired_at: datetime
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True)
class TickHistory:
    """The last ticks of the silos, newest first.

    ``unanswered``: the numbers of silos whose ticks are missing because they did not answer in time.
    """

    ticks: list[PastTick]
    unanswered: list[int]
