"""The client: calls grains through the silos that own them; references that call through it.

Theory of operation.  ``connections`` keeps the connections and knows which one a call takes.  A call that
finds none, or no room on it, waits up to its own deadline.  One that certainly never ran is sent again, as
``retries`` allows; any other failure goes to the caller.
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
from farro.client.connections import Connections, Dial
from farro.client.dialing import dial, gateway_url
from farro.client.errors import CallTimeout, FarroError, Overloaded, SiloUnavailable
from farro.client.identity import GrainId, Key, canonical_key
from farro.client.interface import Interface, MethodSpec, interface_of
from farro.client.management import Reminders
from farro.client.reference import Caller, checked_timeout, reference
from farro.client.requests import Repeats, Request, checked_request_id, new_request_id
from farro.client.retries import RetryBudget, Verdict, pause_s, verdict
from farro.client.streams import After, EventStream

G = TypeVar("G")

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
HEARTBEAT_S = 10.0
UNTYPED_SPECS_MAX = 1_024
WAITING_CALLS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Facts of a client since it was opened.

    ``connected_to``: the gateway that calls go through whose owner is not known or not reached.
    ``connections`` are there now.  ``view``: of the map that calls are routed by; None without a cluster.
    ``retries``: calls that did not run and were sent again after a pause; ``retries_refused``: for which the
    budget was used up.
    """

    connected_to: str | None
    connections_made: int
    calls_pending: int
    late_replies: int
    connections: int
    view: int | None
    calls: int
    retries: int
    retries_refused: int


