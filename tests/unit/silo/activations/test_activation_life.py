"""From the first message to sleep: activation, failure, destruction, layouts, collection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from farro.client.errors import FarroError, GrainCallFailed, GrainDestroyed, IncompatibleState
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World, s

TINT: ContextVar[str] = ContextVar("tint", default="none")


@dataclass
class LifeState:
    count: int = 0
    born_at_count: list[int] = field(default_factory=list)


class Life(Grain[LifeState], name="life", idle_after=timedelta(seconds=60)):
    """Writes its hooks down; ``fails`` and ``slow`` say how the next hooks behave."""

    diary: ClassVar[list[str]]
    fails: ClassVar[int]
    slow: ClassVar[float]

    async def on_activate(self) -> None:
        self.diary.append(f"up {self.key}")
        await asyncio.sleep(Life.slow)
        if Life.fails:
            Life.fails -= 1
            self.state.count = 99
            raise OSError("no luck yet")
        self.state.born_at_count.append(self.state.count)

    async def on_deactivate(self, reason: str) -> None:
        self.diary.append(f"down {self.key}: {reason}")
        match self.key:
            case "raises":
                raise OSError("cannot let go")
            case "hangs":
                await asyncio.sleep(1000)
            case "takes its time":
                await asyncio.sleep(5)

    async def count(self) -> int:
        self.state.count += 1
        return self.state.count

    async def stay(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        self.state.count += 1
        return id(self)

    async def born(self) -> list[int]:
        return self.state.born_at_count

    async def end(self) -> None:
        self.destroy()

    async def end_slowly(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.destroy()

    async def sleep(self) -> None:
        self.deactivate()


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    Life.diary, Life.fails, Life.slow = [], 0, 0.0
    world = World(virtual, grains=(Life, Bell))
    async with world.up():
        yield world


@pytest.fixture
def life(world: World) -> Life:
    return world.silo.grain(Life, "l")


# ---- on_activate


async def test_on_activate_runs_once_for_many_first_callers(world: World, life: Life) -> None:
    Life.slow = 1.0
    counts = await asyncio.gather(*(life.count() for _ in range(50)))
    assert sorted(counts) == list(range(1, 51))
    assert Life.diary == ["up l"]
    assert world.store.calls["load"] == 1


async def test_a_change_in_on_activate_is_committed_before_the_first_call(world: World, life: Life) -> None:
    assert await life.born() == [0]
    await life.count()
    await world.crash()
    await world.start()
    assert await world.silo.grain(Life, "l").born() == [0, 1]


async def test_a_failing_on_activate_raises_to_everybody_who_waits_and_leaves_nothing(
    world: World, life: Life
) -> None:
    Life.fails, Life.slow = 1, 1.0
    results = await asyncio.gather(*(life.count() for _ in range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [GrainCallFailed] * 5
    assert all("no luck yet" in str(result) for result in results)
    assert world.silo.active_grains == 0
    assert await life.count() == 1


async def test_a_commit_of_on_activate_that_is_lost_fails_the_callers_and_the_next_reads_the_truth(
    world: World, life: Life
) -> None:
    world.store.fail("commit", Fault.LOST_AFTER)
    with pytest.raises(FarroError):
        await life.count()
    assert world.silo.active_grains == 0
    assert await life.born() == [0, 0]


# ---- destroy


async def test_a_destroyed_grain_starts_empty_under_the_same_id(world: World, life: Life) -> None:
    await life.count()
    await life.end()
    assert await life.count() == 1
    (row,) = await world.store.inner.load([("life", "l")])
    assert row is not None
    assert row.incarnation == 2


async def test_what_was_queued_for_the_old_incarnation_does_not_reach_the_new_one(
    world: World, life: Life
) -> None:
    await life.count()
    ending = asyncio.ensure_future(life.end_slowly(5.0))
    await asyncio.sleep(1)
    queued = [asyncio.ensure_future(life.count()) for _ in range(10)]
    await ending
    results = await asyncio.gather(*queued, return_exceptions=True)
    assert [type(result) for result in results] == [GrainDestroyed] * 10
    assert all(isinstance(result, FarroError) and result.retry_safe for result in results)
    assert await life.count() == 1


async def test_a_destroy_that_does_not_commit_destroys_nothing(world: World, life: Life) -> None:
    await life.count()
    world.store.fail("commit", Fault.UNAVAILABLE)
    with pytest.raises(FarroError):
        await life.end()
    assert await life.count() == 2


async def test_a_destroyed_grain_that_is_scheduled_anew_rings_only_for_its_new_incarnation(
    world: World,
) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, "old", every=s(10)))
    await world.do("b", lambda bell: bell.destroy())
    await world.do("b", lambda bell: bell.schedule(bell.ring, "new", after=s(10)))
    await asyncio.sleep(60)
    assert [rung.args for rung in world.rungs] == [("new",)]


# ---- sleep


async def test_an_idle_grain_is_put_to_sleep_and_wakes_with_its_state(world: World, life: Life) -> None:
    await life.count()
    await asyncio.sleep(50)
    assert world.silo.active_grains == 1
    await asyncio.sleep(80)
    assert world.silo.active_grains == 0
    assert Life.diary == ["up l", "down l: idle"]
    assert await life.count() == 2


async def test_calls_count_as_activity(life: Life) -> None:
    for _ in range(10):
        await life.count()
        await asyncio.sleep(45)
    assert Life.diary == ["up l"]


async def test_what_has_been_idle_longest_sleeps_first(world: World) -> None:
    for key in ("c", "a", "b"):
        await world.silo.grain(Life, key).count()
        await asyncio.sleep(1)
    await asyncio.sleep(180)
    assert [entry for entry in Life.diary if entry.startswith("down")] == [
        "down c: idle",
        "down a: idle",
        "down b: idle",
    ]


async def test_a_busy_grain_is_not_collected(world: World, life: Life) -> None:
    await life.count()
    call = asyncio.ensure_future(life.with_options(timeout=1000).stay(500.0))
    await asyncio.sleep(400)
    assert "down l: idle" not in Life.diary
    await call


async def test_a_message_that_arrives_during_on_deactivate_is_served_by_the_next_activation(
    world: World,
) -> None:
    life = world.silo.grain(Life, "takes its time")
    await life.count()
    await life.sleep()
    await asyncio.sleep(1)
    assert await asyncio.gather(*(life.count() for _ in range(5))) == [2, 3, 4, 5, 6]
    up, down = "up takes its time", "down takes its time: the grain asked for it"
    assert Life.diary == [up, down, up]


@pytest.mark.parametrize("key", ["raises", "hangs"])
async def test_an_on_deactivate_that_raises_or_hangs_lets_the_grain_go_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    life = world.silo.grain(Life, key)
    await life.count()
    await life.sleep()
    await asyncio.sleep(31)  # hooks get 30 s
    assert world.silo.active_grains == 0
    warnings = [each.getMessage() for each in caplog.records if "on_deactivate failed" in each.getMessage()]
    assert len(warnings) == 1
    assert f"life/{key}" in warnings[0]
    assert await life.count() == 2


# ---- layouts


@dataclass
class Before:
    name: str = ""
    gone: int = 0


@dataclass
class After:
    first: str = ""
    last: str = ""
    length: int = 0


def versions() -> dict[int, type[Grain[Any]]]:
    class First(Grain[Before], name="layered", layout=1):
        async def put(self, name: str) -> None:
            self.state.name, self.state.gone = name, 7

        async def get(self) -> list[Any]:
            return [self.state.name]

    class Third(Grain[After], name="layered", layout=3):
        steps: ClassVar[list[int]] = []

        @classmethod
        def migrate(cls, from_version: int, data: Any) -> Any:
            cls.steps.append(from_version)
            if from_version == 1:
                first, _, last = data["name"].partition(" ")
                return {"first": first, "last": last}
            return {**data, "length": len(data["first"]) + len(data["last"])}

        async def get(self) -> list[Any]:
            return [self.state.first, self.state.last, self.state.length]

        async def touch(self) -> None:
            self.schedule(self.touch, after=s(1000))

    class Careless(Grain[After], name="layered", layout=1):
        async def get(self) -> list[Any]:
            return [self.state.first]

    class Raising(Grain[After], name="layered", layout=2):
        @classmethod
        def migrate(cls, from_version: int, data: Any) -> Any:
            raise KeyError("surname")

        async def get(self) -> list[Any]:
            return []

    return {1: First, 3: Third, 10: Careless, 2: Raising}


async def use(world: World, cls: type[Grain[Any]], method: str, *args: Any) -> Any:
    world.grains = (cls, Bell)
    async with world.up() as silo:
        return await silo.call("layered", "x", method, *args)


@pytest.fixture
def layered(virtual: VirtualClock) -> World:
    return World(virtual)


async def test_state_of_an_older_layout_is_brought_forward_step_by_step(layered: World) -> None:
    known = versions()
    await use(layered, known[1], "put", "Ada Lovelace")
    assert await use(layered, known[3], "get") == ["Ada", "Lovelace", 11]
    assert known[3].steps == [1, 2]  # type: ignore[attr-defined]


async def test_the_next_commit_persists_the_new_layout_also_when_only_an_effect_was_asked_for(
    layered: World,
) -> None:
    known = versions()
    await use(layered, known[1], "put", "Ada Lovelace")
    await use(layered, known[3], "get")
    await use(layered, known[3], "touch")
    known[3].steps.clear()  # type: ignore[attr-defined]
    assert await use(layered, known[3], "get") == ["Ada", "Lovelace", 11]
    assert known[3].steps == []  # type: ignore[attr-defined]


async def test_state_newer_than_the_code_refuses_to_activate_and_says_what_to_do(layered: World) -> None:
    known = versions()
    await use(layered, known[1], "put", "Ada Lovelace")
    await use(layered, known[3], "touch")
    with pytest.raises(IncompatibleState, match=r"layout 3.*up to 1"):
        await use(layered, known[1], "get")
    assert await use(layered, known[3], "get") == ["Ada", "Lovelace", 11]


async def test_unknown_stored_fields_are_kept_or_refused_and_never_dropped(layered: World) -> None:
    known = versions()
    await use(layered, known[1], "put", "Ada Lovelace")
    with pytest.raises(IncompatibleState, match="name"):
        await use(layered, known[10], "get")
    assert await use(layered, known[1], "get") == ["Ada Lovelace"]


async def test_a_migration_step_that_raises_refuses_to_activate_and_names_the_step(layered: World) -> None:
    known = versions()
    await use(layered, known[1], "put", "Ada Lovelace")
    with pytest.raises(IncompatibleState, match=r"migrate\(1, …\) raised KeyError.*surname"):
        await use(layered, known[2], "get")
    assert await use(layered, known[1], "get") == ["Ada Lovelace"]


async def test_the_silo_counts_what_is_awake(world: World) -> None:
    silo: Silo = world.silo
    assert silo.active_grains == 0
    await silo.grain(Life, "l").count()
    assert silo.active_grains == 1


class Tinted(Grain, name="tinted"):
    async def on_activate(self) -> None:
        TINT.set("from on_activate")

    async def tint(self) -> str:
        found = TINT.get()
        TINT.set("from a call")
        return found


@pytest.mark.virtual
async def test_each_turn_begins_in_a_context_of_its_own_the_first_as_well() -> None:
    async with Silo([Tinted]) as silo:
        grain = silo.grain(Tinted, "a")
        assert [await grain.tint(), await grain.tint()] == ["none", "none"]
