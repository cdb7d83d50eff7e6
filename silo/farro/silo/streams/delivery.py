"""An event in flight: the :class:`~farro.silo.activations.invocation.Delivery` of one subscriber's turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farro.client.interface import MethodSpec
from farro.client.streams import StreamEvent
from farro.providers.rows import Watermark
from farro.silo.activations.invocation import Admission, Consumption
from farro.silo.streams.core import StreamCore


class EventDelivery:
    __slots__ = ("_consumed", "_core", "_event", "dropped")

    def __init__(self, core: StreamCore, event: StreamEvent, consumed: Watermark) -> None:
        self._core = core
        self._event = event
        self._consumed = consumed
        self.dropped = False

    def admit(self) -> Admission:
        if self._core.running:
            return Admission.START
        self.dropped = True  # the silo drains: whoever serves next brings it again
        return Admission.DROP

    def begin(self, spec: MethodSpec) -> tuple[None, Sequence[Any], dict[str, Any]]:
        return None, (self._event,), {}

    def code_ended(self) -> None:
        """Events hold no permit: how many are out is bounded where they are sent."""

    def consume(self) -> Consumption:
        return Consumption(watermarks=(self._consumed,))
