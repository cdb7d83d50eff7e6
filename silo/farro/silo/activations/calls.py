"""Calls between grains of one silo, and from the program that hosts it."""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import Any

from farro.client.errors import CallCycle, CallTimeout, FarroError, SiloUnavailable
from farro.client.interface import MethodSpec
from farro.client.requests import Repeats, Request, checked_request_id
from farro.silo.activations.activation import Activation
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.invocation import Invocation
from farro.silo.activations.requests import made_by
from farro.silo.grains.context import CURRENT, Link, Turn

Address = tuple[str, str]  # grain type and key

REST_S_PER_CALL = 5e-6  # between two looks at the deadlines; a look takes a twentieth of that per call


class LocalCaller:
    """The :class:`~farro.client.reference.Caller` inside a silo.

    Arguments and results are encoded and decoded as for a remote call, so that nothing mutable is shared and
    the answer is the same as between silos; the bytes in between are left out.
    """

    def __init__(self, call_timeout_s: float, random: Random) -> None:
        self._timeout_s = call_timeout_s
        self._random = random
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._catalog: Catalog | None = None

    def connect(self, catalog: Catalog) -> None:
        """The catalog is built after the caller that its grains use."""
        self._catalog = catalog

    async def invoke(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,  # noqa: ASYNC109 - a deadline that travels with the call
        request_id: str | None = None,
        request: Request | None = None,
    ) -> Any:
        """Call and wait for the result; raises a :class:`FarroError`.

        ``request`` is one attempt of a request; with a ``request_id``, or where the method is an
        ``@idempotent_request``, as many are made as its deadline allows.
        """
        if request is None and (spec.idempotent or request_id is not None):
            return await self._request(grain_type, grain_key, spec, args, kwargs, timeout, request_id)
        assert self._catalog is not None
        wire_args, wire_kwargs = spec.encode_call(args, kwargs)
        turn = CURRENT.get()
        deadline, chain = self._inherited(turn, spec.timeout if timeout is None else timeout)
        answer = _Answer(spec)
        call = Invocation(
            grain_type,
            grain_key,
            spec.name,
            wire_args,
            wire_kwargs,
            deadline,
            chain,
            answer,
            external=turn is None,
            inline=not spec.oneway,
        )
        call.request = request
        if spec.oneway:
            call.chain = ()
            self._catalog.submit(call)
            return None
        waiter = _activation_of(turn)
        target = None if waiter is None else self._catalog.awake(grain_type, grain_key)
        if waiter is not None and target is not None and target.waits_for:
            self._refuse_crossing(call, waiter, target)
        self._catalog.submit(call)
        if answer.given:
            return answer.result()
        future = answer.future = self._loop.create_future()
        if waiter is not None:
            _wait_edge(waiter, (grain_type, grain_key), future)
        self._deadlines.add(call, future)
        try:
            return await future
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self._deadlines.discard(call)

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
        turn = CURRENT.get()
        deadline, _ = self._inherited(turn, spec.timeout if timeout is None else timeout)
        if request_id is None:
            request = made_by(turn, f"{grain_type}/{grain_key}.{spec.name}", self._random)
        else:
            request = Request(checked_request_id(request_id), again=True)
        repeats = Repeats(self._random)
        while True:
            left = deadline - self._loop.time()
            try:
                return await self.invoke(grain_type, grain_key, spec, args, kwargs, left, None, request)
            except FarroError as error:
                pause_s = repeats.after(error, 0.0 if self._closed else deadline - self._loop.time())
            await asyncio.sleep(pause_s)
            request = Request(request.id, again=True)

    def _inherited(self, turn: Turn | None, timeout: float | None) -> tuple[float, tuple[Link, ...]]:
        deadline = self._loop.time() + (self._timeout_s if timeout is None else timeout)
        if turn is None or not turn.open:
            return deadline, ()
        return min(deadline, turn.deadline), turn.chain

    def _refuse_crossing(self, call: Invocation, waiter: Activation, target: Activation) -> None:
        """Two chains that cross would wait for each other for ever.  A chain that comes back to itself is the
        catalog's to judge: it knows readers."""
        comes_back = any(link[0] == call.grain_type and link[1] == call.grain_key for link in call.chain)
        if not comes_back and target.busy and self._waits_for(target, waiter):
            raise CallCycle(
                f"{call.target} would wait for a grain that waits, through another call, for "
                f"{waiter.id}; one of two crossing calls must give way",
                chain=[f"{link[0]}/{link[1]}.{link[2]}" for link in call.chain] + [call.target],
            )

    def _waits_for(self, start: Activation, goal: Activation) -> bool:
        """Does the running turn of ``start`` wait, through however many calls, for ``goal``?"""
        assert self._catalog is not None
        seen = {start}
        stack = [start]
        while stack:
            for address in stack.pop().waits_for or ():
                each = self._catalog.awake(*address)
                if each is goal:
                    return True
                if each is not None and each not in seen:
                    seen.add(each)
                    stack.append(each)
        return False

    def close(self) -> None:
        self._closed = True
        self._deadlines.close()


