"""Where grains and reminders are kept: rows, the contract of a store, and the stores that come with farro."""

from farro.providers.contracts import Provider
from farro.providers.errors import (
    BadStoreUrl,
    OutcomeUnknown,
    SchemaMismatch,
    StoreChanged,
    StoreError,
    StoreInUse,
    StoreMissing,
    Unavailable,
)
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.providers.opening import open_provider, printable
from farro.providers.sqlite.store import SqliteProvider

__all__ = [
    "BadStoreUrl",
    "MemoryProvider",
    "MemoryStore",
    "OutcomeUnknown",
    "Provider",
    "SchemaMismatch",
    "SqliteProvider",
    "StoreChanged",
    "StoreError",
    "StoreInUse",
    "StoreMissing",
    "Unavailable",
    "open_provider",
    "printable",
]
