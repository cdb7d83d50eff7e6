"""When a silo process ends, and with which exit code.

The first SIGTERM or SIGINT asks for a drain, whatever else has asked before; a second one ends the process at
once, unless it comes within a second: GNU timeout and entrypoints signal the process and its group, and that
is one act.
Handlers are set with ``signal.signal``, not on the loop, so that they run even while a turn blocks the loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from farro.client.clock import Clock, SystemClock

WATCHDOG_MARGIN_S = 1.0
SAME_ACT_S = 1.0  # signals this close together are one wish to stop
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """The wish to stop: whose, and the exit code that goes with it.  Belongs to the running loop."""

    def __init__(
        self,
        announce: Callable[[str], None],
        limit_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._announce = announce
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._stopping = False
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._signalled_at: int | None = None  # by the first signal, of Clock.steady
        self.exit_code = 0
        self.hands_over: Callable[[], bool] = lambda: False  # are there other silos to take what it owns?

    async def wait(self) -> None:
        """Until somebody asks."""
        await self._asked.wait()

    def ask(self, reason: str, exit_code: int = 0) -> None:
        """Begin the drain, once; from then on a watchdog bounds it.  Safe in a signal handler."""
        if self._stopping:
            return
        self._stopping = True
        self.exit_code = exit_code
        self._loop.call_soon_threadsafe(self._asked.set)
        first = "the partitions go to the other silos, " if self.hands_over() else ""
        self._announce(
            f"{reason}: stopping, {first}running turns may finish (at most {self._limit_s:g} s); "
            f"a second signal, {SAME_ACT_S:g} s after the first or later, ends it at once"
        )
        watchdog = threading.Timer(self._limit_s + WATCHDOG_MARGIN_S, self._cut_off)
        watchdog.daemon = True
        watchdog.start()

    def end_stuck(self, reason: str) -> None:
        """End the process at once, from whatever thread: its loop stands still and hears nothing."""
        self._announce(f"{reason}; ended at once")
        _end_now(1)

    def _cut_off(self) -> None:
        """Code that blocks the loop, or a thread that never returns, must not keep the process alive."""
        self._announce(f"something blocks: ended after {self._limit_s:g} s; what was not committed is undone")
        _end_now(1)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        now = self._clock.steady()
        if self._signalled_at is None:
            self._signalled_at = now
            if self._stopping:  # for another reason: an operator's drain, a closed stdin
                self._announce(f"{name}: it stops already; a second signal ends it at once")
            self.ask(name)
        elif now - self._signalled_at >= SAME_ACT_S * 1e6:
            self._announce(f"{name} again: ended at once")
            _end_now(128 + number)

    @contextmanager
    def on_signals(self, *, for_good: bool = False) -> Iterator[None]:
        """``for_good``: the process ends after this, and a late SIGTERM does not change how it ended."""
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            yield
        finally:
            if for_good:
                before[signal.SIGTERM] = signal.SIG_IGN
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def when_stdin_closes(self, wanted: bool) -> Iterator[None]:
        """A parent that holds the other end of stdin takes this process with it, however the parent ends."""
        if not wanted:
            yield
            return
        stdin = sys.stdin.fileno()

        def readable() -> None:
            if not os.read(stdin, 4096):
                self._loop.remove_reader(stdin)
                self.ask("stdin closed")

        self._loop.add_reader(stdin, readable)
        try:
            yield
        finally:
            self._loop.remove_reader(stdin)


def _end_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