class _Answer:
    """The answer to one call: there when ``submit`` returns, or put into the future that is made then."""

    __slots__ = ("_error", "_spec", "_value", "future", "given")

    def __init__(self, spec: MethodSpec) -> None:
        self._spec = spec
        self._value: Any = None
        self._error: FarroError | None = None
        self.given = False
        self.future: asyncio.Future[Any] | None = None

    def __call__(self, answer: Any, error: FarroError | None) -> None:
        self.given = True
        self._value, self._error = answer, error
        future = self.future
        if future is None or future.done():
            return  # the caller asks for it, has gone, or its deadline has passed
        try:
            future.set_result(self.result())
        except FarroError as failure:
            future.set_exception(failure)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._spec.decode_result(self._value)


# ---- who waits for whom


def _activation_of(turn: Turn | None) -> Activation | None:
    if turn is None or not turn.open or turn.readonly:
        return None
    runtime = getattr(turn.owner, "_farro_runtime", None)
    return runtime if isinstance(runtime, Activation) else None


def _wait_edge(waiter: Activation, target: Address, future: asyncio.Future[Any]) -> None:
    # by address: the activation that is asked may be discarded, and the call go on to the next one
    if waiter.waits_for is None:
        waiter.waits_for = {}
    waits = waiter.waits_for
    waits[target] = waits.get(target, 0) + 1

    def over(_: object) -> None:
        left = waits[target] - 1
        if left:
            waits[target] = left
        else:
            del waits[target]

    future.add_done_callback(over)


class Deadlines:
    """One timer for all local calls: fails those whose deadline has passed.

    It is set for the first deadline, and looks through the calls that are out when it rings; most have been
    answered by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[Invocation, asyncio.Future[Any]] = {}
        self._due_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Invocation, future: asyncio.Future[Any]) -> None:
        """To be followed by :meth:`discard` once the call is over."""
        self._pending[call] = future
        if call.deadline < self._due_at:
            self._arm(call.deadline)

    def discard(self, call: Invocation) -> None:
        self._pending.pop(call, None)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = at
        self._timer = self._loop.call_at(at, self._due)

    def _due(self) -> None:
        self._timer = None
        self._due_at = math.inf
        now = self._loop.time()
        pending = self._pending
        for call in [each for each in pending if each.deadline <= now]:
            future = pending.pop(call)
            if not future.done():
                call.cancelled = True  # a queued call never starts
                future.set_exception(CallTimeout(f"{call.target} did not answer before its deadline"))
        if pending:
            first = min([call.deadline for call in pending])
            self._arm(max(first, now + REST_S_PER_CALL * len(pending)))

    def close(self) -> None:
        """No timer is left, and nobody waits for an answer that will not come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call, future in self._pending.items():
            if not future.done():
                future.set_exception(SiloUnavailable(f"the silo stopped before it answered {call.target}"))
        self._pending.clear()
