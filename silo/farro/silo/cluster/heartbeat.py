"""The heartbeat: a thread of its own that renews the silo's lease, on a connection of its own.

Theory of operation.  A busy event loop must not lose its lease, and a stuck one must not keep it.  So the
thread renews by itself, but only while the loop has answered lately: with every renewal the loop is told how
it went, and its hearing that is the answer.  A loop that is silent for half the lease is renewed no longer.

On a loop whose time is not the machine's (a test's virtual time) a thread would live in another time: there
the same work is a task of that loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from farro.client.clock import Clock, SystemClock
from farro.providers.errors import StoreChanged, StoreError
from farro.providers.members import Members, SiloRow
from farro.silo.store_clock import StoreClock
from farro.silo.tasks import TaskOwner, run_on

log = logging.getLogger("farro.cluster")

T = TypeVar("T")

ANSWER_WITHIN = 1 / 2  # of the lease: how long the loop may be silent
STUCK_AFTER = 2  # leases: when a loop that does not answer is given up
CLOSE_S = 5.0
STORE_TIME_EVERY_S = 5.0  # within which a clock that follows the store's falls a millisecond behind
_SAME_TIME_S = 1.0


@dataclass(frozen=True, slots=True)
class Beat:
    """How one renewal went, as told to the silo's loop.

    ``sent_at``: loop time before it was sent.  ``view``: the store's view, None when the silo is no member
    any more.  ``error``: why the store did not take it; then ``view`` says nothing.  ``store_changed``: for
    good, for it is another one now.
    """

    number: int
    sent_at: float
    view: int | None = None
    error: str | None = None
    store_changed: bool = False


class Heartbeat:
    """Made on the silo's loop; ``hear`` and ``load`` run there, ``on_stuck`` in the thread.

    ``on_stuck`` is called once when the loop has not answered for two leases.
    """

    def __init__(
        self,
        members: Members,
        clock: Clock,
        *,
        interval_s: float,
        lease_s: float,
        hear: Callable[[Beat], None],
        load: Callable[[], int],
        on_stuck: Callable[[], None],
    ) -> None:
        self._members = members
        self._clock = clock
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._hear = hear
        self._load = load
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._answered_at = self._loop.time()
        self._load_now = 0
        self._number = 0
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: TaskOwner | None = None  # on its own loop

    # ---- on the silo's loop

    async def start(self) -> None:
        """Have a place to run; nothing is sent before :meth:`join`."""
        if abs(self._loop.time() - SystemClock().steady() / 1e6) > _SAME_TIME_S:
            self._own_loop = self._loop
            return
        self._own_loop = own = asyncio.new_event_loop()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: own) as runner:
                runner.get_loop().run_forever()

        self._thread = threading.Thread(target=run, name="farro heartbeat", daemon=True)
        self._thread.start()

    async def join(self, address: str) -> SiloRow:
        """Join, under a new number, and renew from now on.  Raises what the store raises."""
        row = await self._there(lambda: self._members.join(address, self._clock.now()))
        self._number = row.number
        self._answered_at = self._loop.time()
        await self._there(self._begin)
        return row

    async def stop(self) -> None:
        """Renew no more and let the lock go.  Repeatable."""
        if self._own_loop is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._there(self._end)
        except TimeoutError:
            log.warning("the heartbeat's connection did not close within %g s", CLOSE_S)
        finally:
            own, self._own_loop = self._own_loop, None
            if self._thread is not None:
                own.call_soon_threadsafe(own.stop)
                await asyncio.to_thread(self._thread.join, CLOSE_S)

    async def _there(self, work: Callable[[], Awaitable[T]]) -> T:
        assert self._own_loop is not None, "start() comes first"
        if self._own_loop is self._loop:
            return await work()
        return await run_on(self._own_loop, work)

    def _heard(self, beat: Beat) -> None:
        self._answered_at = self._loop.time()
        self._load_now = self._load()
        if beat.number == self._number:
            self._hear(beat)

    # ---- on its own loop

    async def _begin(self) -> None:
        if self._tasks is not None:
            await self._tasks.stop()
        self._tasks = TaskOwner("heartbeat")
        self._tasks.start(self._beat(self._number))

    async def _end(self) -> None:
        if self._tasks is not None:
            await self._tasks.stop()
        await self._members.close()

    async def _beat(self, number: int) -> None:
        """Renew and tell, again and again.

        Time in which this thread did not run either (the process was stopped, the machine slept) is no
        silence of the loop's.
        """
        stuck, ask_at = False, 0.0
        silent_s, heard_at, ran_at = 0.0, self._answered_at, self._loop.time()
        while True:
            now = self._loop.time()
            silent_s = (
                0.0 if self._answered_at != heard_at else silent_s + min(now - ran_at, 2 * self._interval_s)
            )
            heard_at, ran_at = self._answered_at, now
            beat = Beat(number, now, error="the event loop did not answer")
            if now - self._answered_at < self._lease_s * ANSWER_WITHIN or self._own_loop is self._loop:
                beat = await self._renewed(number, now)
            elif silent_s > self._lease_s * STUCK_AFTER and not stuck:
                stuck = True
                self._on_stuck()
            self._on_loop(self._heard, beat)
            if beat.view is None and beat.error is None:
                return  # joins anew, and then beats for another number
            if beat.view is not None and isinstance(self._clock, StoreClock) and now >= ask_at:
                ask_at = now + STORE_TIME_EVERY_S
                await self._follow_the_store(self._clock)
            await asyncio.sleep(max(0.0, now + self._interval_s - self._loop.time()))

    async def _renewed(self, number: int, now: float) -> Beat:
        try:
            view = await self._members.renew(number, self._clock.now(), self._load_now)
        except StoreChanged as error:
            return Beat(number, now, error=str(error), store_changed=True)
        except StoreError as error:
            return Beat(number, now, error=str(error))
        except Exception as error:  # a fault in a provider: the lease ages, and the log says why
            log.exception("the provider failed at a renewal; the next one comes")
            return Beat(number, now, error=repr(error))
        return Beat(number, now, view)

    async def _follow_the_store(self, clock: StoreClock) -> None:
        """Ask what time it is there; no renewal waits for an answer that does not come."""
        asked_at = clock.steady()
        try:
            async with asyncio.timeout(self._interval_s / 2):
                at = await self._members.store_time()
        except (StoreError, TimeoutError) as error:
            log.info("the store did not say what time it is: %s", error)
        except Exception:  # as above
            log.exception("the provider failed when it was asked for the time")
        else:
            if at is not None:
                self._on_loop(clock.heard, at, asked_at)

    def _on_loop(self, act: Callable[..., None], *given: object) -> None:
        if self._own_loop is self._loop:
            act(*given)
            return
        try:
            self._loop.call_soon_threadsafe(act, *given)
        except RuntimeError:  # the silo's loop was closed without a stop; nobody is left to hear
            log.debug("a beat of silo %d found no loop", self._number)
