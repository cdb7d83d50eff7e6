"""An event loop on virtual time: thirty days pass in milliseconds.

Theory of operation.  An asyncio loop asks its *selector* to wait until the next timer and its ``time`` what
the time is.  Both are public seams.  Here ``time`` is a number, and a wait for a timer that nothing precedes
adds the wait to that number and returns at once.  Code takes no virtual time; only waiting does.

Time stands still while work runs *outside* the loop, because the loop cannot see when that work will end:

* jobs given to an executor (``run_in_executor``, ``asyncio.to_thread``) are counted by the loop itself;
* everything else (a library with a thread of its own such as aiosqlite, a socket whose other end lives in
  another process, a child process) must be announced with :func:`outside` or :func:`hold_time`.
  Unannounced, time may jump past it: timeouts fire early, or the loop reports a deadlock.

Work outside must not itself wait for virtual time: after ``OUTSIDE_WAIT_MAX_S`` real seconds without a word
from outside the loop raises, and a test fails instead of hanging.  ``farro.providers.memory`` does all its
work on the loop and needs no announcement.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, cast

from farro.client.clock import duration_us, from_us, to_us

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DEFAULT_START = datetime(2030, 1, 1, tzinfo=UTC)

OUTSIDE_WAIT_MAX_S = 30.0
"""Real seconds of silence from announced outside work before the loop gives up on it."""

SPINS_MAX = 1_000_000
"""Loop rounds without a step of time or a word from outside; more is ``while True: await sleep(0)``."""

_SOCKET_GRACE_S = 0.05
"""Real seconds that open sockets get before a standstill is called a deadlock: loopback is not instant."""


class VirtualTimeError(RuntimeError):
    """Virtual time cannot go on.  The text says why and lists every task that waits."""


class _JumpingSelector(selectors.BaseSelector):
    """A real selector whose waits end at once: ``jump`` is told how many seconds were waited for."""

    def __init__(
        self, jump: Callable[[float], None], busy: Callable[[], bool], waiting: Callable[[], str]
    ) -> None:
        self._real = selectors.DefaultSelector()
        self._jump = jump
        self._busy = busy
        self._waiting = waiting
        self._spins = 0

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._real.select(0)
        if events:
            self._spins = 0
            return events
        if timeout is not None and timeout <= 0:
            self._count_spin()
            return []
        self._spins = 0
        if self._busy():
            return self._wait_outside()
        if timeout is not None:
            self._jump(timeout)
            return []
        return self._standstill()

    def _count_spin(self) -> None:
        self._spins += 1
        if self._spins > SPINS_MAX:
            self._spins = 0
            raise VirtualTimeError(
                f"{SPINS_MAX} loop rounds passed at one instant of virtual time; something spins without "
                f"waiting.  {self._waiting()}"
            )

    def _wait_outside(self) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._real.select(OUTSIDE_WAIT_MAX_S)
        if not events:
            raise VirtualTimeError(
                f"work outside the loop gave no word for {OUTSIDE_WAIT_MAX_S:g} real seconds; time stands "
                f"still until it ends, so it must not wait for virtual time.  {self._waiting()}"
            )
        return events

    def _standstill(self) -> list[tuple[selectors.SelectorKey, int]]:
        sockets = len(self._real.get_map()) > 1  # one is the loop's own wake-up pipe
        events = self._real.select(_SOCKET_GRACE_S) if sockets else []
        if not events:
            raise VirtualTimeError(
                "deadlock: nothing is ready, no timer is set and no work was announced outside the loop; a "
                "store on disk is opened as hold_time(open_provider(url)), other work in threads is awaited "
                f"by outside(work), both from farro.silo.testing.  {self._waiting()}"
            )
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 s, is ``start`` on the wall, and jumps from timer to timer.

    ``start`` is an aware datetime.  Deterministic: the same program takes the same steps at the same virtual
    instants, as long as nothing runs outside the loop.  Good for a century of virtual time.  Raises
    :class:`VirtualTimeError` out of ``run_*`` when time cannot go on; the loop stays usable for cancelling
    what is left.
    """

    def __init__(self, start: datetime = DEFAULT_START) -> None:
        self._seconds = 0.0
        self._outside = 0
        super().__init__(_JumpingSelector(self._jump, lambda: self._outside > 0, self._waiting))
        # asyncio fires what is due *before* time + resolution.  The machine's 1 ns vanishes in a float beside
        # 194 days, and a timer due at this very time would never fire; half a microsecond does for a century.
        self._clock_resolution = 5e-7
        try:
            self.clock = VirtualClock(self, start)
        except ValueError:
            self.close()  # a half-made loop warns when it is collected
            raise

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._seconds

    @contextmanager
    def holding(self) -> Generator[None]:
        """Announce outside work: virtual time stands still inside the block.  Nests.  Loop thread only."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As in asyncio; virtual time stands still until the job's future is done."""
        future = super().run_in_executor(executor, func, *args)
        self._outside += 1
        future.add_done_callback(self._executor_job_done)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As in asyncio; virtual time stands still while the executor's threads end."""
        with self.holding():
            await super().shutdown_default_executor(*args, **kwargs)

    def _executor_job_done(self, _future: asyncio.Future[Any]) -> None:
        self._outside -= 1

    def _jump(self, seconds: float) -> None:
        self._seconds += seconds

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        if not tasks:
            return "No task is left."
        return "\n".join(["Tasks that wait:", *(f"  {_where(task)}" for task in tasks)])


