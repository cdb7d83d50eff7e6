"""The lock of a silo: while it is held the silo's process lives; the kernel releases it when that ends."""

from __future__ import annotations

from collections.abc import Set
from hashlib import blake2b
from pathlib import Path

from farro.providers.sqlite.os_locks import FileLock


class SiloLocks:
    """The locks that one handle holds, each on a file of its own beside the database.

    A file is named by its silo's number, which is never used twice, so whoever finds it free finds the silo
    dead.  It is removed when its holder closes; that of a killed silo when another one joins.
    """

    def __init__(self, database: Path, service_id: str) -> None:
        # services of one file number their silos apart; an id may hold what no file name may
        service = blake2b(service_id.encode(errors="surrogatepass"), digest_size=6).hexdigest()
        self._folder = database.parent
        self._prefix = f"{database.name}.silo-{service}-"
        self._held: dict[int, FileLock] = {}

    def take(self, number: int) -> bool:
        """False when another process has it, of days that a database put back from a copy has not seen."""
        lock = self._lock(number)
        lock.open()
        if not lock.try_lock():
            lock.close()
            return False
        self._held[number] = lock
        return True

    def is_held(self, number: int) -> bool:
        """Whether anybody holds the lock.  The kernel is asked by a shared lock, which no other asker minds;
        and a silo takes its own before anybody can know its number.
        """
        lock = self._lock(number)
        if number in self._held or not lock.open(create=False):
            return number in self._held
        try:
            return not lock.try_lock(shared=True)
        finally:
            lock.close()

    def remove_all_but(self, members: Set[int]) -> None:
        """Remove the files of silos that are no members and whose process has ended."""
        for path in self._folder.glob(self._prefix + "*"):
            digits = path.name.removeprefix(self._prefix)
            if digits.isdecimal() and int(digits) not in members and not self.is_held(int(digits)):
                path.unlink(missing_ok=True)

    def let_go(self, number: int) -> None:
        if (lock := self._held.pop(number, None)) is not None:
            if lock.still_named():
                lock.path.unlink(missing_ok=True)
            lock.close()

    def close(self) -> None:
        """Repeatable."""
        for number in list(self._held):
            self.let_go(number)

    def _lock(self, number: int) -> FileLock:
        return FileLock(self._folder / f"{self._prefix}{number}")