class Client:
    """Calls grains through one of several gateways.

    ``urls`` are addresses such as ``http://127.0.0.1:11111``.  ``timeout`` is the default deadline of a call,
    ``connect_timeout`` bounds one attempt to connect, ``heartbeat`` is how long a connection may be silent
    before it is asked for a sign of life (it is given up after half as long again); all in seconds.

    Use as ``async with``: entering fails with :class:`SiloUnavailable` if no gateway answers.  Leaving fails
    calls that are still out with :class:`SiloUnavailable`.  One client belongs to one event loop.
    ``dial(address)`` opens connections in another way than over WebSockets (for simulations).
    """

    def __init__(
        self,
        *urls: str,
        timeout: float = TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        heartbeat: float = HEARTBEAT_S,
        chance: random.Random | None = None,
        caller: Caller | None = None,
        dial: Dial | None = None,
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._state = "new"
        self._waiting = 0
        self._dial = dial or self._dial_websocket
        self._connections: Connections | None = None
        self._interfaces: dict[str, Interface] = {}  # as many as the program has classes
        self._routes: dict[tuple[str, str], Connection] = {}
        self._route: Callable[[str, str], Connection | None] = _nowhere
        self._calls = 0
        self._retries = 0
        self._retries_refused = 0

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
        interface = interface_of(cls)
        self._interfaces[interface.type_name] = interface
        return reference(interface, key, self._caller, checked_timeout(timeout))

    async def call(
        self,
        grain_type: str,
        grain_key: Key,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - travels with the call, to the silo too
        request_id: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a method by names, without its class: any plain values in, plain values out.

        ``request_id`` makes the call of an ``@idempotent_request`` one request, sent again if need be.  A
        method's own parameter named ``timeout`` or ``request_id`` is reached by its place.
        """
        key = canonical_key(grain_key)
        grain_id = GrainId(grain_type, key)
        spec = self._untyped(grain_type, method)
        return await self.invoke(grain_id.type, key, spec, args, kwargs, checked_timeout(timeout), request_id)

    async def invoke(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,  # noqa: ASYNC109 - travels with the call, to the silo too
        request_id: str | None = None,
        request: Request | None = None,
    ) -> Any:
        """What references call; see :class:`farro.client.reference.Caller`.

        ``request`` is one attempt of a request; with a ``request_id``, or where the method is an
        ``@idempotent_request``, as many are made as its deadline allows.
        """
        if request is None and (spec.idempotent or request_id is not None):
            return await self._request(grain_type, grain_key, spec, args, kwargs, timeout, request_id)
        wire_args, wire_kwargs = spec.encode_call(args, kwargs)
        seconds = timeout or spec.timeout or self._timeout_s
        deadline = self._loop_time() + seconds
        self._calls += 1
        attempt = 0
        while True:
            connection = self._routes.get((grain_type, grain_key)) or self._route(grain_type, grain_key)
            if connection is None or connection.full:
                connection = await self._connection_with_room(grain_type, grain_key, spec.name, deadline)
                seconds = deadline - self._loop_time()
            call_id = 0
            try:
                call_id, future = connection.send_call(
                    grain_type,
                    grain_key,
                    spec.name,
                    wire_args,
                    wire_kwargs,
                    seconds,
                    deadline,
                    spec.oneway,
                    request=request,
                )
                if future is None:
                    return None
                wire = await future
            except asyncio.CancelledError:
                connection.cancel_call(call_id)
                raise
            except FarroError as error:
                attempt += 1
                if not await self._may_send_again(error, connection.usable, attempt, deadline):
                    raise
                seconds = deadline - self._loop_time()
                continue
            return spec.decode_result(wire)

    async def _may_send_again(
        self, error: FarroError, connection_usable: bool, attempt: int, deadline: float
    ) -> bool:
        """Whether a failed call is sent again; if so, returns when it is time to."""
        what = verdict(error, connection_usable)
        now = self._loop_time()
        if what is Verdict.FINAL or self._state != "open" or now >= deadline:
            return False
        if what is Verdict.ELSEWHERE:
            await asyncio.sleep(0)  # other calls have their turn, however many connections are gone
            return True
        pause = pause_s(attempt, self._chance)
        if now + pause >= deadline:
            return False
        if what is Verdict.LATER and not self._budget.take(now, self._calls):
            self._retries_refused += 1
            return False
        self._retries += 1
        assert self._connections is not None
        await self._connections.wait_for_newer_view(pause)
        return True

    async def _request(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,  # noqa: ASYNC109 - of all attempts together
        request_id: str | None,
    ) -> Any:
        deadline = self._loop_time() + (timeout or spec.timeout or self._timeout_s)
        if request_id is None:
            request = Request(new_request_id(self._chance), again=False)
        else:
            request = Request(checked_request_id(request_id), again=True)
        repeats = Repeats(self._chance)
        while True:
            left = deadline - self._loop_time()
            try:
                return await self.invoke(grain_type, grain_key, spec, args, kwargs, left, None, request)
            except FarroError as error:
                now = self._loop_time()
                pause = repeats.after(error, deadline - now if self._state == "open" else 0.0)
                # a broken connection says so once to each of its calls; a store in trouble, again and again
                if not isinstance(error, SiloUnavailable) and not self._budget.take(now, self._calls):
                    self._retries_refused += 1
                    raise repeats.unknown from None
            self._retries += 1
            await asyncio.sleep(pause)
            request = Request(request.id, again=True)

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
        connections = self._connections
        gateway = connections.gateway if connections else None
        return ClientStatistics(
            connected_to=gateway.address if gateway else None,
            connections_made=connections.made if connections else 0,
            calls_pending=connections.pending if connections else 0,
            late_replies=connections.late_replies if connections else 0,
            connections=connections.count if connections else 0,
            view=connections.map.view if connections and connections.map else None,
            calls=self._calls,
            retries=self._retries,
            retries_refused=self._retries_refused,
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
        self._budget = RetryBudget(self._loop.time())
        self._session = aiohttp.ClientSession(trust_env=False)
        connections = Connections(self._gateways, self._interfaces, self._dial, self._start, self._chance)
        self._routes, self._route = connections.routes, connections.route
        try:
            await connections.open()
        except BaseException:
            await self._session.close()
            raise
        self._connections = connections
        self._state = "open"

    async def close(self) -> None:
        """Send what is queued, then close.  Calls still out fail with ``turn_ran=None``.  Repeatable."""
        if self._state != "open" or self._connections is None:
            return
        self._state = "closed"
        await self._connections.close("the client was closed")
        await asyncio.sleep(0)  # a connection made just now begins to run, and so closes its socket
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._session.close()

    async def _dial_websocket(self, address: str) -> Connection:
        try:
            url = gateway_url(address)
        except ValueError as error:  # of the map; those that the client was given have been looked at
            raise SiloUnavailable(str(error), turn_ran=False) from None
        return await dial(
            self._session,
            url,
            Codec(self._caller),
            timeout_s=self._connect_timeout_s,
            heartbeat_s=self._heartbeat_s,
        )

    async def _connection_with_room(
        self, grain_type: str, key: str, method: str, deadline: float
    ) -> Connection:
        what = f"{grain_type}.{method}"
        connections = self._connections
        assert connections is not None
        if self._waiting >= WAITING_CALLS_MAX:
            raise Overloaded(f"{WAITING_CALLS_MAX:,} calls already wait in this client")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    if self._state != "open":
                        raise SiloUnavailable(f"{what} was not sent: {connections.trouble}", turn_ran=False)
                    connection = self._route(grain_type, key)
                    if connection is None:
                        await connections.wait_until_ready()
                    elif not connection.full:
                        return connection
                    else:
                        await connection.wait_for_room()
                        if connection.usable:
                            return connection
        except TimeoutError:
            if connections.gateway is not None:
                raise CallTimeout(
                    f"{what} was not sent before its deadline: too many calls are out", turn_ran=False
                ) from None
            raise SiloUnavailable(
                f"{what} was not sent before its deadline: {connections.trouble}", turn_ran=False
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

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _not_open() -> float:
    raise SiloUnavailable("the client is not open; use: async with Client(…) as client", turn_ran=False)


def _nowhere(grain_type: str, grain_key: str) -> Connection | None:
    """Where a client that is not open has its calls go."""
    return None
