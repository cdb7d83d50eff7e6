"""The grains that the acceptance tests serve."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from farro.silo import Grain, MissedReminderAction, readonly


@dataclass
class CounterState:
    value: int = 0


class Counter(Grain[CounterState], name="counters"):
    """Also does what misbehaving grains do."""

    async def add(self, amount: int = 1) -> int:
        self.state.value += amount
        return self.state.value

    @readonly
    async def value(self) -> int:
        return self.state.value

    async def add_slowly(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        self.state.value += 1
        return self.state.value

    async def block(self, seconds: float) -> None:
        print("the loop is blocked", flush=True)
        time.sleep(seconds)  # noqa: ASYNC251 - what a careless author does

    async def fail(self) -> None:
        self.state.value += 1_000
        raise LookupError("on purpose\nERROR forged line \x1b[31m")

    async def _private(self) -> None: ...


@dataclass
class Blob:
    data: bytes = b""


class Store(Grain[Blob], name="blobs"):
    """Fills disks."""

    async def put(self, size: int) -> int:
        self.state.data = size.to_bytes(8, "big") + bytes(size)
        return size

    @readonly
    async def size(self) -> int:
        return len(self.state.data)


@dataclass
class BellState:
    rung: int = 0
    due: list[datetime] = field(default_factory=list)
    passed_over: int = 0


class Bell(Grain[BellState], name="bells"):
    """Rings by reminder and counts."""

    async def ring_every(self, seconds: float) -> None:
        self.schedule(self.ring, every=timedelta(seconds=seconds), missed=MissedReminderAction.FIRE_ALL)

    async def ring_later(self, names: list[str], seconds: float) -> None:
        for name in names:
            self.schedule(self.ring, after=timedelta(seconds=seconds), key=name)

    async def ring(self) -> None:
        assert self.tick is not None
        self.state.rung += 1
        self.state.due.append(self.tick.due_at)
        self.state.passed_over += self.tick.missed_count

    @readonly
    async def rung(self) -> int:
        return self.state.rung

    @readonly
    async def due(self) -> list[datetime]:
        return self.state.due


class Values(Grain, name="values"):
    """Returns what JSON has no form for."""

    @readonly
    async def mixed(self) -> dict[str, object]:
        return {
            "decimal": Decimal("1.50"),
            "duration": timedelta(seconds=90),
            "bytes": b"\x00\xff",
            "tuple": (1, 2),
            "nan": float("nan"),
        }

    @readonly
    async def echo(self, value: object) -> object:
        return value
