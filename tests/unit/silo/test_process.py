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


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda *args: made.append(1))
    return made


def test_full_collections_wait_for_a_quiet_moment(collections: list[int]) -> None:
    garbage = GarbageCollection()
    garbage.take_over(100.0)
    for now in range(100, 700, 10):
        garbage.collect(float(now), quiet=False, put_off_s=600)
    assert collections == []
    garbage.collect(690.0, quiet=True, put_off_s=600)
    assert collections == [1]


def test_quiet_moments_are_not_all_spent_on_collecting(collections: list[int]) -> None:
    garbage = GarbageCollection()
    garbage.take_over(0.0)
    for now in range(600):
        garbage.collect(float(now), quiet=True, put_off_s=600)
    assert len(collections) == 9


def test_a_silo_that_is_never_quiet_collects_all_the_same(collections: list[int]) -> None:
    garbage = GarbageCollection()
    garbage.take_over(0.0)
    for now in range(0, 1300, 10):
        garbage.collect(float(now), quiet=False, put_off_s=600)
    assert len(collections) == 2


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
async def test_an_idle_silo_collects(collections: list[int]) -> None:
    async with Silo([Sleeper], options=SiloOptions(garbage_put_off=timedelta(minutes=1))):
        await asyncio.sleep(120)
    assert len(collections) >= 10
