"""The error tree that clients and silos share.

Every error answers two questions:

``turn_ran``
    Did the effects of the turn commit?  ``True``, ``False``, or ``None`` when nobody can know.
``retry_safe``
    May the caller send the same call again without doing it twice?

``code`` names the class on the wire; :func:`from_wire` turns it back.  An error that a newer silo
sends and this client does not know arrives as :class:`FarroError` with the same text and flags.
"""

from __future__ import annotations

from typing import Any, ClassVar


class FarroError(Exception):
    """Base of everything farro raises on purpose."""

    code: ClassVar[str] = "error"
    turn_ran: bool | None = False
    retry_safe: bool = False

    def details(self) -> dict[str, Any]:
        """What travels beside the text; keys are attribute names of the subclass."""
        return {}


class GrainCallFailed(FarroError):
    """The grain's own code raised.  Nothing it staged was committed; what it did outside stays done.

    ``remote_type`` is the qualified name of the exception class on the silo, ``correlation_id`` finds
    the traceback in the silo's log.
    """

    code = "grain_call_failed"

    def __init__(self, message: str, *, remote_type: str = "", correlation_id: str = "") -> None:
        super().__init__(message)
        self.remote_type = remote_type
        self.correlation_id = correlation_id

    def details(self) -> dict[str, Any]:
        return {"remote_type": self.remote_type, "correlation_id": self.correlation_id}


class Fenced(FarroError):
    """The silo lost the partition before it could commit.  Nothing changed."""

    code = "fenced"
    retry_safe = True


class NotMine(FarroError):
    """This silo does not own the partition.  Nothing ran; ``view`` is the view of the cluster it went by."""

    code = "not_mine"
    retry_safe = True

    def __init__(self, message: str, *, view: int = 0) -> None:
        super().__init__(message)
        self.view = view

    def details(self) -> dict[str, Any]:
        return {"view": self.view}


class Conflict(FarroError):
    """Another commit moved the grain's version first.  Nothing changed; the activation was reloaded."""

    code = "conflict"
    retry_safe = True


class AlreadyConsumed(FarroError):
    """A message was delivered again after its effect had been committed.  Nothing changed this time."""

    code = "already_consumed"
    turn_ran = True


class Overloaded(FarroError):
    """The grain's mailbox or the silo is full.  ``retry_after`` is a hint in seconds."""

    code = "overloaded"
    retry_safe = True

    def __init__(self, message: str, *, retry_after: float = 0.1) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def details(self) -> dict[str, Any]:
        return {"retry_after": self.retry_after}


class CallTimeout(FarroError, TimeoutError):
    """The deadline passed.  Unless ``turn_ran`` is False (it never started), the outcome is unknown."""

    code = "timeout"
    turn_ran = None

    def __init__(self, message: str, *, turn_ran: bool | None = None, retry_safe: bool = False) -> None:
        super().__init__(message)
        self.turn_ran = turn_ran
        self.retry_safe = retry_safe or turn_ran is False

    def details(self) -> dict[str, Any]:
        return {"turn_ran": self.turn_ran, "retry_safe": self.retry_safe}


class SiloUnavailable(FarroError, ConnectionError):
    """No connection to the silo, or it broke while the call was out.

    ``turn_ran`` is False when the call never left this process, else None.
    """

    code = "silo_unavailable"
    turn_ran = None

    def __init__(self, message: str, *, turn_ran: bool | None = None, retry_safe: bool = False) -> None:
        super().__init__(message)
        self.turn_ran = turn_ran
        self.retry_safe = retry_safe or turn_ran is False

    def details(self) -> dict[str, Any]:
        return {"turn_ran": self.turn_ran, "retry_safe": self.retry_safe}


class CommitOutcomeUnknown(FarroError):
    """The store did not answer the commit.  The turn may or may not be durable; read before retrying."""

    code = "commit_outcome_unknown"
    turn_ran = None


class StorageUnavailable(FarroError):
    """The store could not be read or written.  Nothing changed."""

    code = "storage_unavailable"
    retry_safe = True


