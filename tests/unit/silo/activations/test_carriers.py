"""Carriers: a first step that runs at once, and everything asyncio promises a task holds for it."""

from __future__ import annotations

import asyncio
import sys
import weakref
from asyncio import tasks as asyncio_tasks
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from farro.silo.activations.carriers import FRAMES_MAX, SHELF, STEPS_PER_TICK, Carriers
from farro.silo.grains.context import empty_context
from farro.silo.tasks import TaskOwner

VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")

Work = Coroutine[Any, Any, Any]


class Runner:
    """Carriers, and a log of what ran."""

    def __init__(self) -> None:
        self.tasks = TaskOwner("turns")
        self.carriers = Carriers(self.tasks)
        self.context = empty_context()
        self.log: list[Any] = []

    async def ready(self) -> None:
        assert self.refuses(self.note("first")), "no carrier is there yet"
        await asyncio.sleep(0)

    async def idle(self) -> None:
        assert await self.tasks.wait(5)
        await asyncio.sleep(0)

    def refuses(self, work: Work) -> bool:
        guarded = self.guarded(work)
        refused = not self.carriers.run(guarded, self.context.copy())
        guarded.close()
        work.close()
        return refused

    def run(self, work: Work) -> None:
        guarded = self.guarded(work)
        assert self.carriers.run(guarded, self.context.copy())

    async def guarded(self, work: Work) -> None:
        try:
            await work
        except (Exception, asyncio.CancelledError) as error:
            self.log.append(type(error).__name__)

    async def note(self, text: str) -> None:
        self.log.append(text)

    async def task_now(self) -> None:
        """Notes the identity of the current task and keeps nothing of it."""
        self.log.append(id(asyncio.current_task()))


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    found = Runner()
    await found.ready()
    yield found
    found.carriers.close()
    await found.tasks.stop()
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []


async def test_what_waits_for_nothing_is_over_when_run_returns(runner: Runner) -> None:
    runner.run(runner.note("done"))
    assert runner.log == ["done"] and not runner.tasks.busy


async def test_what_waits_goes_on_in_a_task_of_its_own(runner: Runner) -> None:
    gate = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        runner.log.append("before")
        runner.log.append(await gate)
        await asyncio.sleep(0)
        runner.log.append("after")

    runner.run(waits())
    assert runner.log == ["before"] and runner.tasks.busy
    gate.set_result("through")
    await runner.idle()
    assert runner.log == ["before", "through", "after"]


async def test_the_current_task_is_its_own_and_the_callers_comes_back(runner: Runner) -> None:
    mine = asyncio.current_task()
    seen: list[Any] = []

    async def looks() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    runner.run(looks())
    assert asyncio.current_task() is mine
    await runner.idle()
    assert seen[0] is seen[1] and seen[0] not in (None, mine)


async def test_one_carrier_serves_many_that_leave_nothing_behind(runner: Runner) -> None:
    for _ in range(SHELF * 3):
        runner.run(runner.task_now())
    assert len(set(runner.log)) == 1


Grip = Callable[[asyncio.Task[Any]], object]


@pytest.mark.parametrize(
    "grip",
    [
        pytest.param(lambda task: task, id="a reference"),
        pytest.param(lambda task: task.cancel, id="a method"),
        pytest.param(weakref.ref, id="a weak reference"),
        pytest.param(lambda task: task.add_done_callback(print), id="a callback"),
    ],
)
async def test_a_task_that_somebody_may_still_reach_serves_nobody_else(runner: Runner, grip: Grip) -> None:
    kept: list[object] = []

    async def is_kept() -> None:
        task = asyncio.current_task()
        assert task is not None
        runner.log.append(id(task))
        kept.append(grip(task))

    runner.run(is_kept())
    for _ in range(SHELF - 1):
        runner.run(runner.task_now())
    assert runner.log.count(runner.log[0]) == 1


async def test_a_late_cancel_ends_nothing_but_the_turn_it_was_meant_for(runner: Runner) -> None:
    kept: list[asyncio.Task[Any]] = []

    async def is_kept() -> None:
        task = asyncio.current_task()
        assert task is not None
        kept.append(task)

    async def waits() -> None:
        await asyncio.sleep(0.01)
        runner.log.append("whole")

    runner.run(is_kept())
    runner.run(waits())
    kept[0].cancel()
    await runner.idle()
    assert runner.log == ["whole"]


async def test_a_step_that_cancels_itself_and_returns_has_ended_well(runner: Runner) -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        runner.log.append("ended")

    runner.run(cancels_itself())
    runner.run(runner.note("the next"))
    await runner.idle()
    assert runner.log == ["ended", "the next"]


async def test_a_step_that_cancels_itself_and_waits_hears_of_it(runner: Runner) -> None:
    inner = asyncio.get_running_loop().create_future()

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await inner

    runner.run(cancels_itself())
    await runner.idle()
    assert runner.log == ["CancelledError"]


@pytest.mark.parametrize("ticks", [0, 1, 3], ids=["before adoption", "at adoption", "later"])
async def test_a_cancel_while_it_waits_reaches_what_it_waits_for(runner: Runner, ticks: int) -> None:
    found: list[asyncio.Task[Any]] = []
    inner = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        task = asyncio.current_task()
        assert task is not None
        found.append(task)
        await inner

    runner.run(waits())
    for _ in range(ticks):
        await asyncio.sleep(0)
    found.pop().cancel()
    await runner.idle()
    assert runner.log == ["CancelledError"] and inner.cancelled()


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_timeout_ends_the_step_it_is_around(runner: Runner, seconds: float) -> None:
    async def slow() -> None:
        async with asyncio.timeout(seconds):
            await asyncio.sleep(10)

    runner.run(slow())
    await runner.idle()
    assert runner.log == ["TimeoutError"]


