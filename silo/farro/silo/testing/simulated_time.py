"""Several event loops in one thread, on one virtual time: each is a process that may freeze or die.

Theory of operation.  A :class:`Simulation` owns the time and everything that will happen: callbacks that are
ready, in the order they became so, and a heap of what is set for later.  A :class:`SimulatedLoop` is an
asyncio loop that keeps nothing itself and hands both to the simulation, which runs them one by one with that
loop as the running one.  So a process is frozen at the only places where its state can be seen from outside,
between two callbacks: what belongs to a frozen loop is kept for its thaw, what belongs to a dead one is
dropped, and not one line of its code runs meanwhile, a ``finally`` included.

What stands between the processes (network, stores) is set with :meth:`Simulation.at` and runs in no loop.

Everything that happens follows from the seed: instants are whole microseconds, ties are broken by the order
of asking, and nothing is read from the machine.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop  # what asyncio gives to those who write event loops
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from contextvars import Context
from datetime import datetime
from heapq import heappop, heappush
from math import ceil
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from farro.client.clock import to_us
from farro.silo.testing.virtual_time import DEFAULT_START, VirtualTimeError

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX = 1_000_000
"""Callbacks at one instant; more is something that spins without waiting."""

LOOP_STARTED_S = 1e8
"""What the loops' own clocks show at the start.  Far from the time since any machine was switched on, so that
nobody can take a simulated loop's time for the machine's."""

EARLY_US = 0.05
"""By how much a timer may be early: what binary fractions of a second lose that far from zero."""


class Simulation:
    """One virtual time, in microseconds from 0, and all that happens on it.  All chance is ``random``."""

    def __init__(self, seed: int | str = 0, start: datetime = DEFAULT_START) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.start_us = to_us(start)
        self.loops: list[SimulatedLoop] = []
        self.failures: list[str] = []  # what no process caught
        self._ready: deque[asyncio.Handle] = deque()
        self._later: list[tuple[int, int, asyncio.Handle | Callable[[], object]]] = []
        self._asked = 0

    @property
    def wall_us(self) -> int:
        """The true wall time: microseconds since the epoch.  No process sees it but through its own clock."""
        return self.start_us + self.now_us

    def loop(self, name: str) -> SimulatedLoop:
        """A process of that name."""
        loop = SimulatedLoop(self, name)
        self.loops.append(loop)
        return loop

    def at(self, us: int, happens: asyncio.Handle | Callable[[], object]) -> None:
        """Set something for the instant ``us``, or for now when that has passed; it runs in no loop."""
        self._asked += 1
        heappush(self._later, (max(us, self.now_us), self._asked, happens))

    def after(self, us: int, happens: Callable[[], object]) -> None:
        self.at(self.now_us + us, happens)

    def ready(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

    def run_until(self, us: int) -> None:
        """Let happen everything up to and including the instant ``us``; then it is ``us``."""
        self._run(us, None)
        self.now_us = max(self.now_us, us)

    def run(self, loop: SimulatedLoop, main: Coroutine[Any, Any, T], until_us: int | None = None) -> T:
        """Run ``main`` as a task of ``loop`` until it ends; what it returns.

        :class:`VirtualTimeError` when nothing is left that could end it, or at ``until_us``.
        """
        task = loop.create_task(main, name="main")
        self._run(until_us, task)
        if not task.done():
            raise VirtualTimeError(f"{loop.name}: the main task has not ended at {self.now_us / 1e6:g} s")
        answer: T = task.result()
        return answer

    def _run(self, until_us: int | None, task: asyncio.Task[Any] | None) -> None:
        """Run what is ready, then move on to the next instant, until ``task`` is done or nothing is left."""
        if asyncio._get_running_loop() is not None:
            raise VirtualTimeError("a simulation runs in no other event loop")
        later = self._later
        try:
            while True:
                self._run_ready()
                if (task is not None and task.done()) or not later:
                    return
                if until_us is not None and later[0][0] > until_us:
                    return
                self._next()
        finally:
            _set_running_loop(None)

    def _run_ready(self) -> None:
        ready, steps = self._ready, 0
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            loop: SimulatedLoop = handle._loop  # type: ignore[attr-defined]
            if loop.frozen:
                loop.kept.append(handle)
            elif not loop.dead:
                _set_running_loop(loop)
                handle._run()
            steps += 1
            if steps > STEPS_MAX:
                raise VirtualTimeError(f"{STEPS_MAX} steps at {self.now_us / 1e6:g} s; the last: {handle!r}")

    def _next(self) -> None:
        """Move on to the next instant, and let the first thing that is set for it happen."""
        self.now_us, _, happens = heappop(self._later)
        if isinstance(happens, asyncio.Handle):
            self._ready.append(happens)
        else:
            _set_running_loop(None)
            happens()

    def close(self) -> None:
        """End every process without running another line of it, as far as Python can.  Repeatable."""
        self._ready.clear()
        self._later.clear()
        for loop in self.loops:
            loop.kill()
            loop.bury()
        self.loops.clear()


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process; made by :meth:`Simulation.loop`, closed by its ``close``."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__()
        self.simulation = simulation
        self.name = name
        self.frozen = False
        self.dead = False
        self.kept: list[asyncio.Handle] = []  # while it is frozen
        self._dead_tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return f"<SimulatedLoop {self.name}>"

    # ---- what the simulation does to it

    def freeze(self) -> None:
        """Run nothing until :meth:`thaw`.  Timers pass all the same, and what arrives waits."""
        self.frozen = True

    def thaw(self) -> None:
        """What was kept goes on, in the order it became ready."""
        self.frozen = False
        kept, self.kept = self.kept, []
        for handle in kept:
            self.simulation.ready(handle)

    def kill(self) -> None:
        """Run nothing any more.  The process's objects stay until the simulation is closed: a coroutine that
        were collected before would run its ``finally`` in the middle of somebody else's time."""
        if not self.dead:
            self.dead, self.frozen = True, False
            self._dead_tasks += sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
            self.kept.clear()

    def bury(self) -> None:
        """Let go of a dead process's objects.  What its coroutines do when they are closed reaches nobody."""
        for task in self._dead_tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro: Any = task.get_coro()
            try:
                coro.close()
            except (RuntimeError, ValueError) as error:
                self.simulation.failures.append(f"{self.name}: {task.get_name()} does not end: {error}")
        self._dead_tasks.clear()
        self.close()

    # ---- what asyncio asks of it

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if self.dead:  # asked for by what runs when a coroutine of the dead is closed
            coro.close()
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        if self.dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def time(self) -> float:
        return LOOP_STARTED_S + self.simulation.now_us / 1e6

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self.simulation.ready(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead and when < float("inf"):
            us = ceil((when - LOOP_STARTED_S) * 1e6 - EARLY_US)
            now_us = self.simulation.now_us
            # what lies ahead must move time, or a loop that waits for the last nanosecond never ends
            self.simulation.at(max(us, now_us + (when > self.time())), timer)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What no code of the process caught: the simulation's verdict on it is a failure."""
        error = context.get("exception")
        self.simulation.failures.append(f"{self.name}: {context.get('message')}: {error!r}")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> NoReturn:
        raise VirtualTimeError(f"{self.name}: a thread is no part of a simulation: {func!r}")

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """There is none."""

    @contextmanager
    def entered(self) -> Generator[None]:
        """As if a callback of this loop ran: for what must find a running loop while it is made."""
        before = asyncio._get_running_loop()
        _set_running_loop(self)
        try:
            yield
        finally:
            _set_running_loop(before)


class SimulatedClock:
    """The :class:`farro.client.clock.Clock` of one machine: it may be wrong, and may be set.

    ``skew_us``: how far it is ahead of the true time.  ``steady`` counts from the machine's own start.
    """

    def __init__(self, simulation: Simulation, skew_us: int = 0, started_us: int = 0) -> None:
        self._simulation = simulation
        self._started_us = started_us
        self.skew_us = skew_us

    def now(self) -> int:
        return self._simulation.start_us + self._simulation.now_us + self.skew_us

    def steady(self) -> int:
        return self._simulation.now_us - self._started_us

    def loop_seconds(self, schedule_us: int) -> float:
        return max(0, schedule_us) / 1e6

    def jump(self, by_us: int) -> None:
        """Somebody sets the clock; nothing monotonic notices."""
        self.skew_us += by_us
