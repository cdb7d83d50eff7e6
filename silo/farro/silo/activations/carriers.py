"""Runs the first step of a coroutine at once, inside whoever starts it.

Most turns wait for nothing, and a task of its own would cost such a turn more than its code does.  A
*carrier* is a task made ahead and parked.  The coroutine's first step runs here and now, with the carrier as
the current task and in a context of its own.  If that step is the last one, the carrier goes back to its
shelf; otherwise it drives the coroutine on, as any task would, and ends with it.

What makes this safe: a carrier serves another coroutine only if nothing of the one before can reach it.
Nobody holds it or a weak reference to it, nobody waits for its end, it was not cancelled or renamed.  A
carrier that somebody may still reach is let go.  What is begun deep in a stack or while an exception is being
handled is refused, so that it has a stack of its own, and so is what comes after many in one tick of the
event loop, so that the loop has its turn.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any
from weakref import getweakrefcount

from farro.silo.tasks import TaskOwner

TASK_NAME = "turn"
SHELF = 16  # carriers kept ready
STEPS_PER_TICK = 64
FRAMES_MAX = 120  # of the stack that a step may begin on; a thousand is where Python ends it

Coro = Coroutine[Any, Any, None]


class _Carrier:
    """One parked task, and what it is to drive once it is woken."""

    __slots__ = ("context", "coro", "given", "task", "waits_for")

    def __init__(self, given: asyncio.Future[None]) -> None:
        self.given = given
        self.task: asyncio.Task[None]
        self.coro: Coro | None = None
        self.context: Context
        self.waits_for: Any = None  # what the first step has asked the event loop for

    def hand_over(self, coro: Coro, context: Context, waits_for: Any) -> None:
        self.coro, self.context, self.waits_for = coro, context, waits_for
        if asyncio.isfuture(waits_for):
            # awaited, says its mark to the task that drives the coroutine; that comes later, and others may
            # await the same future before
            waits_for._asyncio_future_blocking = False
        if not self.given.done():  # else it was cancelled in its first step, and wakes up for that
            self.given.set_result(None)

    def let_go(self) -> None:
        if not self.given.done():
            self.given.set_result(None)

    def known_to(self) -> tuple[int, int]:
        """How many hold the task, strongly and weakly.  Only compared with itself: how an interpreter counts
        its own hold is its own affair."""
        task = self.task
        return sys.getrefcount(task), getweakrefcount(task)

    def untouched(self) -> bool:
        """Does nobody wait for its end, and has nobody cancelled or renamed it?"""
        task: Any = self.task
        return not (task._callbacks or task.cancelling() or self.given.done() or task.get_name() != TASK_NAME)


class Carriers:
    """The parked carriers of one silo."""

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._shelf: list[_Carrier] = []
        self._left = STEPS_PER_TICK
        self._closed = not _supported()
        self._making: set[_Carrier] = set()  # their tasks have not begun yet

    def run(self, coro: Coro, context: Context) -> bool:
        """Run the first step of ``coro``, which raises nothing, in ``context``; then it goes on by itself.

        False: not here and not now; nothing has happened.
        """
        while self._shelf and not self._shelf[-1].untouched():
            self._shelf.pop()  # cancelled where it was parked, as by who cancels all tasks
        if not self._shelf:
            self._fill()
            return False
        # (who runs inside an except block would see another grain's exception as the one being handled)
        if not self._left or sys.exception() is not None or _is_deep():
            return False
        if self._left == STEPS_PER_TICK:
            self._loop.call_soon(self._tick)
        self._left -= 1
        carrier = self._shelf.pop()
        task, loop = carrier.task, self._loop
        known_to = carrier.known_to()
        outer = asyncio.current_task(loop)
        if outer is not None:
            _leave(loop, outer)
        _enter(loop, task)
        ended = False
        waits_for: Any = None
        try:
            waits_for = context.run(coro.send, None)
        except StopIteration:
            ended = True
        finally:
            _leave(loop, task)
            if outer is not None:
                _enter(loop, outer)
        if not ended:
            self._tasks.adopt(task)
            carrier.hand_over(coro, context, waits_for)
        elif carrier.untouched() and carrier.known_to() == known_to:
            self._shelf.append(carrier)
        else:
            carrier.let_go()
        return True

    def close(self) -> None:
        """No coroutine begins inside its starter any more.  Those under way go on."""
        self._closed = True
        for carrier in self._shelf:
            carrier.let_go()
        self._shelf.clear()

    def _tick(self) -> None:
        self._left = STEPS_PER_TICK

    def _fill(self) -> None:
        self._making = {each for each in self._making if not each.task.done()}
        for _ in range(0 if self._closed else SHELF - len(self._making)):
            carrier = _Carrier(self._loop.create_future())
            self._making.add(carrier)
            carrier.task = self._tasks.park(self._carry(carrier), TASK_NAME, Context())

    async def _carry(self, carrier: _Carrier) -> None:
        self._making.discard(carrier)
        if self._closed:
            return
        self._shelf.append(carrier)
        await _driven(carrier)


@types.coroutine
def _driven(carrier: _Carrier) -> Generator[Any, Any, None]:
    """Wait until the carrier is given a coroutine that has begun, and drive it to its end."""
    thrown: BaseException | None = None
    try:
        yield from carrier.given
    except asyncio.CancelledError as cancelled:
        thrown = cancelled
    coro = carrier.coro
    if coro is None:
        return
    run, waits_for = carrier.context.run, carrier.waits_for
    if asyncio.isfuture(waits_for):
        waits_for._asyncio_future_blocking = True
        if thrown is not None and waits_for.cancel():
            thrown = None  # as a task cancels what it waits for; the coroutine hears it from there
    sent: Any = None
    while True:
        try:
            if thrown is None:
                sent = yield waits_for
        except GeneratorExit:
            coro.close()
            raise
        except BaseException as raised:
            thrown = raised
        try:
            if thrown is None:
                waits_for = run(coro.send, sent)
            else:
                reason, thrown = thrown, None
                waits_for = run(coro.throw, reason)
        except StopIteration:
            return


def _is_deep() -> bool:
    try:
        sys._getframe(FRAMES_MAX)
    except ValueError:
        return False
    return True


_enter: Callable[[asyncio.AbstractEventLoop, asyncio.Task[Any]], None]
_leave: Callable[[asyncio.AbstractEventLoop, asyncio.Task[Any]], None]
try:
    # private, and there since 3.7: the tests of this file pin them; without them every turn has its task
    from asyncio.tasks import _enter_task as _enter
    from asyncio.tasks import _leave_task as _leave
except ImportError:  # pragma: no cover
    pass


def _supported() -> bool:
    """Does this interpreter have what carriers are made of?  Reference counts say little without its lock."""
    locked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return "_enter" in globals() and hasattr(asyncio.Task, "_callbacks") and locked()
