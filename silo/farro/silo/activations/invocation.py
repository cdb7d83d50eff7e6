"""One message to a grain: what is asked, by when, on whose behalf, and who hears the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from farro.client.errors import FarroError
from farro.client.interface import MethodSpec
from farro.client.reminders import Tick
from farro.client.requests import Request
from farro.providers.rows import EventRow, Settle, Watermark
from farro.silo.grains.context import Link
from farro.silo.grains.grain_class import Operation

Respond = Callable[[Any, FarroError | None], None]


class Admission(Enum):
    """May a tick's turn begin now?"""

    START = "start"
    WAIT = "wait"  # it holds no place in the mailbox meanwhile; whoever said so submits it again
    DROP = "drop"  # cancelled, moved or replaced while it waited


@dataclass(frozen=True, slots=True)
class Consumption:
    """What the commit of a delivery's turn takes with it: the tick it settles, the messages it consumes."""

    settle: Settle | None = None
    events: tuple[EventRow, ...] = ()
    watermarks: tuple[Watermark, ...] = ()


class Delivery(Protocol):
    """Something the silo itself brings to a grain: a due tick, a stream event.  Its side of the turn."""

    def admit(self) -> Admission:
        """Asked when the turn could begin.  START takes a permit."""
        ...

    def begin(self, spec: MethodSpec) -> tuple[Tick | None, Sequence[Any], dict[str, Any]]:
        """Claim it: the tick, if it is one, and the arguments its method is called with."""
        ...

    def code_ended(self) -> None:
        """The turn's code has ended; its commit may still be under way."""
        ...

    def consume(self) -> Consumption:
        """What the turn's commit consumes, asked once the code has returned."""
        ...


class Invocation:
    """A message on its way to, or inside, an activation.

    ``args`` and ``kwargs`` are wire values; ``deadline`` is loop time.  ``respond`` is called exactly once,
    with a wire value or an error, possibly before ``submit`` returns.
    """

    __slots__ = (
        "args",
        "cancel_running",
        "cancelled",
        "chain",
        "deadline",
        "delivery",
        "external",
        "forwarded",
        "grain_key",
        "grain_type",
        "inline",
        "kwargs",
        "method",
        "operation",
        "over",
        "readonly",
        "request",
        "respond",
    )

    def __init__(
        self,
        grain_type: str,
        grain_key: str,
        method: str,
        args: list[Any],
        kwargs: dict[str, Any] | None,
        deadline: float,
        chain: tuple[Link, ...],
        respond: Respond,
        *,
        external: bool = True,
        delivery: Delivery | None = None,
        inline: bool = True,
    ) -> None:
        self.grain_type = grain_type
        self.grain_key = grain_key
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.deadline = deadline
        self.chain = chain
        self.respond = respond
        self.external = external  # from a client: refused while the silo drains
        self.forwarded = False  # by a peer, which has found out that its grain lives here: never sent on
        self.delivery = delivery
        self.inline = inline  # its turn may begin, and even end, before ``submit`` returns
        self.request: Request | None = None  # of an @idempotent_request
        self.operation: Operation | None = None  # found by the catalog
        self.readonly = False
        self.cancelled = False
        self.over = False  # its turn has ended and the caller been answered
        self.cancel_running: Callable[[], object] | None = None  # set while a @cancellable turn's code runs

    @property
    def target(self) -> str:
        return f"{self.grain_type}/{self.grain_key}.{self.method}"

    def cancel(self) -> None:
        """The caller no longer wants it: a queued call never starts, a running ``@cancellable`` one stops."""
        self.cancelled = True
        if self.cancel_running is not None:
            self.cancel_running()
