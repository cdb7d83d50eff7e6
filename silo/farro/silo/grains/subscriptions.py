"""``@subscribe``: which events a grain class wants to be brought, and to which of its grains."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeVar

from farro.client.identity import Key, canonical_key
from farro.client.streams import After, checked_after, checked_stream
from farro.silo.grains.grain_class import GrainClass

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__farro_subscriptions__"


class SubscriberKey(Enum):
    """Which grain of the class an event goes to, when it is not always the same one."""

    PUBLISHER = "publisher"


PUBLISHER_KEY: Final = SubscriberKey.PUBLISHER


@dataclass(frozen=True, slots=True)
class Wanted:
    """One mark on a method; ``key`` None: the publisher's."""

    stream: str
    key: str | None
    after: After


@dataclass(frozen=True, slots=True)
class Subscription:
    """A grain type that is brought the events of a stream."""

    stream: str
    grain_type: str
    method: str
    key: str | None
    after: After


def subscribe(
    stream: str,
    *,
    key: Key | Literal[SubscriberKey.PUBLISHER] = "default",
    after: After = "start",
) -> Callable[[F], F]:
    """Have the method called with every :class:`StreamEvent` of ``stream``, each in a turn of its own.

    ``@subscribe("orders", key="default")`` brings all events to one grain; ``key=PUBLISHER_KEY`` brings each
    to the grain of this class that has its publisher's key.  A subscriber that is deployed for the first time
    gets what is retained, or with ``after="now"`` what comes from then on.

    Events of one publisher come in order.  Delivery is at least once, its committed effect once: the turn's
    commit consumes the event.  A method that raises is tried again with back-off (``StreamOptions``), then
    the event is passed over, logged once.  Repeatable for several streams; a class subscribes to a stream
    once.  Mistakes raise ``TypeError`` or :class:`InvalidPayload` where they stand.
    """
    if callable(stream):
        raise TypeError(
            f"@subscribe on {getattr(stream, '__qualname__', repr(stream))}: it needs the name of a stream, "
            'such as @subscribe("orders")'
        )
    wanted = Wanted(
        checked_stream(stream),
        None if key is PUBLISHER_KEY else canonical_key(key, "key of a subscription"),
        checked_after(after),
    )

    def mark(method: F) -> F:
        _check_method(stream, method)
        setattr(method, ATTRIBUTE, (wanted, *getattr(method, ATTRIBUTE, ())))
        return method

    return mark


def _check_method(stream: str, method: Any) -> None:
    what = f"@subscribe({stream!r}) on {getattr(method, '__qualname__', repr(method))}"
    if not inspect.iscoroutinefunction(method):
        raise TypeError(f"{what}: it goes on an 'async def' method of a grain class")
    try:
        inspect.signature(method).bind(None, None)
    except TypeError as error:
        raise TypeError(f"{what}: the method takes one argument, the event ({error})") from None


def subscriptions_of(known: GrainClass) -> list[Subscription]:
    """What a class subscribes to, inherited methods included.  Twice the same stream: ``TypeError``."""
    found: dict[str, Subscription] = {}
    for method, operation in known.operations.items():
        for wanted in getattr(operation.function, ATTRIBUTE, ()):
            other = found.get(wanted.stream)
            if other is not None:
                raise TypeError(
                    f"{known.where}: {other.method!r} and {method!r} both subscribe to {wanted.stream!r}; "
                    "a class subscribes to a stream once: call one from the other"
                )
            found[wanted.stream] = Subscription(
                wanted.stream, known.type_name, method, wanted.key, wanted.after
            )
    return list(found.values())
