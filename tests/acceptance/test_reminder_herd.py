"""Reminders that all fall due in the same second, on one silo and an SQLite file.

A loop's longest round is measured in CPU time of its thread: a neighbour on the same machine does not count.
Garbage collections do.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, ClassVar

import pytest

from farro.client.clock import SystemClock
from farro.client.codec import Codec
from farro.client.identity import partition_of
from farro.providers.conformance.made import a_reminder
from farro.providers.opening import open_provider
from farro.providers.rows import Commit, ReminderRow, Verdict
from farro.silo import Grain, ReminderOptions, Silo, SiloOptions, TickStatus
from farro.silo.reminders.machine_load import MachineLoad
from tests.support.reminder_files import write_reminders

BLOCKED_MAX_S = 0.2
PROBE_S = 0.002
FULL_S = 600.0
DAY_US = 86_400_000_000


@dataclass
class HerdState:
    occurrences: list[int] = field(default_factory=list)


class Herd(Grain[HerdState], name="herd"):
    left: ClassVar[int]
    done: ClassVar[asyncio.Event]
    early: ClassVar[int]

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        assert self.tick is not None
        Herd.early += self.tick.fired_at < self.tick.due_at
        self.state.occurrences.append(self.tick.occurrence)
        Herd.left -= 1
        if not Herd.left:
            Herd.done.set()


class Bystander(Grain, name="bystander"):
    async def answer(self, number: int) -> int:
        return number


class OrderedStore:
    """Writes down the priority of each tick that is committed."""

    def __init__(self, url: str) -> None:
        self._inner = open_provider(url)
        self.order: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        verdicts = await self._inner.commit(batch, owner, now)
        self.order += [
            int(each.settle.name)
            for each, verdict in zip(batch, verdicts, strict=True)
            if each.settle is not None and verdict.settled
        ]
        return verdicts


def herd_row(number: int, due_at: int) -> ReminderRow:
    key = f"h{number}"
    return a_reminder(
        key,
        str(number % 3),
        grain_type="herd",
        partition=partition_of("herd", key, 64),
        operation="receive_reminder",
        args=b"",
        start_at=due_at,
        period_us=DAY_US,
        next_due_at=due_at,
        wake_at=due_at,
        priority=number % 3,
        registration=number + 1,
    )


class LongestRound:
    """The most CPU seconds of this thread between two looks, which the loop grants every two milliseconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        before = thread_time()
        while True:
            await asyncio.sleep(PROBE_S)
            now = thread_time()
            self.seconds = max(self.seconds, now - before)
            before = now


async def ask(silo: Silo, answered: list[int]) -> None:
    bystander = silo.grain(Bystander, "b")
    while True:
        answered.append(await bystander.answer(len(answered)))
        await asyncio.sleep(0.01)


async def stampede(path: Path, size: int, base_bucket_size: int, limit_s: float) -> None:
    Herd.left, Herd.done, Herd.early = size, asyncio.Event(), 0
    due_at = SystemClock().now() + 1_500_000 + 40 * size  # the file is written and the silo is up by then
    await write_reminders(path, (herd_row(number, due_at + number % 1000) for number in range(size)))
    options = SiloOptions(reminders=ReminderOptions(base_bucket_size=base_bucket_size))
    store: Any = OrderedStore(f"sqlite:///{path}")
    silo = Silo(
        [Herd, Bystander], store, options=options, machine_load=lambda: MachineLoad(cpus=4, memory_load=0.0)
    )
    longest, answered = LongestRound(), list[int]()
    async with silo, asyncio.TaskGroup() as group:
        beside = [group.create_task(longest.watch()), group.create_task(ask(silo, answered))]
        await asyncio.wait_for(Herd.done.wait(), limit_s)
        for task in beside:
            task.cancel()
    figures = silo.statistics().reminders
    assert figures is not None

    with closing(sqlite3.connect(path)) as file:
        states = file.execute("SELECT state, count(*) FROM grains GROUP BY state").fetchall()
        moved = file.execute("SELECT count(*) FROM reminders WHERE occurrence = 2").fetchone()
    ((state, grains),) = states
    shape = Herd.__farro_class__.state
    assert shape is not None
    assert (shape.decode(state, 1, Codec(None)), grains) == (HerdState([1]), size), "each committed once"
    assert moved == (size,)
    assert Herd.early == 0
    # (the more grains are awake, the smaller the bucket: it began with its full size)
    assert figures.bucket.size <= base_bucket_size
    assert figures.bucket.held_peak <= base_bucket_size
    assert longest.seconds < BLOCKED_MAX_S, f"the loop was blocked for {longest.seconds * 1e3:.0f} ms"
    assert len(answered) > 20, "calls are answered meanwhile"

    assert len(store.order) == size
    places = [[place for place, each in enumerate(store.order) if each == priority] for priority in range(3)]
    critical, normal, background = (median(each) for each in places)
    assert critical < size * 0.25 < normal < size * 0.75 < background, "Critical, Normal, Background"
    # what the bucket held before anything was due is started while the first full page is read
    strangers = sum(each != 0 for each in store.order[: size // 3])
    assert strangers <= 2 * base_bucket_size


async def test_five_thousand_in_the_same_second(tmp_path: Path) -> None:
    await stampede(tmp_path / "herd.db", 5_000, 256, limit_s=50)


@pytest.mark.serial
@pytest.mark.timeout(60 + FULL_S)
async def test_a_great_herd_in_the_same_second(tmp_path: Path) -> None:
    """A hundred thousand: three quarters of a minute on two quiet cores, minutes on busy ones."""
    await stampede(tmp_path / "herd.db", 100_000, 1_024, limit_s=FULL_S)
