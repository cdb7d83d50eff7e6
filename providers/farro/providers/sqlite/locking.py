"""Who has a database file open: a lock on a file beside it, and the file systems where such locks lie.

The lock is never taken on the database itself:  SQLite's own locks live there, and closing any descriptor of
it would drop them.  The lock file stays, because deleting it would let two silos lock two different files of
one name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from farro.providers.errors import StoreInUse, Unavailable
from farro.providers.sqlite.os_locks import FileLock, hold_for_this_process

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs"}
)


class StoreLock:
    """Shared by all that have the database open for writing; its file lists their processes.

    Which database that is stands in the file of the write lock.

    SQLite finds the log of a database by its name.  A silo that opened a file put in the place of one that
    another silo still has open would read that one's log into it; so it is refused.  All of this happens
    under the write lock of the database.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock = FileLock(database.with_name(database.name + ".lock"))
        self.path = self._lock.path
        self._known = database.with_name(database.name + ".write")

    def acquire(self) -> None:
        """StoreInUse: it is held by a farro that shares no file, or for a database that is there no more."""
        if not hold_for_this_process(self._database.with_name(self._database.name + ".process")):
            raise StoreInUse(
                f"{self._database} is in use by another process: stop it, or give this silo another file"
                " (on Windows, where nobody can wait fairly for a file lock, one process has an SQLite file)"
            )
        self._lock.open()
        if self._lock.try_lock():
            self._lock.write(b"")  # alone: whoever is listed has ended
            return
        if not self._lock.try_lock(shared=True):
            raise StoreInUse(
                f"{self._database} is in use by process {self._lock.read().decode(errors='replace').strip()},"
                " of a farro that shares no file with others: stop it first"
            )
        try:
            found = self._database.stat()
        except FileNotFoundError:
            found = None
        if found is None or self._known.read_bytes() != _identity(found):
            raise StoreInUse(
                f"{self._database} was removed or replaced while a silo had it open that still runs; its log"
                " would be taken for this file's: stop that silo first"
            )

    def settle(self) -> None:
        """After :meth:`acquire`, with the database in place: say which it is, and share the lock."""
        self._known.write_bytes(_identity(self._database.stat()))
        listed, process = self._lock.read(), b"%d" % os.getpid()
        if process not in listed.split():
            self._lock.write(listed + process + b"\n")
        if not self._lock.try_lock(shared=True):
            raise StoreInUse(f"{self._database} was taken by another process meanwhile: try again")

    def is_alone(self) -> bool:
        """Nobody else has the database open, nor will before the write lock is released.

        The lock is shared again at once: kept to itself, it would refuse whoever opens the database after
        that, while this silo is still closing it.
        """
        alone = self._lock.try_lock()
        self._lock.try_lock(shared=True)
        return alone

    def still_named(self) -> bool:
        return self._lock.still_named()

    def release(self) -> None:
        """Repeatable."""
        self._lock.close()


def _identity(found: os.stat_result) -> bytes:
    return f"{found.st_dev}:{found.st_ino}\n".encode()


def network_file_system(path: Path, mounts: str) -> str | None:
    """The type of the network file system that ``path`` lies on, by the lines of /proc/self/mounts; else
    None.
    """
    best, best_type = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        # a later mount on the same point hides the earlier one
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, best_type = len(point.parts), fields[2]
    return best_type if best_type in NETWORK_FILE_SYSTEMS else None


def refuse_network_file_system(path: Path) -> None:
    """Unavailable when ``path`` is known to be on a network: locks and the log do not work there."""
    table = Path("/proc/self/mounts")
    try:
        mounts = table.read_text(errors="surrogateescape")
    except OSError:
        return  # not Linux: nothing to be known
    if found := network_file_system(path.resolve(), mounts):
        raise Unavailable(
            f"{path} is on a network file system ({found}), where SQLite loses data: use a local disk"
        )
