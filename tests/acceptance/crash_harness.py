"""Kill -9 under load, round after round; what the clients were told is held against what the file says.

``python -m tests.acceptance.crash_harness --rounds 50`` runs the full proof; the suite runs a few rounds.

The load: callers, each the only one of its counter, write down every number they get back, and reminders on
a fast clock tick meanwhile.  After each kill the file is read without a silo:

* a counter stands at the last number its caller was told, or at one more where a call was cut off: less is a
  lost turn, more is a turn counted twice;
* a bell has each instant of its grid once, in order, from the first to the last settled one: a gap is a lost
  tick, a repeated one was counted twice.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from farro.client import Client
from farro.client.clock import SystemClock, from_us
from farro.client.codec import Codec
from farro.client.errors import FarroError
from farro.providers import open_provider
from farro.providers.rows import ReminderFilter
from tests.acceptance.processes import GRAINS, SiloProcess, silos
from tests.acceptance.served_grains import Bell, Counter

SPEED = 3.0  # schedule seconds in a second: a bell of one second ticks three times in one
START = datetime(2026, 3, 1, tzinfo=UTC)
CALLERS = 64
BELLS = 20
TURNS = (20, 1_000)  # how many turns of a round are acknowledged before the kill


@dataclass
class Told:
    """What a counter's caller knows: the last number it was told, and whether a call is out."""

    value: int = 0
    out: bool = False


@dataclass
class Faults:
    """What went wrong, in sums over all rounds."""

    turns_lost: int = 0
    turns_twice: int = 0
    ticks_lost: int = 0
    ticks_twice: int = 0

    @property
    def none(self) -> bool:
        return not any(vars(self).values())


@dataclass
class Report:
    rounds: int = 0
    turns: int = 0
    ticks: int = 0
    cut_off: int = 0
    passed_over: int = 0  # what FIRE_ALL left out, more than a hundred being owed; its ticks count it
    faults: Faults = field(default_factory=Faults)

    def __str__(self) -> str:
        faults = self.faults
        return (
            f"{self.rounds} kills: {self.turns} told turns ({faults.turns_lost} lost, "
            f"{faults.turns_twice} twice), {self.ticks} ticks ({faults.ticks_lost} lost, "
            f"{faults.ticks_twice} twice, {self.passed_over} passed over), {self.cut_off} calls cut off"
        )


class Harness:
    """One store, one silo after the other on it."""

    def __init__(self, folder: Path, chance: Random) -> None:
        self._folder = folder
        self._store = f"sqlite:///{folder / 'farro.db'}"
        self._chance = chance
        self.told = {f"c{number}": Told() for number in range(CALLERS)}
        self._clock_at = START
        self._enough = asyncio.Event()
        self._kill_at = 0
        self.report = Report()

    async def run(self, rounds: int, say: Callable[[str], None] = lambda text: None) -> Report:
        with silos(self._folder) as serve:
            for number in range(1, rounds + 1):
                clock = f"{self._clock_at.isoformat()}:{SPEED}"
                silo = await asyncio.to_thread(serve, GRAINS, "--store", self._store, "--demo-clock", clock)
                began = SystemClock().steady()
                await self._load(silo)
                # the next silo's clock goes on where this one's stood, and a little absence is added
                passed = (SystemClock().steady() - began) * SPEED + SPEED * 1e6
                self._clock_at += timedelta(microseconds=passed)
                self.report.rounds = number
                await self.check()
                say(str(self.report))
        return self.report

    async def _load(self, silo: SiloProcess) -> None:
        """Calls and ticks until the kill comes, at a moment that nobody chose."""
        async with Client(silo.url) as client:
            if self.report.rounds == 0:
                await asyncio.gather(
                    *(client.grain(Bell, f"b{number}").ring_every(1) for number in range(BELLS))
                )
            self._kill_at = self.report.turns + self._chance.randint(*TURNS)
            self._enough.clear()
            callers = [
                asyncio.ensure_future(self._count(client, key, told)) for key, told in self.told.items()
            ]
            await self._enough.wait()
            await asyncio.to_thread(silo.kill)
            await client.close()  # else calls that were never sent would wait for another silo
            await asyncio.gather(*callers)

    async def _count(self, client: Client, key: str, told: Told) -> None:
        counter = client.grain(Counter, key)
        while True:
            told.out = True
            try:
                told.value = await counter.add()
            except FarroError as error:
                told.out = error.turn_ran is not False
                self.report.cut_off += told.out
                return
            self.report.turns += 1
            told.out = False
            if self.report.turns >= self._kill_at:
                self._enough.set()

    async def check(self, *, first_bell_due_left_out: bool = False) -> None:
        """Read the file as the kill left it.

        ``first_bell_due_left_out`` drops one tick of what was read, to see whether that is noticed.
        """
        provider = open_provider(self._store, read_only=True)
        await provider.open(0)
        try:
            counters = await provider.load([("counters", key) for key in self.told])
            bells = await provider.load([("bells", f"b{number}") for number in range(BELLS)])
            rows = await provider.list_reminders(ReminderFilter(grain_type="bells"), 10 * BELLS)
        finally:
            await provider.close()
        codec, faults = Codec(), self.report.faults
        counter_state, bell_state = Counter.__farro_class__.state, Bell.__farro_class__.state
        assert counter_state is not None and bell_state is not None
        for told, counter in zip(self.told.values(), counters, strict=True):
            stored = 0
            if counter is not None and counter.state is not None:
                stored = counter_state.decode(counter.state, counter.layout, codec).value
            faults.turns_lost += max(0, told.value - stored)
            faults.turns_twice += max(0, stored - told.value - told.out)
            told.value = stored
        by_key = {row.grain_key: row for row in rows}
        self.report.ticks = 0
        lost = twice = passed_over = 0
        for number, bell in enumerate(bells):
            row = by_key[f"b{number}"]
            if bell is None or bell.state is None:
                lost += row.last_fire_at is not None
                continue
            state = bell_state.decode(bell.state, bell.layout, codec)
            due, counted_out = state.due, state.passed_over + row.missed_count
            if first_bell_due_left_out and not self.report.ticks:
                due = due[1:]
            must = set(grid(row.start_at, row.last_fire_at, row.period_us or 0))
            lost += max(0, len(must - set(due)) - counted_out)
            twice += len(due) - len(set(due)) + len(set(due) - must)
            passed_over += counted_out
            self.report.ticks += len(due)
        # these stand in the file from round to round, so they are not added up
        faults.ticks_lost = max(faults.ticks_lost, lost)
        faults.ticks_twice = max(faults.ticks_twice, twice)
        self.report.passed_over = passed_over


def grid(start: int, last: int | None, period: int) -> Iterator[datetime]:
    """The instants from ``start`` to ``last``, both included."""
    if last is not None:
        yield from (from_us(at) for at in range(start, last + 1, period))


async def main(rounds: int, seed: int) -> int:
    print(f"{rounds} rounds, seed {seed}: {CALLERS} callers, {BELLS} bells at {SPEED:g} ticks/s each")
    with tempfile.TemporaryDirectory(prefix="farro-crash-") as folder:
        report = await Harness(Path(folder), Random(seed)).run(rounds, print)
    print("PROVEN" if report.faults.none else "FAULTS FOUND")
    return 0 if report.faults.none else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.rounds, given.seed)))
