"""An author's exception as callers get it: class and text; the traceback stays in the silo's log."""

from __future__ import annotations

import logging
from random import Random

from farro.client.errors import CallCycle, FarroError, GrainCallFailed

log = logging.getLogger("farro.turns")

TEXT_MAX = 2_000  # characters of one error text on the wire


def printable(text: str) -> str:
    """Text for a log line or a table: control characters escaped, so that no name forges a line."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def describe(error: BaseException, depth: int = 0) -> str:
    """``Class: text``, with the parts of a group and the causes behind it."""
    try:
        said = str(error)
    except Exception as broken:  # an author's __str__ may raise; the caller still learns the class
        said = f"<its text raised {type(broken).__name__}>"
    text = f"{type(error).__qualname__}: {said}" if said else type(error).__qualname__
    if depth < 3:
        if isinstance(error, BaseExceptionGroup):
            parts = "; ".join(describe(each, depth + 1) for each in error.exceptions[:8])
            text = f"{text} [{parts}]"
        if error.__cause__ is not None:
            text = f"{text} (caused by {describe(error.__cause__, depth + 1)})"
    return text[:TEXT_MAX]


def failed(target: str, error: BaseException, random: Random) -> FarroError:
    """The error a caller gets for what a turn raised, after logging it once with its traceback."""
    if isinstance(error, CallCycle):
        return error
    if isinstance(error, GrainCallFailed):
        inner = GrainCallFailed(
            str(error), remote_type=error.remote_type, correlation_id=error.correlation_id
        )
        log.warning("turn failed grain=%s after a call it made: %s", printable(target), printable(str(error)))
        return inner
    correlation_id = f"{random.getrandbits(48):012x}"
    log.warning("turn failed grain=%s correlation_id=%s", printable(target), correlation_id, exc_info=error)
    kind = type(error)
    return GrainCallFailed(
        f"{target} raised {describe(error)}",
        remote_type=f"{kind.__module__}.{kind.__qualname__}",
        correlation_id=correlation_id,
    )
