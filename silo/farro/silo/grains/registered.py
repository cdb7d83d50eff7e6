"""``@register_reminder``: reminders that a grain class wants to exist whenever a silo serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

from farro.client.errors import InvalidSchedule
from farro.client.identity import Key, canonical_key
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.silo.grains.grain_class import RECEIVE_REMINDER, GrainClass, where
from farro.silo.schedules.cron import Cron
from farro.silo.schedules.schedule import make_named_schedule

C = TypeVar("C", bound=type)

ATTRIBUTE = "__farro_registered_reminders__"


@dataclass(frozen=True, slots=True)
class RegisteredReminder:
    """One declaration.  ``replace``: an existing row that differs is set to it at silo start."""

    name: str
    due: timedelta | None
    period: timedelta | None
    cron: str | Cron | None
    timezone: str | None
    priority: ReminderPriority
    action: MissedReminderAction
    grain_key: str
    replace: bool


def register_reminder(
    name: str,
    due_s: float | None = None,
    period_s: float | None = None,
    *,
    cron: str | Cron | None = None,
    timezone: str | None = None,
    priority: ReminderPriority = ReminderPriority.NORMAL,
    action: MissedReminderAction = MissedReminderAction.SKIP,
    grain_key: Key = "default",
    on_change: Literal["keep", "replace"] = "keep",
) -> Callable[[C], C]:
    """Create a named reminder of the grain ``grain_key`` at silo start, if it is missing; once per cluster.

    ``@register_reminder("QuickPing", 30, 30)`` or ``@register_reminder("Monthly", cron="0 0 0 1 * *")``.
    Repeatable on one class, not inherited.  No grain is woken.  An existing row keeps what an operator set;
    ``on_change="replace"`` writes the declaration again when it differs.  A deleted row comes back at the
    next start: ``pause`` is the off switch.  Ticks go to ``receive_reminder``, whose absence is a
    ``TypeError`` here.  Source: the adaptive reminder proposal, section 8, as settled by its section 2.
    """
    if on_change not in ("keep", "replace"):
        raise ValueError(f"on_change must be 'keep' or 'replace', not {on_change!r}")
    declared = RegisteredReminder(
        name=canonical_key(name, "reminder name"),
        due=None if due_s is None else timedelta(seconds=due_s),
        period=None if period_s is None else timedelta(seconds=period_s),
        cron=cron,
        timezone=timezone,
        priority=ReminderPriority(priority),
        action=MissedReminderAction(action),
        grain_key=canonical_key(grain_key),
        replace=on_change == "replace",
    )

    def decorate(cls: C) -> C:
        known: Any = getattr(cls, "__farro_class__", None)
        if not isinstance(known, GrainClass):
            raise TypeError(f"@register_reminder({name!r}) goes on a Grain subclass, not on {cls!r}")
        _check_schedule(cls, declared)
        if known.receive_reminder is None:
            raise TypeError(f"{where(cls)}: @register_reminder({name!r}) needs {RECEIVE_REMINDER}()")
        mine = registered_on(cls)
        if any(each.name == declared.name and each.grain_key == declared.grain_key for each in mine):
            raise TypeError(f"{where(cls)}: @register_reminder({name!r}) stands there twice")
        setattr(cls, ATTRIBUTE, (declared, *mine))
        return cls

    return decorate


def _check_schedule(cls: type, declared: RegisteredReminder) -> None:
    """A schedule that cannot be made is a mistake of the declaration, not of a later silo start."""
    try:
        make_named_schedule(
            now_us=0,
            due=declared.due,
            period=declared.period,
            cron=declared.cron,
            timezone=declared.timezone,
            minimum_period_us=1,
        )
    except InvalidSchedule as error:
        raise InvalidSchedule(f"{where(cls)}: @register_reminder({declared.name!r}): {error}") from None


def registered_on(cls: type) -> tuple[RegisteredReminder, ...]:
    """The declarations on this very class, top to bottom."""
    found: tuple[RegisteredReminder, ...] = cls.__dict__.get(ATTRIBUTE, ())
    return found
