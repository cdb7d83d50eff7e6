"""The client: a few gateways' addresses, one live connection, references that call through it.

Theory of operation.  A supervisor task keeps one connection alive: it tries the gateways in random order,
says hello, and hands the connection to the callers; when it ends or the silo says goaway, it looks for the
next, with full jitter between rounds.  Calls made meanwhile wait, each up to its own deadline.  A call that
certainly never reached a grain is sent again on the next connection; any other failure goes to the caller.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, overload

import aiohttp

from farro.client.codec import Codec
from farro.client.connection import Connection
from farro.client.dialing import dial, gateway_url
from farro.client.errors import CallTimeout, FarroError, Overloaded, SiloStopping, SiloUnavailable
from farro.client.identity import GrainId, Key, canonical_key
from farro.client.interface import MethodSpec, interface_of
from farro.client.management import Reminders
from farro.client.reference import Caller, checked_timeout, reference
from farro.client.streams import After, EventStream

G = TypeVar("G")

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
HEARTBEAT_S = 10.0
RECONNECT_FIRST_S = 0.05
RECONNECT_MAX_S = 1.0
UNTYPED_SPECS_MAX = 1_024
WAITING_CALLS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Facts of a client since it was opened."""

    connected_to: str | None
    connections_made: int
    calls_pending: int
    late_replies: int


