"""What goes out instead of an answer."""

from __future__ import annotations

import logging

from farro.client.errors import FarroError
from farro.client.protocol import Message, error_message
from farro.silo.activations.invocation import Invocation

log = logging.getLogger("farro.gateway")

_ERROR_CHARACTERS_MAX = 16_384


def sendable_error(call_id: int, error: FarroError) -> Message:
    """The text of somebody's exception may be anything; the wire takes valid Unicode of a bounded length."""
    message = error_message(call_id, error)
    message[3] = message[3][:_ERROR_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
    return message


def as_farro_error(error: Exception, call: Invocation) -> FarroError:
    """What the caller hears of an error with which the target did not take the call."""
    if isinstance(error, FarroError):
        return error
    log.error("taking a call of %s failed", ascii(call.target), exc_info=error)
    return FarroError("the silo failed to take the call; its log says why")
