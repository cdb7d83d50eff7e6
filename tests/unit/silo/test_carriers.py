"""Carriers: a turn's first step runs at once, and everything asyncio promises a task holds for it."""

from __future__ import annotations

import asyncio
import sys
from asyncio import tasks as asyncio_tasks
from collections.abc import AsyncIterator, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from farro.silo.carriers import DEPTH_MAX, INLINE_MAX, Carriers
from farro.silo.grains.context import empty_context
from farro.silo.tasks import TaskOwner

VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


class Runner:
    """Carriers with warm parked tasks, and a log of what ran."""

    def __init__(self) -> None:
        self.tasks = TaskOwner("turns")
        self.carriers = Carriers(self.tasks, empty_context())
        self.log: list[str] = []

    async def warm(self, count: int) -> None:
        for _ in range(count):
            self.start(self.note("warm"))
            await asyncio.sleep(0)
        await self.idle()
        self.log.clear()

    async def idle(self) -> None:
        assert await self.tasks.wait(5)
        await asyncio.sleep(0)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.carriers.start(self._whole(work), "turn")

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (Exception, asyncio.CancelledError) as error:
            self.log.append(type(error).__name__)
        self.tasks.turn_over()

    async def note(self, text: str) -> None:
        self.log.append(text)


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    found = Runner()
    await found.warm(4)
    yield found
    await found.tasks.stop()
    await found.carriers.close()


async def test_a_turn_that_does_not_wait_is_over_when_start_returns(runner: Runner) -> None:
    runner.start(runner.note("done"))
    assert runner.log == ["done"] and len(runner.tasks) == 0


async def test_a_turn_that_waits_goes_on_in_a_task_of_its_own(runner: Runner) -> None:
    gate = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        runner.log.append("before")
        runner.log.append(await gate)
        await asyncio.sleep(0)
        runner.log.append("after")

    runner.start(waits())
    assert runner.log == ["before"] and len(runner.tasks) == 1
    gate.set_result("through")
    await runner.idle()
    assert runner.log == ["before", "through", "after"]


async def test_the_current_task_is_the_turns_own_and_the_callers_comes_back(runner: Runner) -> None:
    mine = asyncio.current_task()
    seen: list[Any] = []

    async def looks() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    runner.start(looks())
    assert asyncio.current_task() is mine
    await runner.idle()
    assert seen[0] is seen[1] and seen[0] not in (None, mine)


async def test_a_timeout_ends_the_turn_and_not_its_caller(runner: Runner) -> None:
    async def slow() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(10)

    runner.start(slow())
    await runner.idle()
    assert runner.log == ["TimeoutError"]
    await asyncio.sleep(0)  # the caller was not cancelled


async def test_a_timeout_of_nothing_strikes_between_the_first_step_and_the_rest(runner: Runner) -> None:
    async def slow() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(10)

    runner.start(slow())
    await runner.idle()
    assert runner.log == ["TimeoutError"]


async def test_a_task_group_works_from_the_first_step_on(runner: Runner) -> None:
    async def group() -> None:
        async with asyncio.TaskGroup() as children:
            children.create_task(runner.note("child"))
        runner.log.append("joined")

    runner.start(group())
    await runner.idle()
    assert runner.log == ["child", "joined"]


async def test_a_cancelled_turn_hears_it_where_it_waits(runner: Runner) -> None:
    found: list[asyncio.Task[Any]] = []

    async def waits() -> None:
        task = asyncio.current_task()
        assert task is not None
        found.append(task)
        await asyncio.sleep(10)

    runner.start(waits())
    found[0].cancel()
    await runner.idle()
    assert runner.log == ["CancelledError"]


async def test_what_a_turn_sets_in_its_context_is_not_seen_by_the_next(runner: Runner) -> None:
    VARIABLE.set("the caller's")

    async def sets() -> None:
        runner.log.append(VARIABLE.get())
        VARIABLE.set("left behind")

    for _ in range(6):
        runner.start(sets())
        await asyncio.sleep(0)
    await runner.idle()
    assert runner.log == ["unset"] * 6
    assert VARIABLE.get() == "the caller's"


async def test_turns_start_inside_one_another_only_so_deep(runner: Runner) -> None:
    await runner.warm(DEPTH_MAX + 8)
    depths: list[int] = []

    async def nests(depth: int) -> None:
        depths.append(depth)
        if depth < DEPTH_MAX + 5:
            runner.start(nests(depth + 1))

    runner.start(nests(1))
    assert max(depths) <= DEPTH_MAX
    await runner.idle()
    assert max(depths) == DEPTH_MAX + 5


async def test_quick_turns_give_the_loop_its_turn(runner: Runner) -> None:
    ticks: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: ticks.append(len(runner.log)))
    for _ in range(INLINE_MAX * 3):
        runner.start(runner.note("x"))
    assert len(runner.log) <= INLINE_MAX
    await runner.idle()
    assert ticks[0] <= INLINE_MAX and len(runner.log) == INLINE_MAX * 3


async def test_stop_ends_turns_that_wait_and_close_ends_what_is_parked(runner: Runner) -> None:
    runner.start(asyncio.sleep(1000))
    await runner.tasks.stop()
    assert runner.log == ["CancelledError"]
    await runner.carriers.close()
    left = [task for task in asyncio.all_tasks() if task.get_name() in ("carrier", "turn")]
    assert left == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="eager tasks take their place")
async def test_asyncio_still_has_what_carriers_rely_on() -> None:
    loop = asyncio.get_running_loop()
    mine = asyncio.current_task()
    assert mine is not None
    asyncio_tasks._leave_task(loop, mine)
    assert asyncio.current_task() is None
    asyncio_tasks._enter_task(loop, mine)
    assert asyncio.current_task() is mine
    with pytest.raises(RuntimeError):
        asyncio_tasks._enter_task(loop, mine)
