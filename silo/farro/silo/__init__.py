"""The silo: write grains, host them, test them.  Front door: import from here, not from the rooms behind."""

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
from farro.silo.grains.decorators import call_timeout, cancellable, oneway, operation, readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.registered import register_reminder
from farro.silo.grains.subscriptions import PUBLISHER_KEY, subscribe
from farro.silo.host import Silo
from farro.silo.options import (
    ActivationOptions,
    OptionsError,
    ReminderOptions,
    SiloOptions,
    StreamOptions,
)
from farro.silo.schedules.cron import Cron

__all__ = [
    "PUBLISHER_KEY",
    "ActivationOptions",
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
    "oneway",
    "operation",
    "readonly",
    "register_reminder",
    "subscribe",
]