class CallCancelled(FarroError):
    """The call was cancelled before its turn began, or its method is ``@cancellable``.  Nothing changed."""

    code = "cancelled"
    retry_safe = True


class CallCycle(FarroError):
    """The call would wait for a grain that waits for it.  ``chain`` is printable, first caller first."""

    code = "call_cycle"

    def __init__(self, message: str, *, chain: list[str] | None = None) -> None:
        super().__init__(message)
        self.chain = list(chain or [])

    def details(self) -> dict[str, Any]:
        return {"chain": self.chain}


class UnknownGrainType(FarroError):
    """No silo that was asked serves this grain type."""

    code = "unknown_grain_type"
    retry_safe = True


class NoSuchMethod(FarroError):
    """The grain has no such method for callers.  One text for private, internal and absent names alike."""

    code = "no_such_method"


class NotRemote(FarroError, AttributeError):
    """The name is not part of what a reference can call (state, schedule, private names, …)."""

    code = "not_remote"


class InvalidPayload(FarroError, ValueError):
    """A value does not fit: wrong type, not encodable, too large.  The text names the path."""

    code = "invalid_payload"


class InvalidGrainId(InvalidPayload):
    """A grain type or key that breaks the rules of :mod:`farro.client.identity`."""

    code = "invalid_grain_id"


class InvalidReminderHandle(InvalidPayload):
    """Not a handle that ``schedule`` returned: ``{"reminder_name": <non-empty str>}``."""

    code = "invalid_reminder_handle"


class InvalidSchedule(InvalidPayload):
    """A schedule, cron text or time zone that cannot be accepted; names the field and the reason."""

    code = "invalid_schedule"


class UnknownOperation(InvalidPayload):
    """``schedule``/``unschedule``/``reminder`` named an operation that the grain class does not have."""

    code = "unknown_operation"


class TurnEnded(FarroError, RuntimeError):
    """An effect was asked for outside a turn, or by a task that outlived its turn."""

    code = "turn_ended"


class ReadonlyTurn(FarroError, RuntimeError):
    """A ``@readonly`` turn asked for an effect or changed the state."""

    code = "readonly_turn"


class StatelessTurn(FarroError, RuntimeError):
    """A stateless worker asked for what is stored: a reminder, an event, ``destroy()``."""

    code = "stateless_turn"


class GrainDestroyed(FarroError, RuntimeError):
    """The turn destroyed its grain and then asked for something that needs it."""

    code = "grain_destroyed"


class IncompatibleState(FarroError):
    """Stored state is newer than the code, or its migration failed.  The grain does not activate."""

    code = "incompatible_state"


class ProtocolError(FarroError):
    """The peer broke the wire protocol, or speaks no version that we speak."""

    code = "protocol_error"


class SiloStopping(FarroError):
    """The silo is shutting down and takes no new calls."""

    code = "silo_stopping"
    retry_safe = True


class ReminderNotFound(FarroError, LookupError):
    """A management verb named a reminder that does not exist."""

    code = "reminder_not_found"


def _all_errors(base: type[FarroError]) -> list[type[FarroError]]:
    found = [base]
    for child in base.__subclasses__():
        found += _all_errors(child)
    return found


def to_wire(error: FarroError) -> tuple[str, str, dict[str, Any]]:
    """``(code, text, details)``: plain values only."""
    details = error.details()
    details["turn_ran"] = error.turn_ran
    details["retry_safe"] = error.retry_safe
    return error.code, str(error), details


def from_wire(code: str, text: str, details: dict[str, Any]) -> FarroError:
    """The error that :func:`to_wire` took apart.  Never raises: unknown codes and fields are tolerated."""
    error: FarroError = _BY_CODE.get(code, FarroError)(text)
    if code not in _BY_CODE:
        vars(error)["code"] = code  # a silo that forwards the answer knows the class as little as we do
    for name, value in details.items():
        if name in ("turn_ran", "retry_safe") or name in error.details():
            setattr(error, name, value)
    return error


_BY_CODE: dict[str, type[FarroError]] = {cls.code: cls for cls in _all_errors(FarroError)}
