"""The only writer of the supervisor's stdout and stderr: whole lines, in the order in which they came.

A thread of its own writes, because whoever reads may be slow or stand still: the supervisor has to hear
signals and restart processes all the same.  What processes say then waits in their pipes, as it would
without a supervisor.
"""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Sequence
from queue import SimpleQueue

HELD_BYTES_MAX = 1024 * 1024  # of the processes' lines; more of them wait in their pipes
STDOUT, STDERR = 1, 2


class Output:
    """Belongs to the running loop; :meth:`close` before it ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._held = 0
        self._room = asyncio.Event()
        self._room.set()
        self._open = True
        self._lock = threading.Lock()  # guards _open against a loop that ends meanwhile
        self._thread = threading.Thread(target=self._write_all, name="farro output", daemon=True)
        self._thread.start()

    async def write(self, descriptor: int, lines: Sequence[bytes]) -> None:
        """Lines of a process.  Waits while too much has not been written yet."""
        await self._room.wait()
        self._put(descriptor, b"".join(line + b"\n" for line in lines))

    def say(self, descriptor: int, text: str) -> None:
        """A line of the supervisor's own.  Never waits; it says only so much."""
        self._put(descriptor, text.encode(errors="backslashreplace") + b"\n")

    def close(self, wait_s: float) -> None:
        """Write what is left, for at most ``wait_s`` seconds.  Repeatable."""
        with self._lock:
            if not self._open:
                return
            self._open = False
        self._queue.put(None)
        self._thread.join(wait_s)

    def _put(self, descriptor: int, data: bytes) -> None:
        self._held += len(data)
        if self._held > HELD_BYTES_MAX:
            self._room.clear()
        self._queue.put((descriptor, data))

    def _written(self, count: int) -> None:
        self._held -= count
        if self._held <= HELD_BYTES_MAX:
            self._room.set()

    # ---- in the thread

    def _write_all(self) -> None:
        gone: set[int] = set()  # nobody reads these any more, so there is nobody to tell
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            if descriptor not in gone:
                try:
                    _write(descriptor, data)
                except OSError:
                    gone.add(descriptor)
            with self._lock:
                if self._open:
                    self._loop.call_soon_threadsafe(self._written, len(data))


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class LogStream(io.TextIOBase):
    """Where the supervisor's own log goes."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, text: str) -> int:
        self._output.say(STDERR, text.removesuffix("\n"))
        return len(text)
