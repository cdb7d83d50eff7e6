"""Every bound and period of a silo, with its unit and its reason.  Validated together, at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta


class OptionsError(ValueError):
    """Options that cannot work, alone or together; the text names each of them."""


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        zero = timedelta(0) if isinstance(value, timedelta) else 0
        if value <= zero:
            raise OptionsError(f"{type(owner).__name__}.{name} must be greater than zero, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOptions:
    """Mailboxes, turns and commits."""

    mailbox_max: int = 1_000  # messages; beyond it a call is refused as Overloaded
    call_timeout: timedelta = timedelta(seconds=30)
    collect_interval: timedelta = timedelta(minutes=1)
    deactivate_timeout: timedelta = timedelta(seconds=30)
    slow_turn: timedelta = timedelta(seconds=10)  # an older turn is logged once
    commit_batch_max: int = 64  # turns; larger batches gain little and make every member wait longer
    commit_bytes_max: int = 1024 * 1024

    def validate(self) -> None:
        _positive(self, *self.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderOptions:
    """The adaptive reminder service.  Durations are schedule time (:mod:`farro.client.clock`)."""

    look_ahead_window: timedelta = timedelta(minutes=5)
    base_bucket_size: int = 1_024  # entries held in memory
    poll_interval: timedelta = timedelta(seconds=30)
    enable_priority: bool = True
    permits_per_cpu: float = 4.0  # ticks whose code runs at the same time
    permit_hold_max: timedelta = timedelta(seconds=1)  # loop time: a hung handler then stops nobody
    missed_grace: timedelta = timedelta(seconds=30)
    background_wait_max: timedelta = timedelta(seconds=60)  # then one start in eight is for what waits
    catch_up_max: int = 100
    max_attempts: int = 5
    minimum_period: timedelta = timedelta(seconds=1)

    def validate(self) -> None:
        """Raise :class:`OptionsError` naming every option involved."""
        names = [name for name in self.__slots__ if name not in ("enable_priority", "missed_grace")]
        _positive(self, *names)
        if self.missed_grace < timedelta(0):
            raise OptionsError(f"ReminderOptions.missed_grace must not be negative, not {self.missed_grace}")
        if self.look_ahead_window < self.poll_interval:
            raise OptionsError(
                f"ReminderOptions.look_ahead_window ({self.look_ahead_window}) is shorter than poll_interval "
                f"({self.poll_interval}): what falls due between two polls would be late; "
                "make look_ahead_window at least poll_interval"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloOptions:
    """Everything about one silo that has a default.  ``reminders=None`` switches the reminder service off."""

    reminders: ReminderOptions | None = field(default_factory=ReminderOptions)
    activations: ActivationOptions = field(default_factory=ActivationOptions)
    stop_timeout: timedelta = timedelta(seconds=10)  # in-flight turns may finish within it
    allow_insecure_bind: bool = False

    def validate(self) -> None:
        _positive(self, "stop_timeout")
        self.activations.validate()
        if self.reminders is not None:
            self.reminders.validate()
