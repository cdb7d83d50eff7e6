"""asyncpg's errors in the words of the contract."""

from __future__ import annotations

import socket

import asyncpg

from farro.providers.errors import OutcomeUnknown, StoreError, Unavailable

# What the store refuses of one member's data: bad values, constraints, and what is too large for an index.
_DATA_CLASSES = ("22", "23", "54")
LOCK_NOT_AVAILABLE = "55P03"
_AGAIN = ("40001", "40P01")  # a change in between, a deadlock: the same batch may pass now
_NOT_A_MEMBER = "FA002"

_ADVICE = {
    "28P01": "check user and password",
    "28000": "check user, password and the server's pg_hba.conf",
    "3D000": "create the database, or name another one in the URL",
    "42501": "grant the rights named in docs/how-to/set-up-postgresql.md",
    "53100": "the server's disk is full: free some space",
    "53300": "raise max_connections, or lower pool and lanes in the URL",
    "53200": "the server is out of memory or lock space: raise max_locks_per_transaction",
    "25006": "the server takes no writes: connect to the primary",
    "57P03": "the server is starting up or shutting down",
    "55P03": "another transaction holds the lock",
}
# What a server says to a connection that it ends: a commit may have been done before.
_ENDED = ("57P01", "57P02", "57P05")

# What asyncpg raises, errors of the network included, besides its own DataError.
TROUBLE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def is_data_error(error: BaseException) -> bool:
    """The values are at fault, not the store; nothing changed."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate)[:2] in _DATA_CLASSES
    return isinstance(error, asyncpg.DataError | UnicodeError | OverflowError)


def is_lock_timeout(error: BaseException) -> bool:
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == LOCK_NOT_AVAILABLE


def is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _AGAIN


def is_refused(error: BaseException) -> bool:
    """The server answered with an error and the connection lives: the transaction is certainly undone."""
    if isinstance(error, asyncpg.PostgresError):
        code = str(error.sqlstate)
        return code not in _ENDED and code[:2] != "08"
    return isinstance(error, asyncpg.DataError)  # raised while encoding, before anything was sent


def said(error: BaseException) -> str:
    """The server's own words, or what kind of trouble it was."""
    return str(error).strip().replace("\n", "; ") or type(error).__name__


def not_taken(error: BaseException, url: str) -> StoreError:
    """The contract's error for a request that changed nothing."""
    if isinstance(error, StoreError):
        return error
    if is_data_error(error):
        return StoreError(f"{url}: the store cannot hold a value: {said(error)}")
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate == _NOT_A_MEMBER:
        return StoreError(said(error))
    if isinstance(error, TimeoutError):
        return Unavailable(f"{url}: no answer in time")
    advice = _advice(error)
    return Unavailable(f"{url}: {said(error)}" + (f" ({advice})" if advice else ""))


def _advice(error: BaseException) -> str | None:
    """What whoever runs the silo can do about it."""
    if isinstance(error, asyncpg.PostgresError):
        return _ADVICE.get(str(error.sqlstate))
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):  # a port, a socket in the file system
        return "no server listens there: start PostgreSQL, or name its host and port in the URL"
    if isinstance(error, socket.gaierror):
        return "check the host in the URL"
    return None


def unknown(error: BaseException, url: str) -> OutcomeUnknown:
    """The contract's error for a request whose answer was lost."""
    return OutcomeUnknown(f"{url}: the connection was lost before the answer came: {said(error)}")
