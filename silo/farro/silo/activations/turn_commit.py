"""A turn's changes as one commit, and its verdict taken in by the activation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farro.client.errors import (
    AlreadyConsumed,
    Conflict,
    FarroError,
    Fenced,
    IncompatibleState,
    InvalidPayload,
)
from farro.providers.rows import (
    Commit,
    GrainRow,
    GrainWrite,
    OutboxRow,
    Outcome,
    ReminderChange,
    RequestRow,
    Verdict,
)
from farro.silo.activations.invocation import Consumption
from farro.silo.grains.context import Turn

if TYPE_CHECKING:
    from farro.silo.activations.activation import Activation
    from farro.silo.activations.core import Core

COMMITTED = Outcome.COMMITTED  # a name of an Enum costs two calls to look up


def check_place(activation: Activation, row: GrainRow | None) -> None:
    """Raise :class:`IncompatibleState` if the grain was stored in another partition than it lives in.

    A commit is fenced in the partition of its activation.  Were the row's another one, a silo that still
    computes the old place could have the grain awake as well, and the grain's reminders would wait where
    nobody may settle them.
    """
    if row is not None and row.partition != activation.partition:
        raise IncompatibleState(
            f"{activation.id} is stored in partition {row.partition}, and its class {activation.known.where} "
            f"says that it lives in {activation.partition}: affinity= has changed since. Give the class the "
            "affinity= (or none) that it had, or another name= and bring the state over"
        )


def changes(
    core: Core, activation: Activation, turn: Turn, encoded: bytes | None, consumed: Consumption
) -> Commit:
    """What the turn changed, as one fenced transaction."""
    state, where = activation.known.state, activation.id
    version = activation.version
    assert version is not None
    destroy = turn.destroys
    writes = encoded is not None and (encoded != activation.baseline or activation.layout_stale)
    grain = GrainWrite(
        version,
        writes and not destroy,
        encoded if writes else None,
        1 if state is None else state.layout,
        destroy,
    )
    reminders: tuple[ReminderChange, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    events = consumed.events
    request: RequestRow | None = None
    if turn.has_effects:
        effects = turn.effects
        reminders, outbox = tuple(effects.reminders), tuple(effects.outbox)
        events = (*effects.events, *events)
        request = effects.request
    return Commit(
        activation.partition,
        activation.epoch,
        where.type,
        where.key,
        grain,
        consumed.settle,
        reminders,
        events,
        outbox,
        consumed.watermarks,
        core.reminders_max if reminders else 0,
        request,
    )


def absorb(activation: Activation, encoded: bytes | None, verdict: Verdict) -> FarroError | None:
    """The activation as the store has it now; the error when the store did not take the commit."""
    if verdict.outcome is COMMITTED:
        activation.version = verdict.version
        activation.baseline = encoded
        activation.layout_stale = False
        return None
    match verdict.outcome:
        case Outcome.FENCED:
            return Fenced(f"another silo owns the partition of {activation.id}; nothing changed")
        case Outcome.CONFLICT:
            return Conflict(f"another commit changed {activation.id} first; nothing changed")
        case Outcome.DUPLICATE:
            return AlreadyConsumed(f"the message to {activation.id} had its effect before")
        case Outcome.REJECTED:
            return InvalidPayload(f"the store refused the data of {activation.id}: {verdict.reason}")
        case _:
            raise TypeError(f"a verdict is not {verdict.outcome!r}")
