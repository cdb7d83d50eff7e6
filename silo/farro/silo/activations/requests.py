"""Requests at the silo: answered once by a turn, and from then on by what that turn's commit has kept.

A request may come again while its first turn runs (it then waits in the mailbox, as any call does), after it
has ended, or after its silo has died.  Three things see to it that it has one effect:

- what ``may have been sent before`` is looked up before the code runs; a request that its sender made up just
  now cannot have been answered, and saves the look;
- the commit keeps the answer with everything else that the turn changes, or nothing of it;
- a turn whose request has been answered meanwhile, by a straggling commit or by an earlier sending that came
  later, is told so by the store (``REPEATED``): it changes nothing, and its caller gets the first answer.
"""

from __future__ import annotations

from random import Random
from typing import Any

from farro.client.clock import Clock
from farro.client.errors import InvalidPayload
from farro.client.requests import Request, new_request_id
from farro.providers.contracts import Provider
from farro.providers.rows import RequestRow
from farro.silo.activations.core import Core
from farro.silo.activations.invocation import Invocation
from farro.silo.grains.context import RequestIds, Turn

ANSWER_BYTES_MAX = 256 * 1024  # of one result, packed; it is kept for the whole window
FORGOTTEN_AT_ONCE = 500  # rows; one transaction that other commits do not wait long for
FORGOTTEN_PER_RUN = 200  # such transactions


async def first_answer(core: Core, call: Invocation, request: Request) -> bytes | None:
    """The packed answer that the request has been given before, if it may have been sent before.

    Raises :class:`InvalidPayload` for a method that keeps none, :class:`StorageUnavailable`.
    """
    assert call.operation is not None
    if not call.operation.spec.idempotent:
        raise InvalidPayload(
            f"{call.target} is no @idempotent_request, so it takes no request id (a parameter of that name "
            "is given by its place)"
        )
    if not request.again:
        return None
    return await core.loader.answer_to(call.grain_type, call.grain_key, _kept_as(call, request))


def begin(turn: Turn, call: Invocation, request: Request) -> None:
    """Tell the turn which request it answers, and let those that it makes itself follow from it."""
    turn.request_id = request.id
    turn.requests = RequestIds(f"{call.target}\x00{request.id}")


def keep(core: Core, turn: Turn, call: Invocation, request: Request, answer: Any) -> None:
    """Have the turn's commit keep the answer, a wire value.  :class:`InvalidPayload` if it is too large."""
    packed = core.codec.pack_wire(answer, f"the result of {call.target}")
    if len(packed) > ANSWER_BYTES_MAX:
        raise InvalidPayload(
            f"the result of {call.target} takes {len(packed):,} bytes packed; an @idempotent_request keeps "
            f"at most {ANSWER_BYTES_MAX:,}: return a pointer to where it is stored"
        )
    turn.effects.request = RequestRow(_kept_as(call, request), packed, core.clock.now())


def unpacked(core: Core, packed: bytes) -> Any:
    """A kept answer as the wire value that it was."""
    return core.codec.unpack_wire(packed, "a kept answer")


def _kept_as(call: Invocation, request: Request) -> str:
    """Two methods that are given the same id are two requests."""
    return f"{call.method}/{request.id}"


def made_by(turn: Turn | None, target: str, random: Random) -> Request:
    """The next request that a turn makes, to ``TYPE/KEY.METHOD``; None: somebody outside makes it.

    A tick that is delivered again, and a request that is answered again, make the same requests again.
    """
    if turn is None or not turn.open:
        return Request(new_request_id(random), again=False)
    if turn.requests is None:
        turn.requests = RequestIds(new_request_id(random) if turn.tick is None else f"tick {turn.tick.id}")
    return Request(turn.requests.next(target), again=turn.tick is not None or turn.request_id is not None)


async def forget_old(provider: Provider, clock: Clock, window_us: int) -> int:
    """Delete what was answered longer ago than ``window_us``; how many answers.  Bounded, repeatable."""
    before = clock.now() - window_us
    forgotten = 0
    for _ in range(FORGOTTEN_PER_RUN):
        count = await provider.forget_requests(before, FORGOTTEN_AT_ONCE)
        forgotten += count
        if count < FORGOTTEN_AT_ONCE:
            break
    return forgotten
