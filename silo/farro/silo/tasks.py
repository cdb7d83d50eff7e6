"""The one file of the silo that starts tasks.

Every task has a name and an owner that waits for it; none is garbage-collected while it runs (asyncio
itself keeps only weak references) and none dies in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

log = logging.getLogger("farro.tasks")

GIVE_UP_S = 5.0  # of loop time, for tasks that swallow their cancellation
CANCEL_AGAIN_S = 0.5
FORGET_FROM = 64  # ended tasks that may be held

Coro = Coroutine[Any, Any, None]

T = TypeVar("T")


async def run_on(loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[T]]) -> T:
    """Do some work on the loop of another thread and wait for it here; the work is a task there."""

    async def there() -> T:
        return await work()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))


class TaskOwner:
    """Starts tasks, keeps them alive, and ends them together."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of starting, which is that of ending
        self._forget_at = FORGET_FROM
        self._loop = asyncio.get_running_loop()
        self.stopping = False

    @property
    def busy(self) -> bool:
        """Is a task left that has not ended?"""
        return bool(self._at_work())

    def start(
        self, coro: Coro, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[None]:
        """Run ``coro`` as a task.  What it raises is logged once, with its name."""
        task = self._loop.create_task(coro, name=name or self._name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def start_turn(self, coro: Coro, name: str, context: Context) -> None:
        """:meth:`start` for a coroutine that raises nothing.

        Turns are the hot path, and a done callback would cost each of them one more trip around the loop:
        those that have ended are forgotten when as many have gathered as there are at work.
        """
        self.adopt(self._loop.create_task(coro, name=name, context=context))

    def park(self, coro: Coro, name: str, context: Context) -> asyncio.Task[None]:
        """A task that does not count as work until it is given some: see :meth:`adopt`."""
        return self._loop.create_task(coro, name=name, context=context)

    def adopt(self, task: asyncio.Task[None]) -> None:
        """From now on the parked task counts, as if begun by :meth:`start_turn`."""
        self._tasks[task] = None
        if len(self._tasks) >= self._forget_at:
            self._forget_at = max(FORGET_FROM, 2 * len(self._at_work()))

    def repeat(self, action: Callable[[], Coro], every_s: float, name: str) -> asyncio.Task[None]:
        """Run ``action`` every ``every_s`` seconds of loop time, from the end of one run to the next start.

        A run that raises is logged; the next one comes all the same.
        """

        async def forever() -> None:
            while True:
                await asyncio.sleep(every_s)
                try:
                    await action()
                except Exception:
                    log.exception("%s failed; it runs again in %g s", name, every_s)

        return self.start(forever(), name)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("task %s of %s failed", task.get_name(), self._name, exc_info=error)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until no task is left; False when ``timeout_s`` passed first."""
        deadline = self._loop.time() + timeout_s
        while self._at_work():
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            await asyncio.wait(self._at_work(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _at_work(self) -> list[asyncio.Task[None]]:
        """The tasks that are left."""
        self._tasks = {task: None for task in self._tasks if not task.done()}
        return list(self._tasks)

    async def stop(self, give_up_after_s: float = GIVE_UP_S) -> None:
        """Cancel every task and wait for the last one.  Repeatable.  Never cancels the caller itself.

        A task that will not end although it is cancelled again and again is left behind, and logged.
        """
        self.stopping = True
        own = asyncio.current_task()
        deadline = self._loop.time() + give_up_after_s
        while waiting := [task for task in self._at_work() if task is not own]:
            if self._loop.time() >= deadline:
                log.error(
                    "%d tasks of %s do not end although they were cancelled; they are left behind: %s",
                    len(waiting),
                    self._name,
                    ", ".join(sorted(task.get_name() for task in waiting)[:5]),
                )
                return
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting, timeout=CANCEL_AGAIN_S)
