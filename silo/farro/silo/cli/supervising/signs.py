"""The child's side: signs of life, and the word that it is ready, on a pipe to the supervisor."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from farro.silo.cli.supervising.silence import SIGN_S

ALIVE = b"alive"
READY = b"ready"


class Signs:
    """Writes to ``descriptor``; None: nobody supervises this process, and nothing is written."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._over = threading.Event()

    @contextmanager
    def of_life(self) -> Iterator[None]:
        """Give a sign every second, from a thread: neither a busy loop nor a slow store silences it."""
        if self._descriptor is None:
            yield
            return
        os.set_inheritable(self._descriptor, False)
        os.set_blocking(self._descriptor, False)
        thread = threading.Thread(target=self._give, name="farro signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def ready(self, number: int, address: str) -> None:
        """This process serves, as silo ``number`` at ``address``."""
        if self._descriptor is not None:
            os.write(self._descriptor, b"%b %d %b\n" % (READY, number, address.encode()))

    def _give(self) -> None:
        assert self._descriptor is not None
        while not self._over.is_set():
            try:
                os.write(self._descriptor, ALIVE + b"\n")
            except BlockingIOError:
                pass  # the supervisor stands still and has unread signs enough
            except BrokenPipeError:
                return  # it has ended; the end of stdin says so, too
            self._over.wait(SIGN_S)
