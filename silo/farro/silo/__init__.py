"""The silo: write grains, host them, test them.  Front door: import from here, not from the rooms behind."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farro.client.errors import (
    FarroError,
    GrainDestroyed,
    InvalidPayload,
    InvalidReminderHandle,
    InvalidSchedule,
    TurnEnded,
    UnknownOperation,
)
from farro.client.identity import GrainId
from farro.client.reminders import (
    MissedReminderAction,
    ReminderHandle,
    ReminderPriority,
    ReminderStatus,
    Tick,
    TickStatus,
)
from farro.client.streams import StreamEvent
from farro.silo.grains.decorators import (
    call_timeout,
    cancellable,
    idempotent_request,
    oneway,
    operation,
    readonly,
)
from farro.silo.grains.grain import Grain
from farro.silo.grains.registered import register_reminder
from farro.silo.grains.stateless import stateless_worker
from farro.silo.grains.subscriptions import PUBLISHER_KEY, subscribe
from farro.silo.options import (
    ActivationOptions,
    ClusterOptions,
    OptionsError,
    ReminderOptions,
    SiloOptions,
    StreamOptions,
)
from farro.silo.schedules.cron import Cron

if TYPE_CHECKING:
    from farro.silo.host import Silo

__all__ = [
    "PUBLISHER_KEY",
    "ActivationOptions",
    "ClusterOptions",
    "Cron",
    "FarroError",
    "Grain",
    "GrainDestroyed",
    "GrainId",
    "InvalidPayload",
    "InvalidReminderHandle",
    "InvalidSchedule",
    "MissedReminderAction",
    "OptionsError",
    "ReminderHandle",
    "ReminderOptions",
    "ReminderPriority",
    "ReminderStatus",
    "Silo",
    "SiloOptions",
    "StreamEvent",
    "StreamOptions",
    "Tick",
    "TickStatus",
    "TurnEnded",
    "UnknownOperation",
    "call_timeout",
    "cancellable",
    "idempotent_request",
    "oneway",
    "operation",
    "readonly",
    "register_reminder",
    "stateless_worker",
    "subscribe",
]


def __getattr__(name: str) -> Any:
    # Only a program that hosts a silo pays for the network libraries behind it; `farro --help` does not.
    if name == "Silo":
        return import_module("farro.silo.host").Silo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