def _where(task: asyncio.Task[Any]) -> str:
    """A task's name and the innermost line of it that waits."""
    awaited: Any = task.get_coro()
    line = ""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            line = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return f"{task.get_name()}: {line or 'not started'}"


class VirtualClock:
    """The :class:`farro.client.clock.Clock` of a :class:`VirtualLoop`.

    Schedule time passes as fast as the loop's time; :meth:`jump` and :meth:`suspend` part the two.
    """

    def __init__(self, loop: VirtualLoop, start: datetime) -> None:
        self._loop = loop
        self._wall = to_us(start)

    def now(self) -> int:
        """Schedule time in microseconds since the epoch, jumps included."""
        return self._wall + self.steady()

    def steady(self) -> int:
        """Virtual microseconds since the loop was made; no jump moves them."""
        # rounded, not cut: a timer set for a whole microsecond must read as that microsecond when it fires
        return round(self._loop.time() * 1e6)

    def loop_seconds(self, schedule_us: int) -> float:
        """Seconds of loop time for that many schedule microseconds (negative input: 0)."""
        return max(0, schedule_us) / 1e6

    def at(self) -> datetime:
        """:meth:`now` as an aware UTC datetime."""
        return from_us(self.now())

    def jump(self, by: timedelta) -> None:
        """Set the wall clock forward, or back if ``by`` is negative.  Timers and ``steady`` do not notice."""
        self._wall += duration_us(by)

    def suspend(self, length: timedelta) -> None:
        """The machine sleeps for ``length``: the wall clock goes on, ``steady`` and every timer stand still.

        As Linux has it: CLOCK_MONOTONIC does not count sleep.  A negative length: ``ValueError``.
        """
        if length < timedelta(0):
            raise ValueError(f"a machine cannot sleep for {length}; use jump to set the clock back")
        self.jump(length)

    async def sleep_until(self, at: datetime) -> None:
        """Wait until the wall clock shows ``at`` (an instant that has passed: one round of the loop)."""
        # a loop: the wall clock may be set back meanwhile
        while (left := to_us(at) - self.now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(self.loop_seconds(left))
        await asyncio.sleep(0)


def run_virtual(main: Callable[[VirtualClock], Coroutine[Any, Any, T]], start: datetime = DEFAULT_START) -> T:
    """``asyncio.run(main(clock))`` on a fresh :class:`VirtualLoop`; returns what ``main`` returns.

    Raises what ``main`` raises, or :class:`VirtualTimeError` when virtual time cannot go on.  Tasks that are
    left over are cancelled and the loop is closed in every case.
    """
    loop = VirtualLoop(start)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop.clock))


async def outside(work: Awaitable[T]) -> T:
    """Await work that ends outside the loop (a thread, a process); virtual time stands still meanwhile.

    On any other loop than a :class:`VirtualLoop` it is a plain ``await``.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        return await work
    with loop.holding():
        return await work


def hold_time(target: T) -> T:
    """A stand-in for ``target`` each of whose coroutine methods is awaited by :func:`outside`.

    For an object that works in a thread of its own, such as a provider on aiosqlite; so is the handle that
    its ``members`` gives.  Everything else is passed through unchanged.
    """
    return cast(T, _HoldTime(target))


class _HoldTime:
    def __init__(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name == "members":
            return lambda: hold_time(value())
        if not inspect.iscoroutinefunction(value):
            return value

        @functools.wraps(value)
        async def held(*args: Any, **kwargs: Any) -> Any:
            return await outside(value(*args, **kwargs))

        return held
