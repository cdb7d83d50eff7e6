"""Where one process after the other lives: a number, a command, and what is known of whoever runs there."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from farro.silo.cli.supervising.child import Child
from farro.silo.cli.supervising.lines import Mark
from farro.silo.cli.supervising.output import Output
from farro.silo.cli.supervising.restarts import Restarts
from farro.silo.cli.supervising.silence import Silence
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.supervisor")

KILL_MARGIN_S = 3.0  # beyond its own limit, which a process keeps by itself unless it is stuck


@dataclass(frozen=True, slots=True)
class Ended:
    """``code`` is the exit code, or minus the signal's number; ``error`` its own word on it, if any."""

    code: int
    was_ready: bool
    error: str = ""


class Place:
    """Runs one process at a time.  ``stop_limit_s``: what a process allows for its own drain."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        marks: tuple[Mark, Mark],
        restarts: Restarts,
        *,
        silence: Silence[Place],
        start_s: float,
        stop_limit_s: float,
    ) -> None:
        self.number = number
        self.restarts = restarts
        self.child: Child | None = None
        self.ready = asyncio.Event()
        self.renewing = False  # the running process is to be replaced: its end is no failure
        self.stays = False  # it has drained, and nobody has asked for another
        self.ended: Ended | None = None  # the last one
        self._command = command
        self._marks = marks
        self._silence = silence
        self._start_s = start_s
        self._kill_after_s = stop_limit_s + KILL_MARGIN_S
        self._go_on = asyncio.Event()
        self._over = False
        self._attempt: asyncio.Future[bool] | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self, tasks: TaskOwner, output: Output) -> Ended:
        """Start a process and wait for its end."""
        self.renewing = False
        self._go_on.clear()
        self.ended = await self._run(tasks, output)
        if not self.ended.was_ready and not self.renewing and self._attempt is not None:
            self._settle(False)
        return self.ended

    async def _run(self, tasks: TaskOwner, output: Output) -> Ended:
        try:
            child = await Child.start(
                self._command, tasks=tasks, output=output, marks=self._marks, on_sign=self._on_sign
            )
        except OSError as error:
            log.error("process %d cannot be started: %s", self.number, error)
            return Ended(1, False, str(error))
        self.child = child
        self._silence.begin(self, self._loop.time())
        too_slow = self._loop.call_later(self._start_s, self._kill_unless_ready, child)
        if self._over:  # the wish came while it started
            self._drain()
        try:
            code = await child.wait()
        finally:
            too_slow.cancel()
            self._silence.forget(self)
            self.ready.clear()
            self.child = None
        return Ended(code, child.serving is not None, child.error)

    def _on_sign(self, child: Child) -> None:
        if self.child is not child:
            return
        self._silence.heard(self, self._loop.time())
        if child.serving is not None and not self.renewing and not self.ready.is_set():
            self.restarts.ready(self._loop.time())
            self.ready.set()
            self._settle(True)

    def _kill_unless_ready(self, child: Child) -> None:
        if child.serving is None:
            log.error("process %d was not ready within %g s: it is killed", self.number, self._start_s)
            child.send(signal.SIGKILL)

    def end(self) -> None:
        """Ask the running process to drain, for good."""
        self._over = True
        self._drain()

    def _drain(self) -> None:
        """Kill it when it does not keep its own limit."""
        if self.child is not None:
            self.child.send(signal.SIGTERM)
            self._loop.call_later(self._kill_after_s, self.child.send, signal.SIGKILL)

    # ---- between two processes

    async def wait(self, limit_s: float | None) -> None:
        """Until :meth:`go_on`, at most ``limit_s`` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self._go_on.wait()
        except TimeoutError:
            pass  # the time has come

    def go_on(self) -> None:
        self._go_on.set()

    async def renew(self) -> bool:
        """Replace the process; has the new one become ready?"""
        self._attempt = self._loop.create_future()
        if self.child is not None:
            self.renewing = True
            self.ready.clear()
            self._drain()
        self.go_on()
        return await self._attempt

    def _settle(self, came_back: bool) -> None:
        if self._attempt is not None and not self._attempt.done():
            self._attempt.set_result(came_back)