async def test_a_task_group_works_from_the_first_step_on(runner: Runner) -> None:
    async def group() -> None:
        async with asyncio.TaskGroup() as children:
            children.create_task(runner.note("child"))
        runner.log.append("joined")

    runner.run(group())
    await runner.idle()
    assert runner.log == ["child", "joined"]


async def test_what_is_set_in_a_context_is_not_seen_by_the_next(runner: Runner) -> None:
    VARIABLE.set("the caller's")

    async def sets() -> None:
        runner.log.append(VARIABLE.get())
        VARIABLE.set("left behind")
        if len(runner.log) == 2:
            await asyncio.sleep(0)
            runner.log.append(VARIABLE.get())

    runner.run(sets())
    runner.run(sets())
    await runner.idle()
    runner.run(sets())
    assert runner.log == ["unset", "unset", "left behind", "unset"]
    assert VARIABLE.get() == "the caller's"


async def test_a_step_begun_within_a_step_has_a_task_of_its_own(runner: Runner) -> None:
    tasks: list[int] = []

    async def inner() -> None:
        tasks.append(id(asyncio.current_task()))

    async def outer() -> None:
        runner.run(inner())
        tasks.append(id(asyncio.current_task()))

    runner.run(outer())
    assert len(set(tasks)) == 2


async def test_steps_begin_inside_one_another_only_so_deep(runner: Runner) -> None:
    depths: list[int] = []

    async def nests(depth: int) -> None:
        depths.append(depth)
        inner = nests(depth + 1)
        if not runner.carriers.run(inner, runner.context.copy()):
            inner.close()

    runner.run(nests(1))
    assert 1 < max(depths) < FRAMES_MAX // 2


async def test_a_step_far_down_a_stack_is_refused(runner: Runner) -> None:
    def down(frames: int) -> bool:
        return down(frames - 1) if frames else runner.refuses(runner.note("deep"))

    assert down(FRAMES_MAX)


async def test_after_many_steps_the_event_loop_has_its_turn(runner: Runner) -> None:
    for _ in range(STEPS_PER_TICK):
        runner.run(runner.note("x"))
    assert runner.refuses(runner.note("one too many"))
    await asyncio.sleep(0)
    runner.run(runner.note("in the next tick"))


async def test_when_all_carriers_are_out_others_are_made(runner: Runner) -> None:
    gate = asyncio.get_running_loop().create_future()
    for _ in range(SHELF):
        runner.run(_wait_for(gate))
    assert runner.refuses(runner.note("refused"))
    await asyncio.sleep(0)
    runner.run(runner.note("taken"))
    gate.set_result(None)
    await runner.idle()
    assert runner.log == ["taken"]


async def test_many_may_wait_for_the_same_future(runner: Runner) -> None:
    gate = asyncio.get_running_loop().create_future()
    for _ in range(3):
        runner.run(_wait_for(gate))
    beside = asyncio.create_task(_wait_for(gate))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set_result(None)
    await beside
    await runner.idle()
    assert runner.log == []


async def test_a_future_that_is_there_before_the_carrier_wakes_is_not_missed(runner: Runner) -> None:
    gate = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        runner.log.append(await gate)

    runner.run(waits())
    gate.set_result("there")
    await runner.idle()
    assert runner.log == ["there"]


async def test_stop_ends_what_waits(runner: Runner) -> None:
    runner.run(asyncio.sleep(1000))
    await asyncio.sleep(0)
    await runner.tasks.stop()
    assert runner.log == ["CancelledError"]


async def test_after_close_nothing_runs_at_once(runner: Runner) -> None:
    runner.carriers.close()
    assert runner.refuses(runner.note("late"))


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


async def _wait_for(gate: asyncio.Future[None]) -> None:
    await gate


async def test_a_carrier_that_was_cancelled_where_it_is_parked_is_not_used(runner: Runner) -> None:
    mine = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not mine:
            task.cancel()
    assert runner.refuses(runner.note("lost"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    runner.run(runner.note("found"))
    assert runner.log == ["found"]


async def test_carriers_cancelled_before_they_began_are_made_anew(runner: Runner) -> None:
    carriers = Carriers(runner.tasks)
    before = asyncio.all_tasks()
    for _ in range(3):
        work = runner.note("lost")
        assert not carriers.run(work, runner.context.copy())
        work.close()
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await asyncio.sleep(0)
    work = runner.note("lost")
    assert not carriers.run(work, runner.context.copy())
    work.close()
    await asyncio.sleep(0)
    assert carriers.run(runner.note("found"), runner.context.copy())
    carriers.close()


async def test_nothing_runs_at_once_while_an_exception_is_handled(runner: Runner) -> None:
    try:
        raise KeyError("another grain's secret")
    except KeyError:
        assert runner.refuses(runner.note("seen"))
    runner.run(runner.note("alone"))


async def test_a_name_given_to_the_task_goes_with_it(runner: Runner) -> None:
    async def renames() -> None:
        task = asyncio.current_task()
        assert task is not None
        runner.log.append(task.get_name())
        task.set_name("mine")

    runner.run(renames())
    runner.run(renames())
    assert runner.log == ["turn", "turn"]


if sys.version_info >= (3, 12):

    async def test_carriers_begin_eagerly_where_all_tasks_do() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        runner = Runner()
        await runner.ready()
        runner.run(runner.note("done"))
        assert runner.log == ["done"]
        runner.carriers.close()
        await asyncio.sleep(0)
