"""Requests: calls that take effect once, however often they are sent.

A call of a method marked ``@idempotent_request`` carries an id, the same whenever it is sent again.  The
grain's silo remembers the answer under it, in the commit of the turn, and answers a repeated request with it.
So such a call may be sent again even when nobody knows whether it ran.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from farro.client.errors import CommitOutcomeUnknown, FarroError, InvalidPayload, SiloUnavailable

if TYPE_CHECKING:
    from farro.client.interface import MethodSpec
    from farro.client.reference import Caller

REQUEST_ID_CHARACTERS_MAX = 128
RETRY_FIRST_S = 0.02
RETRY_MAX_S = 1.0
REPEATS_MAX = 1_000  # of one request; its deadline ends it long before


@dataclass(frozen=True, slots=True)
class Request:
    """What a call carries.  ``again``: it may have been sent before, so whoever runs it looks first."""

    id: str
    again: bool


def checked_request_id(given: Any) -> str:
    """The id as given; :class:`InvalidPayload` unless it is printable text of 1 to 128 characters."""
    if type(given) is not str:
        raise InvalidPayload(f"a request id must be str, not {type(given).__name__}")
    if not 0 < len(given) <= REQUEST_ID_CHARACTERS_MAX or not given.isprintable():
        raise InvalidPayload(
            f"a request id must have 1 to {REQUEST_ID_CHARACTERS_MAX} printable characters, "
            f"not {ascii(given)[:80]}"
        )
    return given


class Repeats:
    """Decides, attempt by attempt, whether one request is sent again.  ``chance`` spreads the pauses."""

    __slots__ = ("_chance", "_count", "_unknown")

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._count = 0
        self._unknown: FarroError | None = None

    @property
    def unknown(self) -> FarroError:
        """The first error that left the outcome open; there is one once :meth:`after` has returned."""
        assert self._unknown is not None
        return self._unknown

    def after(self, error: FarroError, seconds_left: float) -> float:
        """Seconds to pause before the request is sent again; if it is not, raises what its caller gets.

        It is, until its deadline, when nobody knows whether it ran.  From then on also when it certainly did
        not run this time: that error says nothing of the time before, so the first one is what the caller
        gets in the end.
        """
        if isinstance(error, (SiloUnavailable, CommitOutcomeUnknown)) and error.turn_ran is None:
            self._unknown = self._unknown or error
        elif self._unknown is None or error.turn_ran is not False or not error.retry_safe:
            raise error
        self._count += 1
        pause_s = self._chance.uniform(0, min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(self._count, 16)))
        if pause_s >= seconds_left or self._count > REPEATS_MAX:
            raise self._unknown
        return pause_s


def new_request_id(chance: Random) -> str:
    """An id that nobody else makes: 32 hexadecimal digits."""
    return f"{chance.getrandbits(128):032x}"


class RequestCaller:
    """Carries the calls of one reference as one request: what ``with_options(request_id=…)`` calls through.

    A wrapper and not a field of every reference, so that calls without one pay nothing for it.
    """

    __slots__ = ("inner", "request_id")

    def __init__(self, inner: Caller, request_id: str) -> None:
        self.inner = inner
        self.request_id = checked_request_id(request_id)

    def invoke(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        request_id: str | None = None,
    ) -> Awaitable[Any]:
        """See :class:`farro.client.reference.Caller`."""
        if not spec.idempotent:
            raise InvalidPayload(f"{spec} is no @idempotent_request, so it takes no request id")
        return self.inner.invoke(
            grain_type, grain_key, spec, args, kwargs, timeout, request_id or self.request_id
        )
