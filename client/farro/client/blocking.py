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
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from farro.client.client import CONNECT_TIMEOUT_S, HEARTBEAT_S, TIMEOUT_S, Client, ClientStatistics
from farro.client.errors import SiloUnavailable
from farro.client.identity import Key
from farro.client.interface import MethodSpec

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
        **kwargs: Any,
    ) -> Any:
        """As :meth:`Client.call`."""
        return self._wait(self._client.call(grain_type, grain_key, method, *args, timeout=timeout, **kwargs))

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
    ) -> Any:
        owner = self._owner
        return owner._wait(owner._client.invoke(grain_type, grain_key, spec, args, kwargs, timeout))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
