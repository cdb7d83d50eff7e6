"""What a silo changes of its process: it serves the silo, and it is put back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from datetime import timedelta

import pytest

from farro.silo import Grain, Silo, SiloOptions
from farro.silo.process import NEVER, GarbageCollection

Threshold = tuple[int, int, int]


class Sleeper(Grain, name="sleeper"):
    async def sleep(self) -> None:
        return None


@pytest.fixture(autouse=True)
def threshold() -> Iterator[Threshold]:
    found = gc.get_threshold()
    yield found
    gc.set_threshold(*found)


class Collector:
    """Python's, as far as a silo sees it: how many middle collections there were, and the full ones made."""

    def __init__(self) -> None:
        self.middle = 100
        self.made = 0

    def collect(self) -> None:
        self.made += 1
        self.middle = 0

    def count(self) -> Threshold:
        return (0, 0, self.middle)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Collector:
    made = Collector()
    monkeypatch.setattr(gc, "collect", made.collect)
    monkeypatch.setattr(gc, "get_count", made.count)
    return made


@pytest.fixture
def garbage(collector: Collector) -> GarbageCollection:
    found = GarbageCollection()
    found.take_over(100.0)
    return found


def test_full_collections_wait_for_a_quiet_moment(garbage: GarbageCollection, collector: Collector) -> None:
    for now in range(100, 700, 10):
        garbage.collect(float(now), quiet=False, put_off_s=600)
    assert collector.made == 0
    garbage.collect(699.0, quiet=True, put_off_s=600)
    assert collector.made == 1


def test_nothing_is_collected_before_python_would(garbage: GarbageCollection, collector: Collector) -> None:
    collector.middle = 3
    garbage.collect(10_000.0, quiet=True, put_off_s=600)
    assert collector.made == 0


def test_a_silo_that_is_never_quiet_collects_all_the_same(
    garbage: GarbageCollection, collector: Collector
) -> None:
    for now in range(100, 1400, 10):
        garbage.collect(float(now), quiet=False, put_off_s=600)
        collector.middle += 1
    assert collector.made == 2


async def test_a_silo_puts_the_collector_back(threshold: Threshold) -> None:
    async with Silo([Sleeper]):
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == threshold


async def test_a_silo_leaves_what_somebody_has_set_since() -> None:
    async with Silo([Sleeper]):
        gc.set_threshold(1_234, 5, 6)
    assert gc.get_threshold() == (1_234, 5, 6)


@pytest.mark.parametrize(
    "options", [SiloOptions(garbage_put_off=None), SiloOptions()], ids=["not asked", "off"]
)
async def test_a_collector_that_is_off_or_not_ours_stays_as_it_is(options: SiloOptions) -> None:
    wanted = (0, 10, 10) if options.garbage_put_off is not None else (700, 10, 10)
    gc.set_threshold(*wanted)
    async with Silo([Sleeper], options=options):
        assert gc.get_threshold() == wanted


@pytest.mark.virtual
async def test_an_idle_silo_collects(collector: Collector) -> None:
    async with Silo([Sleeper], options=SiloOptions(garbage_put_off=timedelta(minutes=1))):
        await asyncio.sleep(7)
        assert collector.made == 1
