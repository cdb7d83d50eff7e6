"""Effects belong to the turn that asks for them, and to no task that outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest

from farro.client.errors import GrainDestroyed, TurnEnded
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World, s


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    world = World(virtual)
    async with world.up():
        yield world


EFFECTS: dict[str, Callable[[Bell], Any]] = {
    "schedule": lambda bell: bell.schedule(bell.ring, after=s(10)),
    "unschedule": lambda bell: bell.unschedule("ring"),
    "unschedule_all": lambda bell: bell.unschedule_all("ring"),
    "destroy": lambda bell: bell.destroy(),
    "register": lambda bell: bell.register_or_update_reminder("x", timedelta(seconds=5)),
    "unregister": lambda bell: bell.unregister_reminder("x"),
    "reminder": lambda bell: bell.reminder("ring"),
    "reminders": lambda bell: bell.reminders(),
    "turn": lambda bell: bell.turn,
    "tick": lambda bell: bell.tick,
}


async def attempt(bell: Bell, effect: str) -> None:
    result = EFFECTS[effect](bell)
    if asyncio.iscoroutine(result):
        await result


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_task_that_outlives_its_turn_may_not_ask_for_effects(world: World, effect: str) -> None:
    go_on = asyncio.Event()

    async def later(bell: Bell) -> None:
        await go_on.wait()
        with pytest.raises(TurnEnded, match=r"'do'.*ended"):
            await attempt(bell, effect)

    (task,) = await world.do("b", lambda bell: [asyncio.ensure_future(later(bell))])
    go_on.set()
    await task
    assert await world.rows("b") == []


@pytest.mark.parametrize("effect", EFFECTS)
async def test_outside_any_turn_there_are_no_effects(world: World, effect: str) -> None:
    bell = await world.do("b", lambda bell: bell)
    with pytest.raises(TurnEnded, match="no turn is running"):
        await attempt(bell, effect)


async def test_a_grain_object_takes_no_effects_from_the_turn_of_another(world: World) -> None:
    other = await world.do("other", lambda bell: bell)

    async def meddle(bell: Bell) -> None:
        with pytest.raises(TurnEnded, match="another grain"):
            other.schedule(other.ring, after=s(10))

    await world.do("b", meddle)
    assert await world.rows("other") == []


async def test_a_task_awaited_inside_the_turn_is_part_of_it(world: World) -> None:
    async def plan(bell: Bell) -> None:
        async with asyncio.TaskGroup() as group:
            for key in "abc":
                group.create_task(schedule_late(bell, key))

    async def schedule_late(bell: Bell, key: str) -> None:
        await asyncio.sleep(1)
        bell.schedule(bell.ring, after=s(1000), key=key)

    await world.do("b", plan)
    assert [row.key for row in await world.rows("b")] == ["a", "b", "c"]


async def test_after_destroy_the_same_turn_takes_no_further_effects(world: World) -> None:
    def contradict(bell: Bell) -> None:
        bell.destroy()
        with pytest.raises(GrainDestroyed):
            bell.schedule(bell.ring, after=s(10))

    await world.do("b", contradict)
    assert await world.rows("b") == []


async def test_effects_asked_before_destroy_in_the_same_turn_go_with_it(world: World) -> None:
    def plan_and_destroy(bell: Bell) -> None:
        bell.schedule(bell.ring, after=s(10))
        bell.destroy()

    await world.do("b", plan_and_destroy)
    await asyncio.sleep(60)
    assert (await world.rows("b"), world.rungs) == ([], [])


async def test_the_turn_knows_its_caller_and_its_deadline(world: World) -> None:
    seen: dict[str, Any] = {}

    def inner(bell: Bell) -> None:
        seen["caller"] = bell.turn.caller
        seen["left"] = bell.turn.deadline - asyncio.get_running_loop().time()

    world.code[100] = inner

    async def outer(bell: Bell) -> None:
        seen["outer caller"] = bell.turn.caller
        await asyncio.sleep(10)
        await bell.grain(Bell, "inner").do(100)

    await world.do("outer", outer)
    assert seen == {"outer caller": None, "caller": "bell/outer.do", "left": pytest.approx(20)}
