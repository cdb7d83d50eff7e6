"""How a silo ends: what runs may finish, what does not is cut, nobody waits for ever."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from farro.client.errors import CommitOutcomeUnknown, FarroError, SiloStopping, SiloUnavailable
from farro.silo.grains.grain import Grain
from farro.silo.options import SiloOptions
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.kit import Bell, World, s


@dataclass
class TallyState:
    total: int = 0


class Tally(Grain[TallyState], name="tally"):
    async def add(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        self.state.total += 1
        return self.state.total

    async def add_through(self, other: str, seconds: float) -> int:
        await asyncio.sleep(seconds)
        answer = await self.grain(Tally, other).add(seconds)
        self.state.total += 1
        return answer

    async def add_bounded(self, seconds: float) -> int:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(seconds)
        except TimeoutError:
            pass
        return await self.add(0.0)

    async def never(self) -> None:
        await asyncio.get_running_loop().create_future()


def a_world(clock: VirtualClock) -> World:
    return World(clock, grains=(Tally, Bell), options=SiloOptions(stop_timeout=timedelta(seconds=5)))


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    world = a_world(virtual)
    async with world.up():
        yield world


def now() -> float:
    return asyncio.get_running_loop().time()


async def total(world: World, key: str) -> int:
    """As the store has it, read by another silo."""
    await world.start()
    try:
        return await world.silo.grain(Tally, key).add(0.0) - 1
    finally:
        await world.silo.stop()


async def test_turns_in_flight_finish_and_their_callers_get_their_answers(world: World) -> None:
    call = asyncio.ensure_future(world.silo.grain(Tally, "t").add(3.0))
    await asyncio.sleep(1)
    await world.stop()
    assert now() == pytest.approx(3.0, abs=0.1)
    assert await call == 1
    assert await total(world, "t") == 1


async def test_calls_that_were_accepted_and_wait_in_a_mailbox_are_served_before_the_end(
    world: World,
) -> None:
    tally = world.silo.grain(Tally, "t")
    calls = [asyncio.ensure_future(tally.add(0.5)) for _ in range(6)]
    await asyncio.sleep(0.1)
    await world.stop()
    assert list(await asyncio.gather(*calls)) == [1, 2, 3, 4, 5, 6]


async def test_calls_between_grains_go_on_while_the_silo_drains(world: World) -> None:
    call = asyncio.ensure_future(world.silo.grain(Tally, "t").add_through("cold", 1.0))
    await asyncio.sleep(0.5)
    await world.stop()
    assert await call == 1
    assert await total(world, "cold") == 1


async def test_a_turn_that_does_not_end_is_cut_at_the_stop_timeout_and_commits_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    tally = world.silo.grain(Tally, "t")
    calls = [asyncio.ensure_future(tally.add(1000.0)) for _ in range(5)]
    await asyncio.sleep(1)
    began = now()
    with caplog.at_level(logging.WARNING, "farro.silo"):
        await world.stop()
    assert now() - began == pytest.approx(5.0, abs=0.5)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], SiloStopping)
    assert results[0].retry_safe
    assert all(isinstance(result, SiloStopping | SiloUnavailable) for result in results)
    assert any("stop_timeout" in record.getMessage() for record in caplog.records)
    assert await total(world, "t") == 0


async def test_new_calls_are_refused_while_the_silo_stops_and_afterwards(world: World) -> None:
    running = asyncio.ensure_future(world.silo.grain(Tally, "t").add(3.0))
    await asyncio.sleep(1)
    stopping = asyncio.ensure_future(world.stop())
    await asyncio.sleep(1)
    with pytest.raises(SiloStopping) as raised:
        await world.silo.grain(Tally, "late").add(0.0)
    assert (raised.value.turn_ran, raised.value.retry_safe) == (False, True)
    await stopping
    await running
    with pytest.raises(SiloStopping):
        await world.silo.grain(Tally, "t").add(0.0)


async def test_no_tick_begins_once_the_silo_stops_and_a_running_one_finishes(world: World) -> None:
    async def slow(bell: Bell) -> None:
        await asyncio.sleep(3.0)

    world.handler = slow
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    await world.do("c", lambda bell: bell.schedule(bell.ring, after=s(12)))
    await asyncio.sleep(11)
    await world.stop()
    await asyncio.sleep(60)
    assert [rung.key for rung in world.rungs] == ["b"]
    world.handler = None
    async with world.up():
        assert await world.rung("b") == 1
        await asyncio.sleep(1)
        assert sorted(rung.key for rung in world.rungs[1:]) == ["b", "c"]


async def test_a_store_that_never_answers_does_not_hold_up_the_stop(world: World) -> None:
    await world.silo.grain(Tally, "t").add(0.0)
    world.store.freeze("commit")
    tally = world.silo.grain(Tally, "t")
    calls = [asyncio.ensure_future(tally.add(0.0)) for _ in range(3)]
    await world.store.until_frozen("commit")
    began = now()
    await world.stop()
    assert now() - began < 6
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], CommitOutcomeUnknown)
    assert all(isinstance(result, FarroError) for result in results)


async def test_stop_is_repeatable_and_a_stopped_silo_does_not_start_again(world: World) -> None:
    await world.stop()
    await world.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await world.silo.start()


async def test_a_start_that_fails_half_way_leaves_nothing_open(virtual: VirtualClock) -> None:
    world = a_world(virtual)
    world.store = world.provider()
    store = world.store
    store.cut()
    world.provider = lambda: store  # type: ignore[method-assign]
    with pytest.raises(Exception, match="out of reach"):
        await world.start()
    await asyncio.sleep(60)
    assert store.calls["renew"] == 0


async def test_a_crash_answers_every_caller_at_once(world: World) -> None:
    tally = world.silo.grain(Tally, "t")
    calls = [asyncio.ensure_future(tally.add(1.0)) for _ in range(10)]
    await asyncio.sleep(0.5)
    began = now()
    await world.crash()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert now() - began < 0.5
    assert all(isinstance(result, FarroError) for result in results)


# ---- ACT-015, ACT-016: what asyncio of Python 3.11 makes of it


@pytest.mark.parametrize("seed", range(12))
def test_stop_ends_within_its_limit_with_500_calls_inside_their_timeouts(seed: int) -> None:
    """At the very moment when answers and time limits arrive: seeds move the stop through that moment."""

    async def main(clock: VirtualClock) -> float:
        world = a_world(clock)
        async with world.up() as silo:
            calls = [
                asyncio.ensure_future(silo.grain(Tally, str(number % 250)).add_bounded(1.0))
                for number in range(500)
            ]
            await asyncio.sleep(1.0)
            for _ in range(seed):
                await asyncio.sleep(0)
            began = now()
            await silo.stop()
            took = now() - began
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, int | FarroError) for result in results)
            return took

    assert run_virtual(main) <= 6.0


def test_no_loop_of_the_runtime_is_lost_to_the_garbage_collector() -> None:
    """asyncio keeps only weak references to tasks; every loop of a silo must outlive any collection."""

    async def main(clock: VirtualClock) -> tuple[int, int, int]:
        world = a_world(clock)
        async with world.up() as silo:
            await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(1)))
            for _ in range(120):
                await silo.grain(Tally, "t").add(0.25)
                gc.collect()
                await asyncio.sleep(0.25)
            await asyncio.sleep(0.5)
            return len(world.rungs), await silo.grain(Tally, "t").add(0.5), world.store.calls["renew"]

    gc.freeze()  # what is older than this test need not be looked through 120 times
    try:
        rungs, calls, renewals = run_virtual(main)
    finally:
        gc.unfreeze()
    assert (rungs, calls, renewals) == (60, 121, 7)


# ---- slow turns


async def test_a_turn_older_than_ten_seconds_is_logged_once_with_grain_method_and_age(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = world.silo.grain(Tally, "stuck")
    with caplog.at_level(logging.WARNING, "farro.turns"):
        with pytest.raises(FarroError):
            await stuck.never()
        assert await world.silo.grain(Tally, "other").add(0.0) == 1
        await asyncio.sleep(600)
    (line,) = [record.getMessage() for record in caplog.records if "still running" in record.getMessage()]
    assert "grain=tally/stuck" in line
    assert "method=never" in line
    assert "after 1" in line
