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
