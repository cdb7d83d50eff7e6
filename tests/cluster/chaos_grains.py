"""The grains that the chaos harness serves: everything they do is written down, so that it can be checked."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from datetime import timedelta

from farro.client.clock import to_us
from farro.client.reminders import MissedReminderAction
from farro.silo import Grain, readonly

MODULE = __name__


@dataclass
class LedgerState:
    entries: list[tuple[int, int, int]] = field(default_factory=list)  # call, amount, the process that ran it


class Ledger(Grain[LedgerState], name="ledgers"):
    """Writes down every call that it was given."""

    async def add(self, call: int, amount: int) -> int:
        """The place of its entry, from 0."""
        self.state.entries.append((call, amount, os.getpid()))
        return len(self.state.entries) - 1

    @readonly
    async def length(self) -> int:
        return len(self.state.entries)

    async def add_slowly(self, call: int, seconds: float) -> int:
        """A turn that takes its time; its entry has no amount."""
        await asyncio.sleep(seconds)
        return await self.add(call, 0)

    @readonly
    async def process(self) -> int:
        """Which process it lives in."""
        return os.getpid()


class Relay(Grain, name="relays"):
    """Lives wherever its key puts it, and calls a ledger that may live on another silo."""

    async def add(self, ledger: str, call: int, amount: int) -> int:
        return await self.grain(Ledger, ledger).add(call, amount)


@dataclass
class ChimeState:
    # occurrence, due, began (both microseconds since the epoch), the tick's missed_count, the process
    ticks: list[tuple[int, int, int, int, int]] = field(default_factory=list)


class Chime(Grain[ChimeState], name="chimes"):
    """Writes down each tick of its one reminder, and when it came by the clock of machine and database."""

    async def start(self, period_s: float, times: int, action: MissedReminderAction) -> None:
        """Begin to ring.  May be repeated until it is answered: the first one counts."""
        if not self.state.ticks:
            self.schedule(
                self.ring,
                every=timedelta(seconds=period_s),
                times=times,
                missed=action,
                if_missing=True,
            )

    async def ring(self) -> None:
        tick = self.tick
        assert tick is not None
        began = time.time_ns() // 1000
        self.state.ticks.append((tick.occurrence, to_us(tick.due_at), began, tick.missed_count, os.getpid()))

    @readonly
    async def rung(self) -> int:
        return len(self.state.ticks)


class Hammer(Grain, name="hammers"):
    """For measuring: calls others as fast as it goes, from inside its silo."""

    @readonly
    async def process(self) -> int:
        return os.getpid()

    @readonly
    async def touch(self, number: int) -> int:
        return number

    async def hammer(self, others: list[str], seconds: float) -> int:
        """How many calls it made, one after the other."""
        grains = [self.grain(Hammer, key) for key in others]
        until = time.perf_counter() + seconds
        made = 0
        while time.perf_counter() < until:
            await grains[made % len(grains)].touch(made)
            made += 1
        return made
