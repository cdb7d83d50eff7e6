"""Marks on grain methods.  The wire layer reads them as function attributes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def _bare(mark: F) -> F:
    """A mark that says so when it is written with parentheses."""

    @wraps(mark)
    def checked(*given: Any, **named: Any) -> Any:
        if named or len(given) != 1 or not callable(given[0]):
            raise TypeError(f"@{mark.__name__} goes on an 'async def' method, without parentheses")
        return mark(*given)

    return cast(F, checked)


@_bare
def readonly(method: F) -> F:
    """The method reads and changes nothing.

    Read-only turns interleave with each other, never with a writing turn, and never commit.  Asking for an
    effect raises :class:`~farro.client.errors.ReadonlyTurn`; a changed state is discarded and logged.
    """
    method.__farro_readonly__ = True  # type: ignore[attr-defined]
    return method


@_bare
def oneway(method: F) -> F:
    """Callers get None at once: no result, no error.  If the method raises, the silo logs it once."""
    method.__farro_oneway__ = True  # type: ignore[attr-defined]
    return method


@_bare
def cancellable(method: F) -> F:
    """A caller's explicit cancel ends the running method too; its turn then changes nothing."""
    method.__farro_cancellable__ = True  # type: ignore[attr-defined]
    return method


@_bare
def idempotent_request(method: F) -> F:
    """A call takes effect once, however often it is sent: a repeated one is answered with the first result.

    Each call carries a request id: one of its own, or the one that ``with_options(request_id="…")`` of a
    reference gives.  The turn's commit keeps the result under that id, method and grain, for
    ``SiloOptions.request_window`` (24 h).  Clients and silos therefore send such a call again by themselves
    when its outcome is unknown, until its deadline.  Only what returned is remembered: a method that raises
    has changed nothing and may be tried again.  What its code does *outside* the commit may happen twice.

    A call costs a commit even if the method changes nothing; the result takes at most 256 KiB.  Not together
    with ``@readonly`` or ``@oneway``.  Source: design/cluster.md, "Calls across silos".
    """
    method.__farro_idempotent__ = True  # type: ignore[attr-defined]
    return method


def call_timeout(timeout: timedelta) -> Callable[[F], F]:
    """The deadline that calls of this method get when the caller names none (30 s otherwise)."""
    seconds = timeout.total_seconds()
    if seconds <= 0:
        raise ValueError(f"call_timeout must be greater than zero, not {timeout}")

    def mark(method: F) -> F:
        method.__farro_timeout__ = seconds  # type: ignore[attr-defined]
        return method

    return mark


def operation(*old_names: str) -> Callable[[F], F]:
    """Names this method had before: reminders stored under them are still delivered to it."""
    for name in old_names:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"@operation takes former method names, not {name!r}")
    if not old_names:
        raise ValueError("@operation needs at least one former name")

    def mark(method: F) -> F:
        method.__farro_old_names__ = old_names  # type: ignore[attr-defined]
        return method

    return mark
