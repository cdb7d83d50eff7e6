"""What can go wrong with a store, in words every provider shares."""

from __future__ import annotations


class StoreError(Exception):
    """Base of the provider errors.  The text never contains a password."""


class BadStoreUrl(StoreError, ValueError):
    """The store URL cannot be read: unknown scheme, missing path, unknown option."""


class Unavailable(StoreError):
    """The store did not take the request (disk full, locked, read-only, not there).  Nothing changed."""


class OutcomeUnknown(StoreError):
    """The store took the request and its answer was lost.  It may or may not have been applied."""


class SchemaMismatch(StoreError):
    """The store was written by a newer farro, or its migrations were tampered with."""


class StoreInUse(StoreError):
    """Another live silo holds this store and it does not take a second one."""


class StoreMissing(StoreError):
    """Asked to read a store that does not exist.  Reading never creates one."""


class StoreChanged(StoreError):
    """Behind the address answers another database, or one that was promoted or restored.

    Nothing that was read or owned before holds there: close the provider, open it again and take anew.
    """
