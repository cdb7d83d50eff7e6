"""The grain classes that the benchmarks call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import ClassVar

from farro.silo import Grain, readonly


class Echo(Grain, name="bench.echo"):
    """No state, scalar arguments: what a call costs by itself."""

    async def echo(self, number: int) -> int:
        return number

    async def ring(self, key: str, calls: int) -> float:
        """Call another grain that often, one call after the other; seconds it took."""
        other = self.grain(Echo, key)
        begun = perf_counter()
        for number in range(calls):
            await other.echo(number)
        return perf_counter() - begun


@dataclass(slots=True)
class ShipmentState:
    """As many bytes as the rows of the raw group commit."""

    status: str = "on its way"
    count: int = 0
    papers: bytes = field(default=bytes(64))


class Shipment(Grain[ShipmentState], name="bench.shipment"):
    """Every turn but one changes the state."""

    @readonly
    async def moves(self) -> int:
        return self.state.count

    async def move(self) -> int:
        self.state.count += 1
        return self.state.count

    async def chase_on(self) -> int:
        """Also put one reminder and delete the other, by turns: every put is new and every delete hits."""
        self.state.count += 1
        new, old = ("a", "b") if self.state.count % 2 else ("b", "a")
        self.schedule("chase", after=timedelta(days=2), every=timedelta(days=1), key=new)
        self.unschedule("chase", key=old)
        return self.state.count

    async def chase(self) -> None:
        self.state.count += 1


class Ticking(Grain[ShipmentState], name="bench.ticking"):
    """Every tick changes the state, and notes how late it began."""

    lateness_us: ClassVar[dict[int, list[float]]] = {}  # by priority, in the order the ticks began
    _wanted: ClassVar[int] = 0
    _enough: ClassVar[asyncio.Event] = asyncio.Event()

    @classmethod
    def begin(cls, wanted: int = 0) -> asyncio.Event:
        """Forget what was noted before; the event is set once that many ticks have begun."""
        for noted in cls.lateness_us.values():
            noted.clear()
        cls._wanted = wanted
        cls._enough = asyncio.Event()
        return cls._enough

    @classmethod
    def noted(cls, priority: int) -> list[float]:
        """Microseconds late, tick by tick; grows as they come."""
        return cls.lateness_us.setdefault(priority, [])

    async def critical(self) -> None:
        self._ticked(0)

    async def normal(self) -> None:
        self._ticked(1)

    async def background(self) -> None:
        self._ticked(2)

    def _ticked(self, priority: int) -> None:
        self.state.count += 1
        tick = self.tick
        assert tick is not None
        noted = self.noted(priority)
        noted.append((tick.fired_at - tick.due_at) / timedelta(microseconds=1))
        if len(noted) == self._wanted:
            self._enough.set()


GRAINS = (Echo, Shipment, Ticking)
