"""Hundreds of reminders of all kinds on virtual time, under crashes and a store that fails, against a model.

The grain keeps a ledger of its ticks in its state, so the ledger holds exactly what was committed.  The model
knows each grid and says what the ledger may hold: every instant delivered once, or counted as missed, never
both, never twice, never early, none forgotten.

Replayable: a failure prints its seed; ``FARRO_SEED=n`` runs that seed alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import pytest

from farro.client.clock import from_us, to_us
from farro.client.errors import FarroError
from farro.client.reminders import MissedReminderAction
from farro.providers.rows import ReminderRow
from farro.silo.grains.grain import Grain
from farro.silo.schedules.schedule import Schedule, count_between, next_due
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.kit import World, reminder_options, s

SEEDS = [int(os.environ["FARRO_SEED"])] if "FARRO_SEED" in os.environ else [1, 2, 3]
BELLS = 60
FIRE, SKIP, NOTIFY, ALL = MissedReminderAction

Entry = list[int]  # occurrence, due instant, missed count that the tick carried


@dataclass
class LedgerState:
    ticks: dict[str, list[Entry]] = field(default_factory=dict)


class Ledger(Grain[LedgerState], name="ledger"):
    simulation: ClassVar[Simulation]

    async def plan(self, number: int) -> None:
        self.simulation.plans[number](self)

    async def ring(self, name: str) -> None:
        tick = self.tick
        assert tick is not None
        simulation = self.simulation
        ticks = self.state.ticks.setdefault(name, [])
        if any(entry[0] == tick.occurrence for entry in ticks):
            simulation.faults.append(f"{tick.id} was delivered again after its commit")
        if simulation.clock.now() < to_us(tick.due_at):
            simulation.faults.append(f"{tick.id} came early")
        if (self.key, name) in simulation.cancelled:
            simulation.faults.append(f"{tick.id} began after its cancel had committed")
        if (self.key, name) in simulation.running:
            simulation.faults.append(f"{tick.id} overlaps another tick of its reminder")
        ticks.append([tick.occurrence, to_us(tick.due_at), tick.missed_count])
        simulation.executed += 1
        simulation.running.add((self.key, name))
        try:
            await simulation.handle()
        finally:
            simulation.running.discard((self.key, name))

    async def cancel(self, name: str) -> None:
        self.unschedule("ring", key=name)

    async def ledger(self) -> dict[str, list[Entry]]:
        return self.state.ticks


@dataclass(frozen=True)
class Grid:
    """What the model knows of one reminder."""

    schedule: Schedule
    action: MissedReminderAction
    registered: ReminderRow


class Simulation:
    def __init__(self, clock: VirtualClock, seed: int) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.plans: dict[int, Callable[[Ledger], None]] = {}
        self.faults: list[str] = []
        self.cancelled: set[tuple[str, str]] = set()
        self.running: set[tuple[str, str]] = set()
        self.grids: dict[tuple[str, str], Grid] = {}
        self.executed = 0
        self.calm = True
        self.world = World(
            clock,
            grains=(Ledger,),
            options=reminder_options(base_bucket_size=24, permits_per_cpu=1.0, poll_interval=s(20)),
            seed=seed,
        )
        Ledger.simulation = self

    # ---- what may happen

    def a_schedule(self) -> dict[str, Any]:
        random = self.random
        match random.randrange(6):
            case 0:
                when: dict[str, Any] = {"after": s(random.uniform(0, 4000))}
            case 1 | 2:
                when = {"every": s(random.choice([20, 45, 60, 600, 1800.5]))}
            case 3:
                when = {"cron": random.choice(["*/40 * * * * *", "0 */7 * * * *", "30 0 * * * *"])}
            case 4:
                when = {"every": s(random.choice([10, 30])), "times": random.randint(1, 40)}
            case _:
                when = {
                    "every": s(60),
                    "jitter": s(random.randint(1, 50)),
                    "until": self.clock.at() + s(3600),
                }
        when["missed"] = FIRE if "after" in when else random.choice(list(MissedReminderAction))
        when["priority"] = random.choice([0, 1, 1, 2])
        return when

    async def handle(self) -> None:
        if self.calm:
            return
        match self.random.randrange(40):
            case 0:
                raise OSError("the handler had a bad day")
            case 1:
                await asyncio.sleep(self.random.uniform(1, 20))
            case 2 | 3 | 4:
                await asyncio.sleep(self.random.uniform(0.0, 0.5))

    def policy(self, verb: str) -> Fault | None:
        if self.calm:
            return None
        chance = self.random.random()
        if verb == "commit":
            return {0: Fault.LOST_BEFORE, 1: Fault.LOST_AFTER, 2: Fault.STRAGGLES, 3: Fault.UNAVAILABLE}.get(
                int(chance * 50)
            )
        if verb in ("poll", "reminder", "load", "renew"):
            return Fault.UNAVAILABLE if chance < 0.04 else None
        return None

    # ---- the run

    async def start(self) -> None:
        await self.world.start()
        self.world.store.policy = self.policy
        slow = self.random.choice([0.0, 0.002, 0.05])
        self.world.store.delay("commit", slow, answer=slow)
        for verb in ("poll", "reminder"):
            self.world.store.delay(verb, 0.0, answer=self.random.choice([0.0, 0.05, 5.0]))

    async def register(self) -> None:
        for number in range(BELLS):
            key = f"g{number}"
            whens = {f"r{index}": self.a_schedule() for index in range(self.random.randint(1, 3))}

            def plan(ledger: Ledger, whens: dict[str, Any] = whens) -> None:
                for name, when in whens.items():
                    ledger.schedule(ledger.ring, name, key=name, **when)

            self.plans[number] = plan
            await self.world.silo.grain(Ledger, key).plan(number)
            for row in await self.world.store.inner.reminders_of("ledger", key):
                self.grids[key, str(row.key)] = Grid(
                    Schedule.of_row(row), MissedReminderAction(row.action), row
                )

    async def cancel_some(self) -> None:
        """Cancel a reminder, again and again until it is acknowledged; from then on it must be silent."""
        key, name = self.random.choice(list(self.grids))
        grain = self.world.silo.grain(Ledger, key)
        for _ in range(20):
            try:
                await grain.cancel(name)
            except FarroError:
                await asyncio.sleep(0.1)
            else:
                self.cancelled.add((key, name))
                return

    async def live(self, rounds: int) -> None:
        self.calm = False
        for _ in range(rounds):
            await asyncio.sleep(self.random.uniform(1, 120))
            if self.random.random() < 0.6:
                await self.cancel_some()
            if self.random.random() < 0.7:
                await self.world.crash()
                self.running.clear()
                self.clock.jump(s(self.random.choice([0, 0, 0.3, 8, 45, 400, 2000])))
                await self.start()
        self.calm = True
        for verb in ("commit", "poll", "reminder"):
            self.world.store.delay(verb, 0.0)
        await asyncio.sleep(300)

    async def check(self) -> None:
        store = self.world.store.inner
        now = self.clock.now()
        for (key, name), grid in self.grids.items():
            ledger = (await self.world.silo.grain(Ledger, key).ledger()).get(name, [])
            row = await store.reminder("ledger", key, f"ring:{name}")
            for problem in problems(grid, ledger, row, now, (key, name) in self.cancelled):
                self.faults.append(f"{key} {name} {grid.action.name} {grid.schedule}: {problem}")


def problems(
    grid: Grid, ledger: list[Entry], row: ReminderRow | None, now: int, cancelled: bool
) -> list[str]:
    """What of the ledger and the row contradicts the grid."""
    found: list[str] = []
    schedule, first = grid.schedule, grid.registered.next_due_at
    assert first is not None
    occurrences, dues = [entry[0] for entry in ledger], [entry[1] for entry in ledger]
    if occurrences != sorted(set(occurrences)) or dues != sorted(set(dues)):
        found.append(f"occurrences or instants repeat or go back: {ledger}")
    if any(due != first and next_due(schedule, due - 1) != due for due in dues):
        found.append("a tick lies off the grid")
    if cancelled:
        return found if row is None else [*found, "the row outlived its cancel"]
    if schedule.is_one_shot:
        if (len(ledger), row) != (1, None) and first + 300_000_000 < now:
            found.append(f"a one-shot was delivered {len(ledger)} times, row {row}")
        return found
    if grid.registered.times_left is not None and len(ledger) > grid.registered.times_left:
        found.append(f"{len(ledger)} ticks instead of {grid.registered.times_left}")
    if row is not None:
        if row.status != "scheduled" or row.wake_at is None or row.wake_at <= now - 2_000_000:
            found.append(f"left behind: next due {row.next_due_at and from_us(row.next_due_at)}, {row}")
        else:
            found += gaps(grid, ledger, row)
    elif grid.registered.times_left is None and schedule.until_at is None:
        found.append("the row of an endless reminder is gone")
    elif grid.registered.times_left not in (None, len(ledger)):
        found.append(f"finished after {len(ledger)} ticks instead of {grid.registered.times_left}")
    return found


def gaps(grid: Grid, ledger: list[Entry], row: ReminderRow) -> list[str]:
    """Instants between ticks must be counted: by the tick before (FIRE_IMMEDIATELY) or by the one after."""
    found = []
    assert row.next_due_at is not None
    steps = [(-1, 0), *((due, missed) for _, due, missed in ledger), (row.next_due_at, row.missed_count)]
    for (before, carried_before), (after, carried_after) in pairwise(steps):
        between = count_between(grid.schedule, before, after - 1)
        if grid.action is FIRE:
            # a tick that was missed itself counts itself, too
            right = between in (carried_before, carried_before - 1)
        else:
            right = between == carried_after
        if not right:
            found.append(
                f"between {from_us(max(before, 0))} and {from_us(after)} lie {between} instants, "
                f"counted {carried_before} before and {carried_after} after"
            )
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_occurrence_is_delivered_and_committed_once_or_accounted_for(seed: int) -> None:
    async def main(clock: VirtualClock) -> Simulation:
        simulation = Simulation(clock, seed)
        await simulation.start()
        await simulation.register()
        await simulation.live(rounds=10)
        await simulation.check()
        await simulation.world.stop()
        return simulation

    simulation = run_virtual(main)
    assert simulation.executed > 500
    assert not simulation.faults, f"FARRO_SEED={seed}\n" + "\n".join(simulation.faults[:20])
