"""``@stateless_worker``: grain classes whose calls run wherever they arrive, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, overload

from farro.silo.grains.grain_class import RECEIVE_REMINDER, GrainClass, where
from farro.silo.grains.registered import registered_on
from farro.silo.grains.subscriptions import subscriptions_of

C = TypeVar("C", bound=type)

MAX_LOCAL_CEILING = 256  # each call looks through them for one that is free


@overload
def stateless_worker(cls: C, /) -> C: ...
@overload
def stateless_worker(*, max_local: int | None = None) -> Callable[[C], C]: ...
def stateless_worker(cls: Any = None, /, *, max_local: int | None = None) -> Any:
    """The grains of the class keep nothing, so they need no owner: a call runs on the silo that got it.

    ``@stateless_worker`` or ``@stateless_worker(max_local=4)``, above the class.  Up to ``max_local``
    activations of one grain id run on each silo (1 to 256; the number of CPUs if not given), one turn at a
    time each; further calls wait in one line for whichever is free first.  Idle ones are put to sleep like
    any grain.  What is kept in ``self`` is a cache: the next call may find another activation.

    There is no state, no reminder, no subscription, no event published and nothing to destroy: declaring one
    is a ``TypeError`` here, asking for one in a turn :class:`~farro.client.errors.StatelessTurn`.  A mark,
    unlike the class options, because it changes what a grain is and not how it is kept; not inherited.
    Source: Orleans' attribute of that name.
    """
    if cls is not None and not isinstance(cls, type):
        raise TypeError(f"@stateless_worker({cls!r}): give the number as max_local=")
    bound = (os.cpu_count() or 1) if max_local is None else max_local
    if type(bound) is not int or not 1 <= bound <= MAX_LOCAL_CEILING:
        if max_local is not None:
            raise ValueError(f"max_local must be an int from 1 to {MAX_LOCAL_CEILING}, not {max_local!r}")
        bound = MAX_LOCAL_CEILING

    def mark(cls: C) -> C:
        known: Any = cls.__dict__.get("__farro_class__")
        if not isinstance(known, GrainClass):
            raise TypeError(f"@stateless_worker goes on a Grain subclass, not on {cls!r}")
        if problem := _problem(known):
            raise TypeError(f"{where(cls)}: a stateless worker {problem}")
        known.max_local = bound
        known.interface.stateless = True
        return cls

    return mark if cls is None else mark(cls)


def _problem(known: GrainClass) -> str | None:
    """Why the class cannot be a worker, as the rest of a sentence."""
    idempotent = [name for name, each in known.interface.methods.items() if each.idempotent]
    if known.state is not None:
        return "has no state; let the class derive from Grain without a type parameter"
    if known.receive_reminder is not None or registered_on(known.cls):
        return f"has no reminders, and this one has {RECEIVE_REMINDER}()"
    if subscribed := subscriptions_of(known):
        return f"subscribes to nothing, and this one does to {subscribed[0].stream!r}"
    if known.affinity is not None:
        return "runs on whichever silo was called, so affinity= has no meaning"
    if idempotent:
        return f"remembers no answers, so {idempotent[0]!r} cannot be an @idempotent_request"
    return None
