"""One silo per file: an OS lock on a file beside the database, and the file systems where such locks lie.

The lock is never taken on the database itself:  SQLite's own locks live there, and closing any descriptor of
it would drop them.  The kernel releases the lock when its holder ends, also by SIGKILL, so it needs no
clean-up; the lock file stays, because deleting it would let two silos lock two different files of one name.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from weakref import WeakSet

from farro.providers.errors import StoreInUse, Unavailable

if sys.platform == "win32":
    import msvcrt

    _PID_AT = 1  # the first byte is locked, and a locked byte cannot be read there

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    _PID_AT = 0

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs"}
)
_PID_BYTES_MAX = 20

_held: WeakSet[StoreLock] = WeakSet()


class StoreLock:
    """Held from :meth:`acquire` to :meth:`release`, by this process and none of its forked children."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = database.with_name(database.name + ".lock")
        self._name = str(self.path)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Never waits.  StoreInUse names the process that holds the lock."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise Unavailable(f"cannot open the lock file {self.path}: {error.strerror}") from error
        try:
            _lock(descriptor)
        except OSError as error:
            os.lseek(descriptor, _PID_AT, os.SEEK_SET)
            holder = os.read(descriptor, _PID_BYTES_MAX).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreInUse(
                f"{self._database} is in use by the silo of process {holder}: stop it, or give this"
                " silo another file (this farro runs one silo per SQLite file)"
            ) from error
        self._descriptor = descriptor
        _held.add(self)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, _PID_AT, os.SEEK_SET)
        os.write(descriptor, f"{os.getpid()}\n".encode())

    def still_named(self) -> bool:
        """Whether the locked file still is the one another silo would find under the name."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.stat(self._name), os.fstat(self._descriptor))  # noqa: PTH116 - with every batch
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Repeatable."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


def _release_in_child() -> None:
    # a forked child shares the lock: left open there, it would outlive the silo
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


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
