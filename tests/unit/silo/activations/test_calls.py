"""Calls between grains of one silo: deadlines, cancels, cycles, bounds, copies."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from farro.client.errors import (
    CallCycle,
    CallTimeout,
    FarroError,
    GrainCallFailed,
    NoSuchMethod,
    NotRemote,
    Overloaded,
    UnknownGrainType,
)
from farro.silo.activations.invocation import Invocation
from farro.silo.grains.decorators import cancellable, oneway, readonly
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.options import ActivationOptions, SiloOptions
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World


@dataclass
class DeskState:
    log: list[str] = field(default_factory=list)


class Desk(Grain[DeskState], name="desk"):
    async def work(self, what: str, seconds: float = 0.0) -> str:
        self.state.log.append(f"{what} began")
        await asyncio.sleep(seconds)
        self.state.log.append(f"{what} ended")
        return what

    @cancellable
    async def work_cancellably(self, what: str, seconds: float) -> str:
        return await self.work(what, seconds)

    @oneway
    async def tell(self, what: str, seconds: float = 0.0) -> None:
        await self.work(what, seconds)
        if what == "raise":
            raise ValueError("nobody hears")

    @readonly
    async def seen(self) -> list[str]:
        return self.state.log

    async def call_on(self, path: list[str], seconds: float = 0.0) -> str:
        """Wait, then call the next desk of the path, which calls the next …"""
        await asyncio.sleep(seconds)
        if not path:
            return "end"
        return await self.grain(Desk, path[0]).call_on(path[1:])

    async def call_on_and_forgive(self, path: list[str]) -> str:
        try:
            return await self.call_on(path)
        except CallCycle as cycle:
            return " -> ".join(cycle.chain)

    async def fail_at(self, other: str) -> None:
        if other != self.key:
            await self.grain(Desk, other).fail_at(other)
        raise ValueError("broken") from KeyError("cause")

    async def call_self_plainly(self) -> str:
        return await self.work("plain")

    async def call_other(self, other: str, what: str, seconds: float, limit: float) -> str:
        desk: Desk = self.grain(Desk, other).with_options(timeout=limit)
        return await desk.work(what, seconds)

    async def oneway_to_self(self) -> None:
        await self.grain(Desk, self.key).tell("to self")

    async def grow(self, items: list[int], table: dict[str, list[int]]) -> list[int]:
        items.append(len(items))
        table["new"] = []
        return items

    async def lend(self, other: str) -> list[Any]:
        mine, table = [0], {"a": [1]}
        answer = await self.grain(Desk, other).grow(mine, table)
        answer.append(99)
        return [mine, table, answer]

    async def _hidden(self) -> None: ...


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    options = SiloOptions(activations=ActivationOptions(mailbox_max=20))
    world = World(virtual, grains=(Desk,), options=options)
    async with world.up():
        yield world


@pytest.fixture
def silo(world: World) -> Silo:
    return world.silo


@pytest.fixture
def desk(silo: Silo) -> Desk:
    return silo.grain(Desk, "d")


def within(desk: Desk, seconds: float) -> Desk:
    limited: Desk = desk.with_options(timeout=seconds)
    return limited


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- deadlines


async def test_a_queued_call_whose_deadline_has_passed_never_starts(desk: Desk) -> None:
    calls = [within(desk, 5.5).work(str(number), 1.0) for number in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[:5] == ["0", "1", "2", "3", "4"]
    assert all(isinstance(result, CallTimeout) for result in results[5:])
    assert now() == pytest.approx(5.5, abs=0.1)
    await asyncio.sleep(60)
    began = [entry for entry in await desk.seen() if entry.endswith("began")]
    assert began == [f"{number} began" for number in range(6)]


async def test_a_passed_deadline_means_unknown_and_the_turn_runs_to_its_end(desk: Desk) -> None:
    with pytest.raises(CallTimeout) as raised:
        await within(desk, 1.0).work("slow", 5.0)
    assert (raised.value.turn_ran, raised.value.retry_safe) == (None, False)
    await asyncio.sleep(10)
    assert await desk.seen() == ["slow began", "slow ended"]


async def test_the_deadline_travels_with_the_chain_and_nested_calls_get_what_is_left(
    silo: Silo, desk: Desk
) -> None:
    began = now()
    with pytest.raises(CallTimeout):
        await within(desk, 2.0).call_other("other", "nested", 50.0, 40.0)
    assert now() - began == pytest.approx(2.0, abs=0.01)
    # the inner call had no more time than the outer: its caller is free again at the same instant
    assert await desk.work("next") == "next"
    assert now() - began == pytest.approx(2.0, abs=0.01)


async def test_a_nested_call_may_have_less_time_than_its_chain(desk: Desk) -> None:
    with pytest.raises(GrainCallFailed, match="deadline"):
        await desk.call_other("other", "nested", 50.0, 3.0)
    assert now() == pytest.approx(3.0, abs=0.01)


async def test_without_a_timeout_a_call_gets_thirty_seconds(desk: Desk) -> None:
    with pytest.raises(CallTimeout):
        await desk.work("slow", 100.0)
    assert now() == pytest.approx(30.0, abs=0.01)


# ---- cancels


async def cancelled(task: asyncio.Future[Any]) -> bool:
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def test_a_cancelled_queued_call_never_starts(desk: Desk) -> None:
    first = asyncio.ensure_future(desk.work("first", 2.0))
    second = asyncio.ensure_future(desk.work("second"))
    await asyncio.sleep(1)
    assert await cancelled(second)
    await first
    assert await desk.seen() == ["first began", "first ended"]


async def test_a_cancelled_running_turn_goes_on_to_its_end(desk: Desk) -> None:
    task = asyncio.ensure_future(desk.work("steady", 2.0))
    await asyncio.sleep(1)
    assert await cancelled(task)
    assert await desk.seen() == ["steady began", "steady ended"]


async def test_a_cancelled_cancellable_turn_stops_and_changes_nothing(desk: Desk) -> None:
    await desk.work("before")
    task = asyncio.ensure_future(desk.work_cancellably("never", 100.0))
    await asyncio.sleep(1)
    assert await cancelled(task)
    began = now()
    assert await desk.seen() == ["before began", "before ended"]
    assert now() == began


async def test_nothing_is_cancelled_once_its_commit_is_handed_over(world: World, desk: Desk) -> None:
    await desk.work("before")
    world.store.freeze("commit")
    task = asyncio.ensure_future(desk.work_cancellably("kept", 0.0))
    await world.store.until_frozen("commit")
    assert await cancelled(task)
    world.store.thaw()
    assert (await desk.seen())[2:] == ["kept began", "kept ended"]


async def test_a_caller_whose_own_time_limit_ends_leaves_the_turn_running(desk: Desk) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await desk.work("steady", 2.0)
    assert await desk.seen() == ["steady began", "steady ended"]


async def test_a_call_begins_when_it_is_awaited(desk: Desk) -> None:
    call = desk.work("later")
    await asyncio.sleep(1)
    assert await desk.seen() == []
    await call
    assert await desk.seen() == ["later began", "later ended"]


# ---- cycles


async def test_a_call_back_to_a_waiting_grain_fails_at_once_with_the_chain(silo: Silo) -> None:
    began = now()
    said = await silo.grain(Desk, "a").call_on_and_forgive(["b", "a"])
    assert said == "desk/a.call_on_and_forgive -> desk/b.call_on -> desk/a.call_on"
    assert now() - began < 1


async def test_a_long_cycle_reaches_the_outside_caller_as_a_cycle(silo: Silo) -> None:
    with pytest.raises(CallCycle) as raised:
        await silo.grain(Desk, "a").call_on(["b", "c", "d", "b"])
    assert raised.value.chain == [f"desk/{key}.call_on" for key in "abcdb"]
    assert now() < 1


async def test_a_grain_that_calls_itself_through_a_reference_is_a_cycle_and_a_plain_call_is_none(
    silo: Silo,
) -> None:
    with pytest.raises(CallCycle, match=r"desk/a\.call_on -> desk/a\.call_on"):
        await silo.grain(Desk, "a").call_on(["a"])
    assert await silo.grain(Desk, "a").call_self_plainly() == "plain"


async def test_of_two_chains_that_cross_one_gives_way_at_once_and_the_other_goes_on(silo: Silo) -> None:
    one = asyncio.ensure_future(silo.grain(Desk, "a").call_on(["b"], 1.0))
    other = asyncio.ensure_future(silo.grain(Desk, "b").call_on(["a"], 1.5))
    results = await asyncio.gather(one, other, return_exceptions=True)
    assert results[0] == "end"
    assert isinstance(results[1], CallCycle)
    assert now() < 3


async def test_three_chains_that_cross_in_a_ring_do_not_hang(silo: Silo) -> None:
    ring = [("a", "b", 1.0), ("b", "c", 1.2), ("c", "a", 1.4)]
    calls = [silo.grain(Desk, key).call_on([other], wait) for key, other, wait in ring]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[:2] == ["end", "end"]
    assert isinstance(results[2], CallCycle)
    assert now() < 3


@dataclass
class Crossed:
    asked: int = 0


class Crosser(Grain[Crossed], name="crosser"):
    async def answer(self) -> str:
        return "ok"

    async def ask(self, key: str) -> str:
        self.state.asked += 1
        return await self.grain(Crosser, key).answer()

    async def fail(self) -> None:
        """Has its activation discarded."""
        self.state.asked += 1
        await asyncio.sleep(1)
        raise ValueError("boom")


@pytest.mark.virtual
async def test_chains_that_cross_are_seen_though_an_activation_was_replaced_meanwhile() -> None:
    async with Silo([Crosser]) as silo:
        one, other = silo.grain(Crosser, "one"), silo.grain(Crosser, "other")
        failing = asyncio.ensure_future(other.fail())
        await asyncio.sleep(0.5)
        began = now()
        calls = [asyncio.ensure_future(one.ask("other")), asyncio.ensure_future(other.ask("one"))]
        results = await asyncio.gather(*calls, failing, return_exceptions=True)
        assert now() - began < 2
        assert sorted(type(each).__name__ for each in results) == ["CallCycle", "GrainCallFailed", "str"]


async def test_a_diamond_is_no_cycle(silo: Silo) -> None:
    first = asyncio.ensure_future(silo.grain(Desk, "a").call_on(["c", "d"], 1.0))
    second = asyncio.ensure_future(silo.grain(Desk, "b").call_on(["c", "d"], 1.0))
    assert list(await asyncio.gather(first, second)) == ["end", "end"]


async def test_a_oneway_call_to_oneself_is_no_cycle(desk: Desk) -> None:
    await desk.oneway_to_self()
    await asyncio.sleep(1)
    assert await desk.seen() == ["to self began", "to self ended"]


# ---- one way


async def test_a_oneway_call_answers_before_its_turn_and_its_error_is_logged_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "farro.turns"):
        await desk.tell("raise", 5.0)
        assert now() == 0
        await asyncio.sleep(10)
    (record,) = [each for each in caplog.records if "nobody hears" in caplog.handler.format(each)]
    assert "desk/d.tell" in record.getMessage()
    assert record.exc_info is not None


# ---- bounds


async def test_beyond_the_mailbox_a_call_is_refused_with_a_hint_when_to_retry(desk: Desk) -> None:
    calls = [asyncio.ensure_future(desk.work(str(number), 0.1)) for number in range(30)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, Overloaded)]
    served = [result for result in results if isinstance(result, str)]
    assert len(refused) == 10  # 20 wait while the grain loads; then they are served
    assert served == [str(number) for number in range(20)]
    assert all(error.retry_after > 0 and error.retry_safe and error.turn_ran is False for error in refused)
    assert await desk.work("after") == "after"


# ---- copies


async def test_arguments_and_results_are_copied_between_grains_of_one_silo(desk: Desk) -> None:
    mine, table, answer = await desk.lend("other")
    assert (mine, table, answer) == ([0], {"a": [1]}, [0, 1, 99])


async def test_the_hosting_program_shares_no_list_with_a_grain(desk: Desk) -> None:
    items: list[int] = []
    answer = await desk.grow(items, {})
    assert items == []
    answer.append(5)
    assert await desk.grow([], {}) == [0]


# ---- what cannot be called


async def test_unknown_types_and_methods_are_refused_and_named(silo: Silo) -> None:
    with pytest.raises(UnknownGrainType, match=r"'chair'.*desk"):
        await silo.call("chair", "c", "sit")
    with pytest.raises(NoSuchMethod, match="sit"):
        await silo.call("desk", "c", "sit")
    assert silo.active_grains == 0


@pytest.mark.parametrize(
    "name",
    [
        "_hidden",
        "__init__",
        "__class__",
        "state",
        "on_activate",
        "receive_reminder",
        "schedule",
        "deactivate",
    ],
)
async def test_private_and_internal_names_are_refused_with_the_text_of_absent_ones(
    silo: Silo, name: str
) -> None:
    with pytest.raises(NoSuchMethod) as raised:
        await silo.call("desk", "d", name)
    with pytest.raises(NoSuchMethod) as absent:
        await silo.call("desk", "d", "absent")
    assert str(raised.value).replace(name, "absent") == str(absent.value)
    with pytest.raises((NotRemote, AttributeError)):
        getattr(silo.grain(Desk, "d"), "state")  # noqa: B009


@pytest.mark.parametrize(
    ("args", "expected"),
    [((1,), "what"), (("x", "y"), "seconds"), ((), "what"), (("x", 1.0, 2.0), "positional")],
)
async def test_arguments_that_do_not_fit_are_refused_before_the_turn(
    silo: Silo, args: tuple[Any, ...], expected: str
) -> None:
    with pytest.raises(FarroError, match=expected):
        await silo.call("desk", "d", "work", *args)
    assert await silo.grain(Desk, "d").seen() == []


async def test_an_error_through_two_grains_names_the_first_fault_and_keeps_one_correlation_id(
    silo: Silo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "farro.turns"), pytest.raises(GrainCallFailed) as raised:
        await silo.grain(Desk, "a").fail_at("b")
    error = raised.value
    assert (error.remote_type, error.turn_ran) == ("builtins.ValueError", False)
    assert "desk/b.fail_at raised ValueError: broken (caused by KeyError: 'cause')" in str(error)
    assert "Traceback" not in str(error)
    logged = [each.getMessage() for each in caplog.records if each.exc_info]
    assert [error.correlation_id in line for line in logged] == [True]


async def test_an_answered_call_is_not_held_until_its_deadline(silo: Silo) -> None:
    for number in range(10):
        await silo.grain(Desk, "answered").work(str(number), 0.01)
    await silo.grain(Desk, "another").work("")
    gc.collect()
    held = [each for each in gc.get_objects() if type(each) is Invocation]
    assert [each.args for each in held if each.grain_key == "answered"] == []
