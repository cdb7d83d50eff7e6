"""Several loops on one virtual time: order, freezing, dying, and that nothing of a dead process runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from farro.silo.testing.simulated_time import SimulatedClock, Simulation
from farro.silo.testing.virtual_time import VirtualTimeError

SECOND = 1_000_000


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    made = Simulation(1)
    yield made
    made.close()


def test_loops_share_one_time_and_take_turns_in_the_order_of_their_timers(simulation: Simulation) -> None:
    seen: list[tuple[str, int]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await asyncio.sleep(nap)
            seen.append((name, simulation.now_us))

    one, two = simulation.loop("one"), simulation.loop("two")
    tasks = [one.create_task(sleeper("one", 1.0, 1.0)), two.create_task(sleeper("two", 0.5, 1.0))]
    simulation.run_until(10 * SECOND)
    assert seen == [("two", 500_000), ("one", 1_000_000), ("two", 1_500_000), ("one", 2_000_000)]
    assert all(task.done() for task in tasks)
    assert simulation.now_us == 10 * SECOND


def test_a_frozen_process_runs_nothing_and_then_everything_that_came_meanwhile(
    simulation: Simulation,
) -> None:
    loop = simulation.loop("one")
    seen: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(simulation.now_us / SECOND)

    task = loop.create_task(tick())
    simulation.at(2 * SECOND + 1, loop.freeze)
    simulation.at(7 * SECOND, loop.thaw)
    simulation.run_until(8 * SECOND + 1)
    assert seen == [1.0, 2.0, 7.0, 8.0]
    assert not task.done()


def test_a_killed_process_runs_not_even_its_finally_before_the_end(simulation: Simulation) -> None:
    loop = simulation.loop("one")
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5.0)
        finally:
            seen.append("finally")

    task = loop.create_task(work())
    simulation.at(SECOND, loop.kill)
    simulation.run_until(20 * SECOND)
    assert seen == []
    assert not task.done()
    simulation.close()
    assert seen == ["finally"]


def test_what_a_dead_process_starts_when_it_is_closed_reaches_nobody(simulation: Simulation) -> None:
    loop = simulation.loop("one")
    seen: list[str] = []

    async def never() -> None:
        seen.append("ran")

    async def work() -> None:
        try:
            await asyncio.sleep(5.0)
        finally:
            loop.create_task(never())
            loop.call_soon(seen.append, "called")

    task = loop.create_task(work())
    simulation.run_until(SECOND)
    loop.kill()
    simulation.close()
    assert seen == []
    assert not task.done()


def test_run_answers_what_the_main_task_returns_and_says_when_it_cannot_end(simulation: Simulation) -> None:
    loop = simulation.loop("one")

    async def answer() -> int:
        await asyncio.sleep(3.0)
        return 7

    async def for_ever() -> None:
        await loop.create_future()

    assert simulation.run(loop, answer()) == 7
    assert simulation.now_us == 3 * SECOND
    with pytest.raises(VirtualTimeError, match="one: the main task has not ended at 3 s"):
        simulation.run(loop, for_ever())


def test_a_timer_a_hair_ahead_moves_time(simulation: Simulation) -> None:
    loop = simulation.loop("one")

    async def until(deadline: float) -> None:
        while (left := deadline - loop.time()) > 0:  # noqa: ASYNC110 - as a clock that may be set is waited for
            await asyncio.sleep(left)

    simulation.run(loop, until(loop.time() + 0.1234567891))
    assert simulation.now_us in (123_456, 123_457)


def test_time_outs_and_threadsafe_calls_work_between_loops(simulation: Simulation) -> None:
    one, two = simulation.loop("one"), simulation.loop("two")

    async def ask() -> str:
        answer: asyncio.Future[str] = one.create_future()
        two.call_soon_threadsafe(lambda: one.call_soon_threadsafe(answer.set_result, "two heard"))
        async with asyncio.timeout(1.0):
            said = await answer
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await one.create_future()
        return said

    assert simulation.run(one, ask()) == "two heard"
    assert simulation.now_us == SECOND


def test_what_no_code_catches_is_a_failure_of_the_run(simulation: Simulation) -> None:
    loop = simulation.loop("one")
    loop.call_soon(lambda: [][0])
    simulation.run_until(SECOND)
    assert len(simulation.failures) == 1
    assert "IndexError" in simulation.failures[0]


def test_a_thread_is_no_part_of_a_simulation(simulation: Simulation) -> None:
    loop = simulation.loop("one")
    with pytest.raises(VirtualTimeError, match="a thread is no part"):
        simulation.run(loop, asyncio.to_thread(int))


def test_a_machine_has_its_own_clock_that_may_be_set(simulation: Simulation) -> None:
    clock = SimulatedClock(simulation, skew_us=250)
    simulation.run_until(SECOND)
    assert clock.now() == simulation.start_us + SECOND + 250
    clock.jump(-SECOND)
    assert clock.now() == simulation.start_us + 250
    assert clock.steady() == SECOND


def test_a_callback_that_spins_is_told_of(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farro.silo.testing.simulated_time.STEPS_MAX", 1_000)
    loop = simulation.loop("one")

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(VirtualTimeError, match="1000 steps at 0 s"):
        simulation.run_until(SECOND)
