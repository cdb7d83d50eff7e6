"""Runs the first step of a turn at once, in the caller's stead, inside a task of its own.

Most turns never wait, or wait only for their commit.  Making a task for each and going around the event
loop before its first line costs more than the turn itself.  Python 3.12 has eager tasks for this.  On 3.11 a
pool of parked *carrier* tasks does the same: the first step runs with the carrier as the current task (so
that ``asyncio.timeout``, ``TaskGroup`` and ``current_task`` work), and if the turn waits, the carrier wakes
and drives the rest.

``_enter_task`` and ``_leave_task`` are asyncio's documented support for task implementations; a test pins
what is relied on.  Work done inline is bounded per loop iteration and in depth: a chain of quick calls can
neither starve the loop nor exhaust the stack; beyond the bounds a turn gets an ordinary task.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any

from farro.silo.tasks import TaskOwner

Coro = Coroutine[Any, Any, None]

INLINE_MAX = 64  # first steps per loop iteration
DEPTH_MAX = 32  # first steps inside one another
IDLE_MAX = 64  # parked carriers; each takes about 2 KB


class Carriers:
    """Starts coroutines that raise nothing; ``tasks`` owns those that are not done at once.

    ``context`` is the context every turn starts from: what a turn sets in it is not seen by the next.
    """

    def __init__(self, tasks: TaskOwner, context: Context) -> None:
        self._tasks = tasks
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Carrier] = []
        self._left = INLINE_MAX
        self._depth = 0
        self._reset_asked = False
        self._eager = sys.version_info >= (3, 12)
        self._closed = False

    def start(self, coro: Coro, name: str) -> None:
        """Run ``coro``: its first step now if the bounds allow, the rest in a task."""
        if self._left <= 0 or self._depth >= DEPTH_MAX:
            self.start_later(coro, name)
            return
        self._left -= 1
        if not self._reset_asked:
            self._reset_asked = True
            self._loop.call_soon(self._reset)
        self._depth += 1
        try:
            if self._eager:
                self._start_eagerly(coro, name)
            elif self._idle:
                self._idle.pop().begin(coro)
            else:
                _Carrier(self)  # parked by the time the next turn comes
                self.start_later(coro, name)
        finally:
            self._depth -= 1

    def start_later(self, coro: Coro, name: str) -> None:
        """Run ``coro`` in an ordinary task, from the next loop iteration on."""
        self._tasks.start_turn(coro, name, self._context.copy())

    def _start_eagerly(self, coro: Coro, name: str) -> None:
        task: asyncio.Task[None] = asyncio.Task(
            coro,
            loop=self._loop,
            name=name,
            context=self._context.copy(),
            eager_start=True,  # type: ignore[call-arg]  # 3.12
        )
        if not task.done():
            self._tasks.adopt(task)

    def _reset(self) -> None:
        self._reset_asked = False
        self._left = INLINE_MAX

    # ---- the pool

    def new_task(self, carrier: _Carrier, context: Context) -> asyncio.Task[None]:
        return self._tasks.start_idle(carrier.live(), "carrier", context)

    def park(self, carrier: _Carrier) -> bool:
        """Keep a carrier for the next turn; False when it should end instead."""
        if self._closed or len(self._idle) >= IDLE_MAX or not carrier.is_clean(self._context):
            return False
        self._idle.append(carrier)
        return True

    def busy(self, task: asyncio.Task[None]) -> None:
        self._tasks.adopt(task)

    async def close(self) -> None:
        """End the parked carriers; one that carries a turn ends with it.  Repeatable."""
        self._closed = True
        parked = [carrier.end() for carrier in self._idle]
        self._idle.clear()
        if parked:
            await asyncio.wait(parked)


class _Carrier:
    """A parked task and the context it runs turns in."""

    __slots__ = ("_context", "_owner", "_parked", "_rest", "_task")

    def __init__(self, owner: Carriers) -> None:
        self._owner = owner
        self._context = owner._context.copy()
        self._rest: tuple[Coro, Any] | None = None
        self._parked: asyncio.Future[None] | None = None
        self._task = owner.new_task(self, self._context)

    def is_clean(self, base: Context) -> bool:
        """Did its turns leave no variable set and no cancellation pending?"""
        return not self._task.cancelling() and self._context == base

    def begin(self, coro: Coro) -> None:
        """The first step of ``coro``, as this carrier's task."""
        loop, task = self._owner._loop, self._task
        outer = asyncio.current_task(loop)
        if outer is not None:
            _leave_task(loop, outer)
        _enter_task(loop, task)
        try:
            waits_for = self._context.run(coro.send, None)
        except StopIteration:
            if not self._owner.park(self):
                self.end()
        else:
            self._rest = (coro, waits_for)
            self._owner.busy(task)
            if self._parked is not None and not self._parked.done():
                self._parked.set_result(None)
        finally:
            _leave_task(loop, task)
            if outer is not None:
                _enter_task(loop, outer)

    async def live(self) -> None:
        """Wait to be handed the rest of a turn, drive it to its end, wait again."""
        while True:
            self._parked = self._owner._loop.create_future()
            if not self._owner.park(self):
                return
            interrupt: BaseException | None = None
            try:
                await self._parked
            except asyncio.CancelledError as error:
                if self._rest is None:
                    return  # the pool is closed
                interrupt = error  # cancelled between its first step and now: the turn's to handle
            if self._rest is None:
                return
            coro, waits_for = self._rest
            self._rest = None
            await _Rest(coro, waits_for, interrupt)

    def end(self) -> asyncio.Task[None]:
        """Let the parked task return."""
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)
        return self._task


class _Rest:
    """Awaits a coroutine that has already begun: first what its first step waits for, then the rest."""

    __slots__ = ("_coro", "_interrupt", "_waits_for")

    def __init__(self, coro: Coro, waits_for: Any, interrupt: BaseException | None) -> None:
        self._coro = coro
        self._waits_for = waits_for
        self._interrupt = interrupt

    def __await__(self) -> Generator[Any, None, None]:
        inner = self._coro.__await__()
        waits_for = self._waits_for
        try:
            if self._interrupt is not None:
                waits_for = inner.throw(self._interrupt)
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    waits_for = inner.throw(error)
                else:
                    break
        except StopIteration:
            return
        yield from inner
