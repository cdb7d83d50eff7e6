"""The client for programs without an event loop: scripts and notebooks.

The same client runs on a loop in a thread of its own; its references wait for their results.  What cannot be
typed: a grain's methods are declared ``async def``, and Python's type language has no way to say "the same
methods, but not async".  So :meth:`BlockingClient.grain` is ``Any`` to type checkers; arguments and results
are still checked against the annotations when a call is made.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from farro.client.client import CONNECT_TIMEOUT_S, HEARTBEAT_S, TIMEOUT_S, Client, ClientStatistics
from farro.client.errors import SiloUnavailable
from farro.client.identity import Key
from farro.client.interface import MethodSpec
from farro.client.management import HISTORY_PAGE, PAGE, GrainLike, Reminders
from farro.client.reminders import (
    MissedReminderAction,
    ReminderCounts,
    ReminderListing,
    ReminderPriority,
    ReminderQuery,
    ReminderStatus,
    TickHistory,
)

if TYPE_CHECKING:
    from farro.client.management import CronLike

_Statuses = list[ReminderStatus]  # named here because BlockingReminders has a method called list

R = TypeVar("R")


class BlockingClient:
    """:class:`Client` without ``async``.

    ``with BlockingClient(url) as client: client.grain(Counter, "a").add(1)`` waits and returns the result.
    Takes the same options and raises the same errors.  Safe to use from several threads.  Ctrl-C while a call
    waits raises ``KeyboardInterrupt`` at once and cancels that call at the silo, if its turn has not begun.
    """

    def __init__(
        self,
        *urls: str,
        timeout: float = TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        heartbeat: float = HEARTBEAT_S,
    ) -> None:
        self._client = Client(
            *urls,
            timeout=timeout,
            connect_timeout=connect_timeout,
            heartbeat=heartbeat,
            caller=_Waiting(self),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def grain(self, cls: type[Any] | Callable[..., Any], key: Key, *, timeout: float | None = None) -> Any:
        """A reference whose methods return results instead of awaitables."""
        return self._client.grain(cls, key, timeout=timeout)

    def call(
        self,
        grain_type: str,
        grain_key: Key,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        request_id: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """As :meth:`Client.call`."""
        return self._wait(
            self._client.call(
                grain_type, grain_key, method, *args, timeout=timeout, request_id=request_id, **kwargs
            )
        )

    @property
    def reminders(self) -> BlockingReminders:
        """As :attr:`Client.reminders`, with results instead of awaitables and plain iterators."""
        return BlockingReminders(self)

    def statistics(self) -> ClientStatistics:
        return self._client.statistics()

    def open(self) -> None:
        """As :meth:`Client.open`; starts the thread."""
        if self._thread is not None:
            raise RuntimeError("this client was opened before; make a new one")
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name="farro client", daemon=True)
        self._thread.start()
        try:
            self._wait(self._client.open())
        except BaseException:
            self._stop_thread()
            raise

    def close(self) -> None:
        """As :meth:`Client.close`; ends the thread.  Repeatable."""
        if self._loop is not None:
            try:
                self._wait(self._client.close())
            finally:
                self._stop_thread()

    def __enter__(self) -> BlockingClient:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop_thread(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        loop = self._loop
        if loop is None:
            work.close()
            raise SiloUnavailable(
                "the client is not open; use: with BlockingClient(…) as client", turn_ran=False
            )
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside the client's own loop would wait for itself")
        result = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return result.result()
        except (KeyboardInterrupt, SystemExit):
            result.cancel()
            raise
        except concurrent.futures.CancelledError:
            raise SiloUnavailable("the client was closed while the call was out") from None


class BlockingReminders:
    """:class:`~farro.client.management.Reminders` without ``async``: the same verbs, values and errors."""

    def __init__(self, owner: BlockingClient) -> None:
        self._owner = owner
        self._reminders = Reminders(owner._client)

    def register_or_update(
        self,
        grain: GrainLike,
        name: str,
        due: timedelta | datetime | None = None,
        period: timedelta | None = None,
        *,
        cron: str | CronLike | None = None,
        timezone: str | None = None,
        priority: ReminderPriority = ReminderPriority.NORMAL,
        action: MissedReminderAction | None = None,
    ) -> None:
        """Register a named reminder of a grain, or move it."""
        self._owner._wait(
            self._reminders.register_or_update(
                grain, name, due, period, cron=cron, timezone=timezone, priority=priority, action=action
            )
        )

    def unregister(self, grain: GrainLike, name: str) -> None:
        """Cancel a reminder at once.  Absent: no error."""
        self._owner._wait(self._reminders.unregister(grain, name))

    def get(self, grain: GrainLike, name: str) -> ReminderStatus | None:
        """One reminder by its full name."""
        return self._owner._wait(self._reminders.get(grain, name))

    def list(self, query: ReminderQuery | None = None) -> Iterator[ReminderListing]:
        """Every reminder that fits, by grain and name; a page is fetched when the one before is used up."""
        return self._each(self._reminders.list(query))

    def upcoming(self, horizon: timedelta) -> Iterator[ReminderListing]:
        """What is due within ``horizon``, by due time; what is overdue comes first and is marked."""
        return self._each(self._reminders.upcoming(horizon))

    def count_all(self, query: ReminderQuery | None = None) -> ReminderCounts:
        """How many reminders there are, by priority and status."""
        return self._owner._wait(self._reminders.count_all(query))

    def history(
        self, grain: GrainLike | None = None, name: str | None = None, limit: int = HISTORY_PAGE
    ) -> TickHistory:
        """The last ticks the silos remember, newest first."""
        return self._owner._wait(self._reminders.history(grain, name, limit))

    def list_for_grain(self, grain: GrainLike) -> _Statuses:
        """Every reminder of one grain, by name."""
        return self._owner._wait(self._reminders.list_for_grain(grain))

    def set_priority(self, grain: GrainLike, name: str, priority: ReminderPriority) -> None:
        """Rank a reminder differently from now on."""
        self._owner._wait(self._reminders.set_priority(grain, name, priority))

    def set_action(self, grain: GrainLike, name: str, action: MissedReminderAction) -> None:
        """What becomes of missed occurrences from now on."""
        self._owner._wait(self._reminders.set_action(grain, name, action))

    def repair(self, grain: GrainLike, name: str) -> None:
        """Put a reminder back on its grid."""
        self._owner._wait(self._reminders.repair(grain, name))

    def delete(self, grain: GrainLike, name: str) -> None:
        """Delete a reminder at once.  Absent: no error."""
        self._owner._wait(self._reminders.delete(grain, name))

    def pause(self, grain: GrainLike, name: str, note: str | None = None) -> None:
        """Fire nothing until :meth:`resume`; the note says why."""
        self._owner._wait(self._reminders.pause(grain, name, note))

    def resume(self, grain: GrainLike, name: str, note: str | None = None) -> None:
        """Go on with the next grid instant after now."""
        self._owner._wait(self._reminders.resume(grain, name, note))

    def pause_all(self, query: ReminderQuery, note: str | None = None) -> int:
        """Pause every scheduled reminder that fits; how many."""
        return self._owner._wait(self._reminders.pause_all(query, note))

    def resume_all(self, query: ReminderQuery, note: str | None = None) -> int:
        """Resume everything that fits and is paused or failed; how many."""
        return self._owner._wait(self._reminders.resume_all(query, note))

    def delete_all(self, query: ReminderQuery) -> int:
        """Delete everything that fits; how many."""
        return self._owner._wait(self._reminders.delete_all(query))

    def trigger_now(self, grain: GrainLike, name: str) -> None:
        """Fire once now; the grid stays."""
        self._owner._wait(self._reminders.trigger_now(grain, name))

    def _each(self, listings: AsyncGenerator[ReminderListing]) -> Iterator[ReminderListing]:
        while chunk := self._owner._wait(_next(listings, PAGE)):
            yield from chunk


async def _next(listings: AsyncGenerator[R], count: int) -> list[R]:
    """At most ``count`` more items; none at the end."""
    found: list[R] = []
    async for item in listings:
        found.append(item)
        if len(found) == count:
            break
    return found


class _Waiting:
    """The caller of blocking references: hands the call to the client's loop and waits for the result."""

    def __init__(self, owner: BlockingClient) -> None:
        self._owner = owner

    def invoke(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        request_id: str | None = None,
    ) -> Any:
        owner = self._owner
        return owner._wait(
            owner._client.invoke(grain_type, grain_key, spec, args, kwargs, timeout, request_id)
        )


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
