"""A small world for tests of the silo: one store, silos that come and go on it, and a grain that rings."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any, ClassVar

from farro.client.clock import duration_us, to_us
from farro.client.codec import Codec
from farro.client.identity import partition_of
from farro.client.reminders import Tick, TickStatus
from farro.providers.conformance.made import a_reminder
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.providers.opening import open_provider
from farro.providers.rows import Commit, Outcome, PutReminder, ReminderRow
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.options import ReminderOptions, SiloOptions
from farro.silo.reminders.machine_load import MachineLoad
from farro.silo.testing.faulty_provider import FaultyProvider, crash
from farro.silo.testing.virtual_time import VirtualClock, VirtualLoop, hold_time

ARGS_NONE = Codec(None).pack_wire([[], None])  # no arguments, as a row holds them


def s(value: float) -> timedelta:
    """Seconds, in words short enough for a list of schedules."""
    return timedelta(seconds=value)


@dataclass(frozen=True)
class Rung:
    """One tick whose code ran."""

    key: str
    operation: str
    args: tuple[Any, ...]
    tick: Tick
    status: TickStatus | None = None

    @property
    def due_at(self) -> datetime:
        return self.tick.due_at

    @property
    def fired_at(self) -> datetime:
        return self.tick.fired_at


@dataclass
class BellState:
    rung: int = 0
    note: Any = None


class Bell(Grain[BellState], name="bell"):
    """Counts its ticks in its state, writes them down in its world; ``do`` runs a test's code in a turn."""

    world: ClassVar[World]

    async def do(self, token: int) -> None:
        world = self.world
        result = world.code.pop(token)(self)
        world.results[token] = (await result) if inspect.isawaitable(result) else result

    async def ring(self, *args: Any) -> None:
        await self._rings("ring", args)

    async def toll(self, *args: Any) -> None:
        await self._rings("toll", args)

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        await self._rings(name, (), status)

    async def _rings(self, operation: str, args: tuple[Any, ...], status: TickStatus | None = None) -> None:
        tick = self.tick
        assert tick is not None, "a tick's turn has a tick"
        self.world.rungs.append(Rung(self.key, operation, args, tick, status))
        self.state.rung += 1
        if self.world.handler is not None:
            result = self.world.handler(self)
            if inspect.isawaitable(result):
                await result


@dataclass
class World:
    """A store and what happens on it.  ``url`` None: a store in memory that outlives its silos."""

    clock: VirtualClock
    url: str | None = None
    grains: Iterable[type[Grain[Any]]] = (Bell,)
    options: SiloOptions = field(default_factory=SiloOptions)
    handler: Callable[[Bell], Any] | None = None
    rungs: list[Rung] = field(default_factory=list)
    code: dict[int, Callable[[Any], Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        Bell.world = self
        self._memory = MemoryStore()
        self._tokens = count()
        self._random = Random(self.seed)

    def provider(self) -> FaultyProvider:
        if self.url is None:
            return FaultyProvider(MemoryProvider(self._memory))
        return FaultyProvider(hold_time(open_provider(self.url)))

    async def start(self) -> Silo:
        """A new silo on the store."""
        self.store = self.provider()
        self.silo = Silo(
            self.grains,
            self.store,
            options=self.options,
            clock=self.clock,
            random=Random(self._random.getrandbits(64)),
            machine_load=lambda: MachineLoad(cpus=4, memory_load=0.0),
        )
        await self.silo.start()
        return self.silo

    async def stop(self) -> None:
        await self.silo.stop()

    async def crash(self) -> None:
        await crash(self.silo)

    @asynccontextmanager
    async def up(self) -> AsyncGenerator[Silo]:
        """A silo while the block runs; a stop at its end, unless it crashed inside."""
        silo = await self.start()
        try:
            yield silo
        finally:
            await self.silo.stop()

    async def do(self, key: str, code: Callable[[Bell], Any]) -> Any:
        """Run ``code`` in a turn of the bell ``key``; answers what it returned once the turn committed."""
        token = next(self._tokens)
        self.code[token] = code
        await self.silo.grain(Bell, key).do(token)
        return self.results.pop(token)

    async def rows(self, key: str) -> list[ReminderRow]:
        """The reminder rows of a bell as committed."""
        return await self.store.inner.reminders_of("bell", key)

    async def row(self, key: str, name: str) -> ReminderRow:
        found = await self.store.inner.reminder("bell", key, name)
        assert found is not None, f"there is no reminder {name!r} of bell/{key}"
        return found

    async def write(self, *rows: ReminderRow) -> None:
        """Put rows into the table behind the running silo's back, as an import or an operator would."""
        for start in range(0, len(rows), 500):
            batch = [
                Commit(
                    partition=row.partition,
                    epoch=self.silo.rooms.core.ownership.epoch(row.partition),
                    grain_type=row.grain_type,
                    grain_key=row.grain_key,
                    reminders=(PutReminder(row),),
                )
                for row in rows[start : start + 500]
            ]
            verdicts = await self.store.inner.commit(batch, self.silo.number, self.clock.now())
            assert [verdict.outcome for verdict in verdicts] == [Outcome.COMMITTED] * len(batch)

    async def rung(self, key: str) -> int:
        """The committed count of a bell's ticks."""
        return int(await self.do(key, lambda bell: bell.state.rung))

    def fired_at(self) -> list[datetime]:
        return [rung.fired_at for rung in self.rungs]

    def due_at(self) -> list[datetime]:
        return [rung.due_at for rung in self.rungs]


def bell_row(grain_key: str, due_at: datetime, **fields: Any) -> ReminderRow:
    """A row of a bell that is owed at ``due_at``: a one-shot unless ``fields`` say otherwise."""
    due = to_us(due_at)
    period = fields.pop("period", None)
    row = a_reminder(
        grain_key,
        "ring",
        grain_type="bell",
        partition=partition_of("bell", grain_key, 64),
        operation="ring",
        args=ARGS_NONE,
        start_at=due,
        period_us=None if period is None else duration_us(period),
        next_due_at=due,
        wake_at=due,
    )
    return replace(row, **fields)


def reminder_options(**options: Any) -> SiloOptions:
    return SiloOptions(reminders=ReminderOptions(**options))


ONE_PERMIT = {"permits_per_cpu": 0.25}  # the world's machine has four CPUs


def set_clock(clock: VirtualClock, at: datetime) -> None:
    """The wall clock shows ``at`` from now on."""
    clock.jump(timedelta(microseconds=to_us(at) - clock.now()))


def stall(clock: VirtualClock, length: float) -> None:
    """The process stands still for ``length`` seconds (SIGSTOP, or a blocked loop): both clocks go on."""
    loop: VirtualLoop = clock._loop
    loop._jump(length)
