"""Grains that publish and subscribe, and a world of silos to do it in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from farro.client.streams import StreamEvent
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.subscriptions import PUBLISHER_KEY, subscribe
from farro.silo.options import SiloOptions, StreamOptions
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World

MISSED = "farro.reminders.missed"


@dataclass
class ShopState:
    sold: int = 0


class Shop(Grain[ShopState], name="shop"):
    async def sell(self, *values: Any) -> None:
        self.state.sold += 1
        for value in values:
            self.publish("orders", value)

    async def sell_and_fail(self, value: Any) -> None:
        self.publish("orders", value)
        raise ValueError("sold out")

    async def say(self, stream: str, value: Any) -> None:
        self.publish(stream, value)

    @readonly
    async def peek(self) -> None:
        self.publish("orders", 1)

    async def close_down(self) -> None:
        self.publish("orders", "last words")
        self.destroy()

    async def close_down_and_sell(self) -> None:
        self.destroy()
        self.publish("orders", 1)

    async def sold(self) -> int:
        return self.state.sold


@dataclass
class Heard:
    values: list[Any] = field(default_factory=list)


class Listening(Grain[Heard]):
    """Keeps what it hears in its state, and what was begun in the class; ``trouble`` may raise or wait."""

    begun: ClassVar[list[tuple[str, StreamEvent]]] = []
    trouble: ClassVar[Callable[[StreamEvent], Any] | None] = None

    async def values(self) -> list[Any]:
        return self.state.values

    async def _hears(self, event: StreamEvent) -> None:
        self.begun.append((str(self.id), event))
        self.state.values.append(event.value)
        trouble = Listening.trouble
        if trouble is not None:
            waiting = trouble(event)
            if waiting is not None:
                await waiting


class Billing(Listening, name="billing"):
    @subscribe("orders", key="all")
    async def on_order(self, event: StreamEvent) -> None:
        await self._hears(event)


class Account(Listening, name="account"):
    @subscribe("orders", key=PUBLISHER_KEY)
    async def _on_order(self, event: StreamEvent) -> None:
        await self._hears(event)


class Newcomer(Listening, name="newcomer"):
    @subscribe("orders", key="x", after="now")
    async def on_order(self, event: StreamEvent) -> None:
        await self._hears(event)


class Alarm(Listening, name="alarm"):
    @subscribe(MISSED, key="all")
    async def on_missed(self, event: StreamEvent) -> None:
        await self._hears(event)


def a_world(clock: VirtualClock, *grains: type[Grain[Any]], url: str | None = None, **options: Any) -> World:
    Listening.begun.clear()
    Listening.trouble = None
    streams = StreamOptions(**options)
    return World(clock, url, grains=(Shop, Bell, *grains), options=SiloOptions(streams=streams))


async def heard(world: World, cls: type[Listening], key: str = "all") -> list[Any]:
    """What a listener's committed state holds."""
    return await world.silo.grain(cls, key).values()


async def until(clock: VirtualClock, fact: Callable[[], bool], seconds: float = 60.0) -> None:
    """Let virtual time pass until ``fact`` holds."""
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110 - each step is a jump of the virtual clock
            await asyncio.sleep(0.01)
