"""The system's locks on whole files: the kernel releases them when their holder ends, by SIGKILL too.

Such a lock belongs to what was opened, not to a process: two handles of one process exclude each other as
those of two processes do.  A forked child closes what it inherits, so that no lock outlives its silo there.

Windows has no such lock, only byte ranges that nobody can wait for fairly.  There one process has the file
(:func:`hold_for_this_process`), so its handles exclude each other through a table in memory.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from pathlib import Path

from farro.providers.errors import Unavailable

READ_BYTES_MAX = 4096
ONE_PROCESS_PER_FILE = sys.platform == "win32"

_open: set[FileLock] = set()  # strongly: a descriptor outlives an object that nobody closed

if sys.platform == "win32":
    import msvcrt

    _table: defaultdict[str, list[FileLock]] = defaultdict(list)
    _shared: set[FileLock] = set()
    _changed = threading.Condition()
    _descriptors: dict[str, int] = {}

    def hold_for_this_process(path: Path) -> bool:
        """Take the file for this process, until it ends.  False: another process has it."""
        with _changed:
            if str(path) in _descriptors:
                return True
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError:
                os.close(descriptor)
                return False
            _descriptors[str(path)] = descriptor
            return True

    def _lock(lock: FileLock, *, shared: bool, wait: bool) -> bool:
        with _changed:
            holders = _table[lock.name]

            def free() -> bool:
                others = [other for other in holders if other is not lock]
                return not others or (shared and _shared.issuperset(others))

            if not free() and not wait:
                return False
            _changed.wait_for(free)
            _forget(lock)
            holders.append(lock)
            if shared:
                _shared.add(lock)
            return True

    def _forget(lock: FileLock) -> None:
        _shared.discard(lock)
        if lock in _table[lock.name]:
            _table[lock.name].remove(lock)

    def _unlock(lock: FileLock) -> None:
        with _changed:
            _forget(lock)
            _changed.notify_all()

else:
    import ctypes
    import errno
    import fcntl

    # Python's own flock lets go of Python's lock, and waits for a busy event loop to get it back: a hundred
    # times as long as the call itself takes, which waits for nothing
    _flock = ctypes.PyDLL(None, use_errno=True).flock

    def hold_for_this_process(path: Path) -> bool:
        """Take the file for this process where two could not share it; here they can."""
        return True

    def _lock(lock: FileLock, *, shared: bool, wait: bool) -> bool:
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        if wait:
            fcntl.flock(lock.descriptor, operation)
            return True
        return _at_once(lock, operation | fcntl.LOCK_NB)

    def _unlock(lock: FileLock) -> None:
        _at_once(lock, fcntl.LOCK_UN)

    def _at_once(lock: FileLock, operation: int) -> bool:
        """False: somebody else has what was asked for."""
        if _flock(lock.descriptor, operation) == 0:
            return True
        number = ctypes.get_errno()
        if number == errno.EWOULDBLOCK:
            return False
        raise OSError(number, os.strerror(number), lock.name)


class FileLock:
    """A lock on the file ``path``: exclusive for one handle, or shared by several."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._descriptor: int | None = None
        self._opened: os.stat_result | None = (
            None  # the file that is open: it stays the same whatever its name does
        )

    @property
    def descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.name} is not open")
        return self._descriptor

    def open(self, *, create: bool = True) -> bool:
        """Open the file without locking it.  False: there is none, and none was to be created."""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
            self._opened = os.fstat(self._descriptor)
            _open.add(self)
        except FileNotFoundError:
            if create:
                raise
            return False
        except OSError as error:
            raise Unavailable(f"cannot open the lock file {self.path}: {error.strerror}") from error
        return True

    def try_lock(self, *, shared: bool = False) -> bool:
        """Lock at once or not at all.  A lock held already is exchanged, and lost when this answers False."""
        return _lock(self, shared=shared, wait=False)

    def wait_lock(self) -> None:
        """Lock exclusively, however long it takes."""
        _lock(self, shared=False, wait=True)

    def unlock(self) -> None:
        _unlock(self)

    def read(self) -> bytes:
        """What is written in the file, up to ``READ_BYTES_MAX``."""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        return os.read(self.descriptor, READ_BYTES_MAX)

    def write(self, text: bytes) -> None:
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        os.write(self.descriptor, text)

    def still_named(self) -> bool:
        """Whether the open file still is the one that another process would find under the name."""
        if self._descriptor is None or self._opened is None:
            return False
        try:
            return os.path.samestat(os.stat(self.name), self._opened)  # noqa: PTH116 - with every batch
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        """Repeatable."""
        if self._descriptor is not None:
            if ONE_PROCESS_PER_FILE:
                self.unlock()
            os.close(self._descriptor)
            self._descriptor = None
            _open.discard(self)


def _close_in_child() -> None:
    # a forked child shares the lock: left open there, it would outlive the silo
    for lock in list(_open):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
