"""The front door of the client: call grains, and the values and errors that both sides speak."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farro.client.codec import Codec
from farro.client.errors import (
    CallCancelled,
    CallCycle,
    CallTimeout,
    CommitOutcomeUnknown,
    Conflict,
    FarroError,
    Fenced,
    GrainCallFailed,
    GrainDestroyed,
    IncompatibleState,
    InvalidGrainId,
    InvalidPayload,
    InvalidReminderHandle,
    InvalidSchedule,
    NoSuchMethod,
    NotMine,
    NotRemote,
    Overloaded,
    ProtocolError,
    ReadonlyTurn,
    ReminderNotFound,
    SiloStopping,
    SiloUnavailable,
    StatelessTurn,
    StorageUnavailable,
    TurnEnded,
    UnknownGrainType,
    UnknownOperation,
)
from farro.client.identity import GrainId, Key
from farro.client.interface import grain_interface
from farro.client.management import Reminders
from farro.client.reference import Reference
from farro.client.reminders import (
    MissedReminderAction,
    PastTick,
    ReminderCounts,
    ReminderGroup,
    ReminderHandle,
    ReminderListing,
    ReminderPriority,
    ReminderQuery,
    ReminderStatus,
    Tick,
    TickHistory,
    TickStatus,
)
from farro.client.streams import EventStream, StreamEvent

if TYPE_CHECKING:
    from farro.client.blocking import BlockingClient
    from farro.client.client import Client, ClientStatistics

__all__ = [
    "BlockingClient",
    "CallCancelled",
    "CallCycle",
    "CallTimeout",
    "Client",
    "ClientStatistics",
    "Codec",
    "CommitOutcomeUnknown",
    "Conflict",
    "EventStream",
    "FarroError",
    "Fenced",
    "GrainCallFailed",
    "GrainDestroyed",
    "GrainId",
    "IncompatibleState",
    "InvalidGrainId",
    "InvalidPayload",
    "InvalidReminderHandle",
    "InvalidSchedule",
    "Key",
    "MissedReminderAction",
    "NoSuchMethod",
    "NotMine",
    "NotRemote",
    "Overloaded",
    "PastTick",
    "ProtocolError",
    "ReadonlyTurn",
    "Reference",
    "ReminderCounts",
    "ReminderGroup",
    "ReminderHandle",
    "ReminderListing",
    "ReminderNotFound",
    "ReminderPriority",
    "ReminderQuery",
    "ReminderStatus",
    "Reminders",
    "SiloStopping",
    "SiloUnavailable",
    "StatelessTurn",
    "StorageUnavailable",
    "StreamEvent",
    "Tick",
    "TickHistory",
    "TickStatus",
    "TurnEnded",
    "UnknownGrainType",
    "UnknownOperation",
    "grain_interface",
]

_ON_DEMAND = {
    "BlockingClient": "farro.client.blocking",
    "Client": "farro.client.client",
    "ClientStatistics": "farro.client.client",
}


def __getattr__(name: str) -> Any:
    # These bring the network library with them, which grain code and `farro --help` do not need.
    if name in _ON_DEMAND:
        return getattr(import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
