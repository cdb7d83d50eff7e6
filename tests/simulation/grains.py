"""The grains that the simulated clusters serve.  Whatever one of them commits says which operation it was."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from farro.client.clock import to_us
from farro.client.codec import Codec
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.client.streams import StreamEvent
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.subscriptions import subscribe
from farro.silo.testing.simulated_time import SimulatedLoop
from tests.simulation.histories import Begun, History

SLOW_TICK_S = 0.4  # of a tick that waits for something
TICK_FAILS = 0.05  # the chance that a tick's code raises


class World:
    """What grains write their history to; one run at a time."""

    history: ClassVar[History]


@dataclass
class Steps:
    """``count`` steps have committed; the last one was ``last``."""

    count: int = 0
    last: str = ""


class Ledger(Grain[Steps], name="ledger"):
    async def add(self, operation: str) -> int:
        self.state.count += 1
        self.state.last = operation
        return self.state.count

    async def move(self, operation: str, other: str) -> int:
        """A nested call, which commits by itself, before this turn's own step."""
        await self.grain(Ledger, other).add(f"{operation}/nested")
        return await Ledger.add(self, operation)

    async def tell(self, operation: str) -> int:
        """A step that is published as well."""
        self.publish("steps", operation)
        return await Ledger.add(self, operation)

    @readonly
    async def read(self, operation: str) -> int:
        return self.state.count


@dataclass
class Heard:
    count: int = 0
    last: str = ""


class Listener(Grain[Heard], name="listener"):
    """Hears of every published step once."""

    @subscribe("steps", key="all")
    async def _on_step(self, event: StreamEvent) -> None:
        self.state.count += 1
        self.state.last = f"heard {event.value}"


class Chimes(Grain[Steps], name="chimes"):
    """Reminders of every kind, each by its key."""

    async def every(self, operation: str, key: str, seconds: float, priority: int, action: int) -> None:
        self._step(operation)
        self.schedule(
            self.ring,
            key,
            key=key,
            every=timedelta(seconds=seconds),
            priority=ReminderPriority(priority),
            missed=MissedReminderAction(action),
        )

    async def once(self, operation: str, key: str, seconds: float, priority: int, action: int) -> None:
        self._step(operation)
        self.schedule(
            self.ring,
            key,
            key=key,
            after=timedelta(seconds=seconds),
            priority=ReminderPriority(priority),
            missed=MissedReminderAction(action),
        )

    async def cron(self, operation: str, key: str, seconds: float, priority: int, action: int) -> None:
        self._step(operation)
        self.schedule(
            self.ring,
            key,
            key=key,
            cron=f"*/{max(5, int(seconds) // 5 * 5 % 60)} * * * * *",
            priority=ReminderPriority(priority),
            missed=MissedReminderAction(action),
        )

    async def cancel(self, operation: str, key: str) -> None:
        self._step(operation)
        self.unschedule(self.ring, key=key)

    async def ring(self, key: str) -> None:
        history, tick = World.history, self.tick
        assert tick is not None
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        place = history.cluster.place_of(loop)
        registration, _, occurrence = tick.id.rpartition("#")[2].partition(".")
        history.begun.append(
            Begun(
                at=history.now(),
                silo=place.number,
                clock_at=place.clock.now(),
                grain=(self.id.type, self.key),
                name=tick.name,
                registration=int(registration),
                occurrence=int(occurrence),
                due_at=to_us(tick.due_at),
            )
        )
        self._step(tick.id)
        if history.random.random() < TICK_FAILS:
            raise RuntimeError("this tick fails, as the seed has it")
        if key.startswith("slow"):
            await asyncio.sleep(SLOW_TICK_S)

    def _step(self, operation: str) -> None:
        self.state.count += 1
        self.state.last = operation


GRAINS: tuple[type[Grain[Any]], ...] = (Ledger, Chimes, Listener)

CODEC = Codec(None)
STATES = {each.__farro_class__.type_name: each.__farro_class__.state for each in GRAINS}


def steps_of(grain_type: str, state: bytes, layout: int) -> Steps:
    """The state of a ledger or chimes as it was committed."""
    spec = STATES[grain_type]
    assert spec is not None
    steps: Steps = spec.decode(state, layout, CODEC)
    return steps
