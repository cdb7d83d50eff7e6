"""Every bound and period of a silo, with its unit and its reason.  Validated together, at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from math import floor
from typing import Any

from farro.client.errors import InvalidPayload
from farro.client.streams import checked_stream

EVENT_BYTES_CEILING = 512 * 1024


class OptionsError(ValueError):
    """Options that cannot work, alone or together; the text names each of them."""


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value: Any = getattr(owner, name)
        default: Any = owner.__dataclass_fields__[name].default  # type: ignore[attr-defined]
        if isinstance(value, timedelta) is not isinstance(default, timedelta):
            kind = "a timedelta" if isinstance(default, timedelta) else "a number"
            raise OptionsError(f"{type(owner).__name__}.{name} must be {kind}, not {value!r}")
        number = value.total_seconds() if isinstance(value, timedelta) else value
        if number <= 0:
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
    missed_stream: str = "farro.reminders.missed"  # where NOTIFY reports
    repair_interval: timedelta = timedelta(minutes=1)
    reminders_per_grain_max: int = 1_000

    def bucket_size(self, *, cpus: float, memory_load: float, active_grains: int) -> int:
        """How many due entries a silo holds: ``base_bucket_size × CPU × Memory × Grains``, at least 1.

        ``CPU = max(1, cpus / 4)`` (``cpus`` may be a fraction: a container's quota);
        ``Memory = max(0.25, 1 − memory_load)`` with the load as a fraction 0–1, more counting as 1;
        ``Grains = min(1, 50,000 / active_grains)``, 1 when there are none.  Pure.
        Source: the adaptive reminder proposal, section 4; 16 CPUs, 60 %, 40,000 grains → 1,638.
        """
        cpu = max(1.0, cpus / 4)
        memory = max(0.25, 1.0 - min(max(memory_load, 0.0), 1.0))
        grains = min(1.0, 50_000 / active_grains) if active_grains > 0 else 1.0
        # The hair's breadth keeps 1,000 × (1 − 0.55) from being 449 in binary fractions.
        return max(1, floor(self.base_bucket_size * cpu * memory * grains + 1e-6))

    def validate(self) -> None:
        """Raise :class:`OptionsError` naming every option involved."""
        names = [
            name
            for name in self.__slots__
            if name not in ("enable_priority", "missed_grace", "missed_stream")
        ]
        _positive(self, *names)
        if self.missed_grace < timedelta(0):
            raise OptionsError(f"ReminderOptions.missed_grace must not be negative, not {self.missed_grace}")
        try:
            checked_stream(self.missed_stream)
        except InvalidPayload as error:
            raise OptionsError(f"ReminderOptions.missed_stream must name a stream: {error}") from None
        if self.look_ahead_window < self.poll_interval:
            raise OptionsError(
                f"ReminderOptions.look_ahead_window ({self.look_ahead_window}) is shorter than poll_interval "
                f"({self.poll_interval}): what falls due between two polls would be late; "
                "make look_ahead_window at least poll_interval"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Events between commits and their consumers.  Durations are schedule time."""

    retention: timedelta = timedelta(days=7)  # an older event is deleted, consumed or not
    trim_interval: timedelta = timedelta(hours=1)
    first_trim_after: timedelta = timedelta(minutes=10)  # of the start: subscriptions catch up first
    batch: int = 100  # events read at a time
    in_flight_max: int = 32  # partitions of publishers served at a time, per subscription
    max_attempts: int = 5  # deliveries of an event whose subscriber raises, then it is passed over
    event_bytes_max: int = 256 * 1024  # packed; a reply to a reader carries at least one
    events_per_turn_max: int = 1_000
    streams_max: int = 10_000  # names; each is looked at when old events are trimmed
    readers_max: int = 1_000  # reads of clients that wait at a time

    def validate(self) -> None:
        """Raise :class:`OptionsError` naming every option involved."""
        _positive(self, *self.__slots__)
        if self.event_bytes_max > EVENT_BYTES_CEILING:
            raise OptionsError(
                f"StreamOptions.event_bytes_max must be at most {EVENT_BYTES_CEILING}, "
                f"not {self.event_bytes_max}: a larger event does not fit into a reply"
            )
        if self.retention < self.trim_interval:
            raise OptionsError(
                f"StreamOptions.retention ({self.retention}) is shorter than trim_interval "
                f"({self.trim_interval}): events would stay longer than it says; "
                "make trim_interval at most retention"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Leases and moves of partitions.  Durations are loop time.

    Every silo of a cluster must have the same ``lease``: others count it for it.
    """

    lease: timedelta = timedelta(seconds=4)  # without a renewal for longer, a silo is taken for dead
    renew_interval: timedelta = timedelta(seconds=1)  # three may fail
    settle: timedelta = timedelta(seconds=3)  # after a silo came or went, before partitions move for balance
    moves_max: int = 8  # partitions that a silo hands over at a time for balance
    drain_moves_max: int = 64  # ... and when it drains, of those in which grains are awake
    hand_over_timeout: timedelta = timedelta(seconds=5)  # running turns may take as long
    take_batch_max: int = 512  # partitions taken in one transaction

    def validate(self) -> None:
        """Raise :class:`OptionsError` naming every option involved."""
        _positive(self, *self.__slots__)
        if self.renew_interval * 3 > self.lease:
            raise OptionsError(
                f"ClusterOptions.lease ({self.lease}) must be at least three times renew_interval "
                f"({self.renew_interval}): one renewal that is late would freeze the silo"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloOptions:
    """Everything about one silo that has a default.  ``reminders=None`` switches the reminder service off."""

    reminders: ReminderOptions | None = field(default_factory=ReminderOptions)
    activations: ActivationOptions = field(default_factory=ActivationOptions)
    streams: StreamOptions = field(default_factory=StreamOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    # Commits run in a thread beside the event loop, and Python hands its lock over only this often: with the
    # interpreter's 5 ms a busy loop starves them.  Lowers the process's switch interval; None leaves it.
    switch_interval: timedelta | None = timedelta(microseconds=30)
    # Python's full garbage collections pause everything, the longer the more grains are awake.  The silo
    # makes them at quiet moments instead, looking ten times in this period, and puts them off no longer than
    # this; None leaves the process's collector alone.
    garbage_put_off: timedelta | None = timedelta(minutes=10)
    request_window: timedelta = timedelta(hours=24)  # how long the answer of an @idempotent_request is kept
    stop_timeout: timedelta = timedelta(seconds=10)  # in-flight turns may finish within it
    allow_insecure_bind: bool = False

    def validate(self) -> None:
        _positive(self, "stop_timeout", "request_window")
        if self.switch_interval is not None:
            _positive(self, "switch_interval")
        if self.garbage_put_off is not None:
            _positive(self, "garbage_put_off")
        self.activations.validate()
        self.streams.validate()
        self.cluster.validate()
        if self.reminders is not None:
            self.reminders.validate()
