"""SQLite's errors in the words of the contract, and the one way to write: all, nothing, or said to be
unknown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from farro.providers.errors import OutcomeUnknown, StoreError, Unavailable

# What is wrong with the data of one member, not with the store.
DATA_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeError)

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_READONLY: "the file or its folder cannot be written: check the permissions",
    sqlite3.SQLITE_BUSY: "another program holds the file locked: end its transaction",
    sqlite3.SQLITE_LOCKED: "another connection holds a table locked: end its transaction",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check the permissions of file and folder",
    sqlite3.SQLITE_PERM: "no permission to open the file",
    sqlite3.SQLITE_IOERR: "reading or writing failed: check the disk and the free space",
    sqlite3.SQLITE_NOTADB: "this is not an SQLite database: give another path",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
}


def code_of(error: BaseException) -> int:
    """SQLite's primary result code; SQLITE_ERROR when the error does not come from the engine."""
    code: int = getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR
    return code & 0xFF


def unavailable(error: Exception, url: str) -> StoreError:
    """The contract's error for one of SQLite's: what failed, SQLite's own words, the way out."""
    advice = _ADVICE.get(code_of(error))
    return Unavailable(f"{url}: {error}" + (f" ({advice})" if advice else ""))


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Everything that SQLite raises inside comes out as a StoreError."""
    try:
        yield
    except DATA_ERRORS as error:
        raise StoreError(f"{url}: the store cannot hold a value: {error}") from error
    except sqlite3.Error as error:
        raise unavailable(error, url) from error


def roll_back(connection: sqlite3.Connection) -> None:
    """End the transaction if SQLite has not ended it by itself, as it does when the disk is full."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


@contextmanager
def writing(connection: sqlite3.Connection, url: str) -> Iterator[None]:
    """One write transaction.

    It begins IMMEDIATE: a deferred one that upgrades after another program's commit fails at once, whatever
    the busy timeout.  When COMMIT fails, the transaction is rolled back and nothing changed; only after an
    I/O error is that not certain: the commit record may have reached the log, and a crash before the next
    write would recover it.
    """
    roll_back(connection)  # what an earlier rollback that failed has left open
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        roll_back(connection)
        raise
    with _in_doubt(connection, url):
        connection.execute("COMMIT")


@contextmanager
def at_once(connection: sqlite3.Connection, url: str) -> Iterator[None]:
    """One statement that is a transaction of its own, as :func:`writing`: it ends with a commit in itself."""
    roll_back(connection)
    with _in_doubt(connection, url):
        yield


@contextmanager
def _in_doubt(connection: sqlite3.Connection, url: str) -> Iterator[None]:
    """Whatever happens the transaction is over; OutcomeUnknown when it may have been committed."""
    try:
        yield
    except sqlite3.Error as error:
        try:
            roll_back(connection)
        finally:  # the doubt stands whatever the rollback says
            if code_of(error) == sqlite3.SQLITE_IOERR:
                raise OutcomeUnknown(f"{url}: the commit failed while writing: {error}") from error
        raise


@contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[None]:
    """One snapshot for several reads, ended before anybody waits for anything."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        roll_back(connection)
