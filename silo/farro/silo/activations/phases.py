"""The life of an activation, as a table.  What is not in it raises."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    __hash__ = object.__hash__  # members are singletons; Enum would hash their names in Python

    LOADING = "loading"  # its row is being read, on_activate runs
    ACTIVE = "active"
    DEACTIVATING = "deactivating"  # on_deactivate runs; messages wait for the next activation
    GONE = "gone"  # nothing reaches it any more


class Event(Enum):
    __hash__ = object.__hash__

    ACTIVATED = "activated"
    FAILED = "failed"  # loading or on_activate raised
    PUT_TO_SLEEP = "put to sleep"
    DEACTIVATED = "deactivated"
    DISCARDED = "discarded"  # memory and store may differ, or the grain was destroyed


TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.LOADING, Event.ACTIVATED): Phase.ACTIVE,
    (Phase.LOADING, Event.FAILED): Phase.GONE,
    (Phase.ACTIVE, Event.PUT_TO_SLEEP): Phase.DEACTIVATING,
    (Phase.ACTIVE, Event.DISCARDED): Phase.GONE,
    (Phase.DEACTIVATING, Event.DEACTIVATED): Phase.GONE,
    (Phase.DEACTIVATING, Event.DISCARDED): Phase.GONE,
    (Phase.LOADING, Event.DISCARDED): Phase.GONE,
    (Phase.GONE, Event.DEACTIVATED): Phase.GONE,  # on_deactivate's own turn was discarded on the way
}


def after(phase: Phase, event: Event) -> Phase:
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise RuntimeError(f"an activation that is {phase.value} cannot be {event.value}") from None