class Client:
    """Calls grains through one of several gateways.

    ``urls`` are addresses such as ``http://127.0.0.1:11111``.  ``timeout`` is the default deadline of a call,
    ``connect_timeout`` bounds one attempt to connect, ``heartbeat`` is how long a connection may be silent
    before it is asked for a sign of life (it is given up after half as long again); all in seconds.

    Use as ``async with``: entering fails with :class:`SiloUnavailable` if no gateway answers.  Leaving fails
    calls that are still out with :class:`SiloUnavailable`.  One client belongs to one event loop.
    """

    def __init__(
        self,
        *urls: str,
        timeout: float = TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        heartbeat: float = HEARTBEAT_S,
        chance: random.Random | None = None,
        caller: Caller | None = None,
    ) -> None:
        if not urls:
            raise ValueError("a client needs the address of a gateway, such as http://127.0.0.1:11111")
        self._gateways = [gateway_url(url) for url in urls]
        self._timeout_s = checked_timeout(timeout) or TIMEOUT_S
        self._connect_timeout_s = checked_timeout(connect_timeout) or CONNECT_TIMEOUT_S
        self._heartbeat_s = checked_timeout(heartbeat) or HEARTBEAT_S
        self._chance = chance or random.Random()
        self._caller: Caller = caller or self
        self._loop_time: Callable[[], float] = _not_open
        self._specs: OrderedDict[tuple[str, str], MethodSpec] = OrderedDict()
        self._current: Connection | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._state = "new"
        self._waiting = 0
        self._made = 0
        self._late = 0
        self._trouble = "it was never tried"

    # ---- what users call

    @overload
    def grain(self, cls: type[G], key: Key, *, timeout: float | None = None) -> G: ...
    @overload
    def grain(self, cls: Callable[..., G], key: Key, *, timeout: float | None = None) -> G: ...
    def grain(self, cls: Any, key: Key, *, timeout: float | None = None) -> Any:
        """A reference to the grain of that class (or Protocol) with that key.  Contacts nobody.

        ``timeout`` in seconds is for its calls (None: the method's own, else the client's).  Raises
        :class:`InvalidGrainId` for a bad key and ``TypeError`` for a class that is no grain.
        """
        return reference(interface_of(cls), key, self._caller, checked_timeout(timeout))

    async def call(
        self,
        grain_type: str,
        grain_key: Key,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - travels with the call, to the silo too
        **kwargs: Any,
    ) -> Any:
        """Call a method by names, without its class: any plain values in, plain values out.

        A method's own parameter named ``timeout`` is reached by its place.
        """
        key = canonical_key(grain_key)
        grain_id = GrainId(grain_type, key)
        spec = self._untyped(grain_type, method)
        return await self.invoke(grain_id.type, key, spec, args, kwargs, checked_timeout(timeout))

    async def invoke(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,  # noqa: ASYNC109 - travels with the call, to the silo too
    ) -> Any:
        """What references call; see :class:`farro.client.reference.Caller`."""
        wire_args, wire_kwargs = spec.encode_call(args, kwargs)
        seconds = timeout or spec.timeout or self._timeout_s
        deadline = self._loop_time() + seconds
        while True:
            connection = self._current
            if connection is None or connection.full:
                connection = await self._connection_with_room(deadline, f"{grain_type}.{spec.name}")
                seconds = deadline - self._loop_time()
            call_id = 0
            try:
                call_id, future = connection.send_call(
                    grain_type, grain_key, spec.name, wire_args, wire_kwargs, seconds, deadline, spec.oneway
                )
                if future is None:
                    return None
                wire = await future
            except asyncio.CancelledError:
                connection.cancel_call(call_id)
                raise
            except (SiloStopping, SiloUnavailable) as error:
                seconds = deadline - self._loop_time()
                if error.turn_ran is not False or seconds <= 0 or self._state != "open":
                    raise
                connection.drain(str(error))
                continue
            return spec.decode_result(wire)

    def stream(self, name: str, *, consumer: str | None = None, after: After = "now") -> EventStream:
        """Follow a stream: ``async for event in client.stream("orders")``.  Contacts nobody by itself.

        Unnamed, it begins with what comes from its first use on (``after="now"``; ``async with`` makes that
        moment plain) or with what is retained (``after="start"``).  ``consumer`` names a durable cursor:
        ``after`` counts the first time only, later it goes on where that consumer stood.  An event is
        consumed when the next one is asked for, so after a crash the last one may come again.
        """
        return EventStream(self._caller, name, consumer=consumer, after=after, is_open=self._is_open)

    @property
    def reminders(self) -> Reminders:
        """The reminders of every grain: set, look at and operate them from outside.  Contacts nobody."""
        return Reminders(self)

    def _is_open(self) -> bool:
        return self._state == "open"

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(
            connected_to=self._current.address if self._current else None,
            connections_made=self._made,
            calls_pending=sum(connection.pending for connection in self._connections),
            late_replies=self._late + sum(connection.late_replies for connection in self._connections),
        )

    # ---- opening and closing

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to one of the gateways, each tried once.

        Raises :class:`SiloUnavailable`, naming every address and what went wrong there.
        """
        if self._state != "new":
            raise RuntimeError(f"this client is {self._state}; make a new one")
        self._loop = asyncio.get_running_loop()
        self._loop_time = self._loop.time
        self._ready = asyncio.Event()
        self._session = aiohttp.ClientSession(trust_env=False)
        try:
            connection = await self._try_all()
        except BaseException:
            await self._session.close()
            raise
        self._state = "open"
        self._start(self._supervise(self._adopt(connection)), "farro client")

    async def close(self) -> None:
        """Send what is queued, then close.  Calls still out fail with ``turn_ran=None``.  Repeatable."""
        if self._state != "open":
            return
        self._state = "closed"
        self._trouble = "the client was closed"
        self._current = None
        self._ready.set()
        for connection in list(self._connections):
            await connection.finish_writing()
        await asyncio.sleep(0)  # a connection made just now begins to run, and so closes its socket
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._session.close()

    # ---- connections

    async def _supervise(self, ended: asyncio.Event) -> None:
        failures = 0
        while True:
            await ended.wait()
            while True:
                try:
                    ended = self._adopt(await self._try_all())
                except SiloUnavailable as error:
                    self._trouble = str(error)
                    failures += 1
                    ceiling = min(RECONNECT_MAX_S, RECONNECT_FIRST_S * 2 ** min(failures, 10))
                    await asyncio.sleep(self._chance.uniform(0, ceiling))
                else:
                    failures = 0
                    break

    async def _try_all(self) -> Connection:
        problems: list[str] = []
        for gateway in self._chance.sample(self._gateways, len(self._gateways)):
            try:
                return await dial(
                    self._session,
                    gateway,
                    Codec(self._caller),
                    timeout_s=self._connect_timeout_s,
                    heartbeat_s=self._heartbeat_s,
                )
            except FarroError as error:
                problems.append(str(error))
        raise SiloUnavailable("; ".join(problems), turn_ran=False)

    def _adopt(self, connection: Connection) -> asyncio.Event:
        """Make it the current connection; the event says when it no longer is."""
        self._made += 1
        connection.on_goaway = self._lost
        self._current = connection
        self._connections.add(connection)
        self._ready.set()
        over = self._over = asyncio.Event()
        self._start(self._live(connection), f"farro connection {connection.address}")
        return over

    async def _live(self, connection: Connection) -> None:
        try:
            reason = await connection.run()
            self._lost(connection, reason)
        finally:
            self._connections.discard(connection)
            self._late += connection.late_replies

    def _lost(self, connection: Connection, reason: str) -> None:
        if self._current is connection:
            self._current = None
            self._ready.clear()
            self._trouble = reason
            self._over.set()

    async def _connection_with_room(self, deadline: float, what: str) -> Connection:
        if self._waiting >= WAITING_CALLS_MAX:
            raise Overloaded(f"{WAITING_CALLS_MAX:,} calls already wait in this client")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    connection = self._current
                    if self._state != "open":
                        raise SiloUnavailable(f"{what} was not sent: {self._trouble}", turn_ran=False)
                    if connection is None:
                        await self._ready.wait()
                    elif not connection.full:
                        return connection
                    else:
                        await connection.wait_for_room()
                        if connection.usable:
                            return connection
        except TimeoutError:
            if self._current is not None:
                raise CallTimeout(
                    f"{what} was not sent before its deadline: too many calls are out", turn_ran=False
                ) from None
            raise SiloUnavailable(
                f"{what} was not sent before its deadline: {self._trouble}", turn_ran=False
            ) from None
        finally:
            self._waiting -= 1

    # ---- small things

    def _untyped(self, grain_type: str, method: str) -> MethodSpec:
        spec = self._specs.get((grain_type, method))
        if spec is None:
            spec = self._specs[grain_type, method] = MethodSpec.untyped(grain_type, method)
            if len(self._specs) > UNTYPED_SPECS_MAX:
                self._specs.popitem(last=False)
        return spec

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _not_open() -> float:
    raise SiloUnavailable("the client is not open; use: async with Client(…) as client", turn_ran=False)
