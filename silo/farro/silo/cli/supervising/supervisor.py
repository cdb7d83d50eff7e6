"""Starts silo processes, keeps them running, restarts them one after another, and ends them together.

Theory of operation.  Each process has a *place*, with a number from 1, a command and a port; one task per
place starts the process, waits for its end and lets ``restarts`` decide what follows.  The first place is
started alone: it makes or upgrades the store, and what is wrong with that is said once.  Another task looks
for processes that give no signs of life.  Ends: everybody is asked to drain *at once*, because partitions
that are handed over while all of them leave would only travel.  A rolling restart is the other way round:
one at a time, each ready again before the next goes, so that there is always somebody to hand over to.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from farro.silo.cli.stopping import SAME_ACT_S
from farro.silo.cli.supervising.lines import Mark
from farro.silo.cli.supervising.output import STDOUT, Output
from farro.silo.cli.supervising.place import KILL_MARGIN_S, Ended, Place
from farro.silo.cli.supervising.restarts import Again, GiveUp, RestartLimits, Restarts, Stays, how_it_ended
from farro.silo.cli.supervising.silence import Silence, SilenceLimits
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.supervisor")

GONE_WITHIN_S = 10.0  # of SIGKILL


class Supervisor:
    """Runs ``commands``, one process each, until it is asked to stop.

    ``marks``: what a process's lines on stdout and on stderr are marked with, by its number.  ``check``: can
    the processes be started as things are?  It is asked before a rolling restart, and says itself why not.
    ``stop_limit_s``: what the processes themselves allow for their drain.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        output: Output,
        *,
        marks: Callable[[int], tuple[Mark, Mark]],
        check: Callable[[], Awaitable[bool]],
        stop_limit_s: float,
        restarts: RestartLimits,
        silence: SilenceLimits,
        chance: Random,
    ) -> None:
        self._output = output
        self._check = check
        self._gone_within_s = stop_limit_s + KILL_MARGIN_S + GONE_WITHIN_S
        self._look_s = silence.look_s
        self._silence: Silence[Place] = Silence(silence)
        self._loop = asyncio.get_running_loop()
        self._keepers = TaskOwner("processes")
        self._tasks = TaskOwner("supervisor")
        self._places = [
            Place(
                number,
                command,
                marks(number),
                Restarts(restarts, chance),
                silence=self._silence,
                start_s=silence.start_s,
                stop_limit_s=stop_limit_s,
            )
            for number, command in enumerate(commands, 1)
        ]
        self._signalled_at = -math.inf  # by the first signal, loop time
        self._end = asyncio.Event()
        self._started = False  # every process has been ready once
        self._rolling = False
        self._exit_code = 0
        self.reason = ""  # why it gave up

    async def run(self) -> int:
        """Until all processes have ended; the exit code."""
        with self._signals():
            self._tasks.repeat(self._look, self._look_s, "look for silent processes")
            self._tasks.start(self._start_up(), "start up")
            try:
                await self._end.wait()
            finally:
                self._end.set()
                await self._drain()
                await self._tasks.stop()
        return self._exit_code

    def _say(self, text: str) -> None:
        self._output.say(STDOUT, f"farro silo: {text}")

    # ---- start, and start again

    async def _start_up(self) -> None:
        first, *others = self._places
        self._keepers.start(self._keep(first), "process 1")
        await first.ready.wait()
        for place in others:
            self._keepers.start(self._keep(place), f"process {place.number}")
        for place in others:
            await place.ready.wait()
        self._started = True
        serving = [place.child.serving for place in self._places if place.child is not None]
        named = ", ".join(f"http://{each.address}" for each in serving if each is not None)
        self._say(f"{len(self._places)} processes ready at {named}")

    async def _keep(self, place: Place) -> None:
        """One process after the other, until the supervisor ends."""
        try:
            while not self._end.is_set():
                ended = await place.run(self._tasks, self._output)
                if self._end.is_set():
                    return
                if place.renewing:
                    place.restarts.asked_to_end()
                    if ended.code != 0:
                        how = how_it_ended(ended.code)
                        log.warning("process %d did not drain in order: %s", place.number, how)
                else:
                    await self._after_end(place, ended)
        except Exception:
            log.exception("process %d is not looked after any more", place.number)
            self._ask_to_stop("the supervisor failed", 1)

    async def _after_end(self, place: Place, ended: Ended) -> None:
        """Nobody asked for its end: start again, later; or leave it; or give up."""
        how = how_it_ended(ended.code)
        others_serve = self._started and any(each.ready.is_set() for each in self._places)
        verdict = place.restarts.ended(ended.code, self._loop.time(), others_serve=others_serve)
        match verdict:
            case GiveUp(exit_code):
                why = f": {ended.error.removeprefix('Error: ')}" if ended.error else ""
                self.reason = f"process {place.number} does not start ({how}){why}"
                self._ask_to_stop(f"process {place.number} does not start", exit_code)
            case Stays():
                await self._leave_stopped(place)
            case Again(after_s):
                log.warning("process %d ended: %s; it starts again in %.1f s", place.number, how, after_s)
                await place.wait(after_s)

    async def _leave_stopped(self, place: Place) -> None:
        place.stays = True
        self._say(f"process {place.number} has drained and stays stopped (SIGHUP starts it again)")
        if all(each.stays for each in self._places):
            self._ask_to_stop("all processes have drained")
        await place.wait(None)
        place.stays = False

    async def _look(self) -> None:
        for place in self._silence.look(self._loop.time()):
            if place.child is not None:
                log.error(
                    "process %d (pid %d) gives no sign of life and may hold the others up: it is killed",
                    place.number, place.child.pid,
                )  # fmt: skip
                place.child.send(signal.SIGKILL)

    # ---- rolling restart

    def _ask_to_roll(self) -> None:
        if self._end.is_set() or self._rolling or not self._started:
            self._say("SIGHUP: not now, the processes are starting, stopping or being restarted")
            return
        self._rolling = True
        self._tasks.start(self._roll(), "rolling restart")

    async def _roll(self) -> None:
        try:
            if not await self._check():
                self._say("SIGHUP: nothing is restarted, what runs goes on")
                return
            self._say("SIGHUP: restarting the processes one after another")
            for place in self._places:
                if not await place.renew():
                    log.error(
                        "process %d does not come back: the rolling restart ends here, the others go on",
                        place.number,
                    )
                    return
            self._say(f"all {len(self._places)} processes have been restarted")
        finally:
            self._rolling = False

    # ---- end

    def _ask_to_stop(self, reason: str, exit_code: int = 0) -> None:
        if self._end.is_set():
            return
        self._exit_code = exit_code
        if any(place.child is not None for place in self._places):
            self._say(f"{reason}: stopping all processes; a second signal ends them at once")
        else:
            self._say(reason)
        self._end.set()
        for place in self._places:
            place.go_on()

    def _signalled(self, number: signal.Signals) -> None:
        now = self._loop.time()
        if not self._end.is_set():
            self._signalled_at = now
            self._ask_to_stop(number.name)
            return
        if now - self._signalled_at < SAME_ACT_S:
            return
        self._say(f"{number.name} again: ended at once")
        self._exit_code = 128 + number
        for place in self._places:
            if place.child is not None:
                place.child.send(signal.SIGKILL)

    async def _drain(self) -> None:
        """All at once: see the head of this file."""
        running = [place for place in self._places if place.child is not None]
        for place in self._places:
            place.end()
        if not await self._keepers.wait(self._gone_within_s):
            left = [str(place.child.pid) for place in self._places if place.child is not None]
            log.error("processes that even SIGKILL did not end are left behind: %s", ", ".join(left))
            self._exit_code = self._exit_code or 1
        await self._keepers.stop()
        if not all(_in_order(place.ended) for place in running):
            self._exit_code = self._exit_code or 1
        self._say("stopped")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        had_terminal = _has_terminal()

        def hang_up() -> None:
            if had_terminal and not _has_terminal():  # it was closed: nobody wants a restart
                self._signalled(signal.SIGHUP)
            else:
                self._ask_to_roll()

        self._loop.add_signal_handler(signal.SIGTERM, self._signalled, signal.SIGTERM)
        self._loop.add_signal_handler(signal.SIGINT, self._signalled, signal.SIGINT)
        self._loop.add_signal_handler(signal.SIGHUP, hang_up)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._loop.remove_signal_handler(number)


def _in_order(ended: Ended | None) -> bool:
    """Did the last process of a place end as it was asked to?  One that was still starting dies of it."""
    return ended is None or ended.code == 0 or (ended.code == -signal.SIGTERM and not ended.was_ready)


def _has_terminal() -> bool:
    """Is there a terminal that can be closed?  One that was closed is none any more."""
    return any(os.isatty(descriptor) for descriptor in range(3))
