"""How a turn may end and what is true then (design/turns.md): a test for each way, on a store that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from farro.client.errors import (
    CallTimeout,
    CommitOutcomeUnknown,
    Conflict,
    FarroError,
    Fenced,
    GrainCallFailed,
    StorageUnavailable,
)
from farro.providers.rows import Commit, GrainWrite, Outcome
from farro.silo.grains.grain import Grain
from farro.silo.ownership import Owned
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World, s


class Liar(Grain[dict[str, int]], name="liar"):
    """Promises a number and returns text."""

    async def count_and_lie(self) -> int:
        self.state["count"] = 1
        return "one"  # type: ignore[return-value]

    async def count(self) -> int:
        return self.state.get("count", 0)


class Aborted(BaseException):
    """An exception that no ``except Exception`` catches."""


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    world = World(virtual, grains=(Bell, Liar))
    async with world.up():
        yield world


def note(value: Any) -> Callable[[Bell], Bell]:
    """Code of a turn that changes the state and asks for an effect."""

    def code(bell: Bell) -> Bell:
        bell.state.note = value
        bell.schedule(bell.ring, after=s(1000), key=str(value))
        return bell

    return code


def note_and_raise(value: Any, error: BaseException) -> Callable[[Bell], None]:
    def code(bell: Bell) -> None:
        note(value)(bell)
        raise error

    return code


async def truth(world: World) -> tuple[Any, list[str]]:
    """What the next message reads: state and reminders."""

    async def read(bell: Bell) -> tuple[Any, list[str]]:
        return bell.state.note, [each.key or "" for each in await bell.reminders()]

    seen: tuple[Any, list[str]] = await world.do("b", read)
    return seen


async def stored_version(world: World) -> int:
    (row,) = await world.store.inner.load([("bell", "b")])
    return 0 if row is None else row.version


# ---- returns


async def test_a_turn_that_returns_is_durable_when_its_caller_hears_of_it(world: World) -> None:
    first = await world.do("b", note(1))
    assert await world.do("b", note(2)) is first
    await world.crash()
    await world.start()
    assert await truth(world) == (2, ["1", "2"])


async def test_the_answer_waits_for_the_commit_and_so_does_the_next_turn(world: World) -> None:
    await world.do("b", note(1))
    world.store.freeze("commit")
    writing = asyncio.ensure_future(world.do("b", note(2)))
    await world.store.until_frozen("commit")
    reading = asyncio.ensure_future(truth(world))
    await asyncio.sleep(5)
    assert not writing.done()
    assert not reading.done()
    world.store.thaw()
    await writing
    assert await reading == (2, ["1", "2"])


async def test_unchanged_state_and_no_effects_make_no_transaction(world: World) -> None:
    await world.do("b", note(1))
    version, commits = await stored_version(world), world.store.calls["commit"]
    assert await truth(world) == (1, ["1"])
    assert (await stored_version(world), world.store.calls["commit"]) == (version, commits)


async def test_every_commit_moves_the_version_also_when_the_state_stays(world: World) -> None:
    await world.do("b", note(1))
    version = await stored_version(world)
    await world.do("b", lambda bell: bell.schedule(bell.toll, after=s(1000)))
    await world.do("b", lambda bell: bell.unschedule("toll"))
    assert await stored_version(world) == version + 2


# ---- raises


async def test_a_turn_that_raises_after_changing_state_changed_nothing_and_the_activation_is_new(
    world: World,
) -> None:
    first = await world.do("b", note(1))
    with pytest.raises(GrainCallFailed, match=r"bell/b\.do raised ValueError: no") as raised:
        await world.do("b", note_and_raise(2, ValueError("no")))
    assert (raised.value.turn_ran, raised.value.retry_safe) == (False, False)
    assert raised.value.remote_type == "builtins.ValueError"
    assert await truth(world) == (1, ["1"])
    assert await world.do("b", lambda bell: bell) is not first


async def test_a_turn_that_raises_without_changing_state_drops_its_intents_and_keeps_the_activation(
    world: World,
) -> None:
    first = await world.do("b", note(1))

    def stage_and_raise(bell: Bell) -> None:
        bell.schedule(bell.toll, after=s(1000), key="never")
        raise ValueError("no")

    with pytest.raises(GrainCallFailed):
        await world.do("b", stage_and_raise)
    assert await truth(world) == (1, ["1"])
    assert await world.do("b", lambda bell: bell) is first


async def test_a_change_deep_inside_the_state_counts_as_a_change(world: World) -> None:
    await world.do("b", lambda bell: setattr(bell.state, "note", {"list": [1, {"deep": []}]}))

    def change_and_raise(bell: Bell) -> None:
        bell.state.note["list"][1]["deep"].append("x")
        raise ValueError("no")

    with pytest.raises(GrainCallFailed):
        await world.do("b", change_and_raise)
    assert await world.do("b", lambda bell: bell.state.note) == {"list": [1, {"deep": []}]}


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError("mine"), SystemExit(3), TimeoutError("inner"), Aborted("mine"), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_the_code_raises_is_answered_at_once_and_the_grain_takes_the_next_call(
    world: World, error: BaseException
) -> None:
    await world.do("b", note(1))
    began = asyncio.get_running_loop().time()
    with pytest.raises(GrainCallFailed, match=type(error).__name__):
        await world.do("b", note_and_raise(2, error))
    assert asyncio.get_running_loop().time() - began < 1
    assert await truth(world) == (1, ["1"])


async def test_a_result_that_does_not_fit_its_annotation_fails_the_turn(world: World) -> None:
    liar = world.silo.grain(Liar, "l")
    with pytest.raises(GrainCallFailed, match="result"):
        await liar.count_and_lie()
    assert await liar.count() == 0


async def test_a_state_that_cannot_be_stored_fails_the_turn_and_names_the_path(world: World) -> None:
    await world.do("b", note(1))
    with pytest.raises(GrainCallFailed, match=r"state\.note"):
        await world.do("b", lambda bell: setattr(bell.state, "note", object()))
    assert await truth(world) == (1, ["1"])


async def test_messages_queued_behind_a_discarded_activation_are_served_in_order_by_the_next(
    world: World,
) -> None:
    seen: list[int] = []
    gate = asyncio.Event()

    async def wait_and_raise(bell: Bell) -> None:
        bell.state.note = "wrong"
        await gate.wait()
        raise ValueError("no")

    failing = asyncio.ensure_future(world.do("b", wait_and_raise))
    await asyncio.sleep(1)

    def look(number: int) -> Callable[[Bell], Any]:
        def code(bell: Bell) -> Any:
            seen.append(number)
            return bell.state.note

        return code

    queued = [asyncio.ensure_future(world.do("b", look(number))) for number in range(50)]
    await asyncio.sleep(1)
    gate.set()
    with pytest.raises(GrainCallFailed):
        await failing
    assert await asyncio.gather(*queued) == [None] * 50
    assert seen == list(range(50))


# ---- refused


async def another_silo_takes_everything(world: World) -> int:
    now = world.clock.now()
    other = await world.store.inner.join("elsewhere", now)
    await world.store.inner.take(other.number, range(64), now)
    return other.number


async def test_a_fenced_commit_changed_nothing_and_may_be_sent_again(world: World) -> None:
    await world.do("b", note(1))
    other = await another_silo_takes_everything(world)
    with pytest.raises(Fenced) as raised:
        await world.do("b", note(2))
    assert (raised.value.turn_ran, raised.value.retry_safe) == (False, True)
    await world.store.inner.leave(other, world.clock.now())
    assert await truth(world) == (1, ["1"])


async def test_a_turn_that_outlives_its_ownership_commits_nothing_under_the_next_one(world: World) -> None:
    gate = asyncio.Event()

    async def wait(bell: Bell) -> None:
        bell.state.note = "too late"
        await gate.wait()

    await world.do("b", note(1))
    slow = asyncio.ensure_future(world.do("b", wait))
    await asyncio.sleep(1)
    ownership, now = world.silo.rooms.core.ownership, world.clock.now()
    partition = ownership.partition_of("bell", "b")
    (taken,) = await world.store.inner.take(world.silo.number, [partition], now)
    ownership.take(partition, Owned(taken.epoch, now, now))
    gate.set()
    with pytest.raises(Fenced):
        await slow
    assert await truth(world) == (1, ["1"])


async def test_a_straggler_of_another_owner_collides_with_the_next_commit(world: World) -> None:
    await world.do("b", note(1))
    (before,) = await world.store.inner.load([("bell", "b")])
    assert before is not None
    straggler = Commit(
        partition=before.partition,
        epoch=world.silo.rooms.core.ownership.epoch(before.partition),
        grain_type="bell",
        grain_key="b",
        grain=GrainWrite(expected_version=before.version),
    )
    (verdict,) = await world.store.inner.commit([straggler], world.silo.number, world.clock.now())
    assert verdict.outcome is Outcome.COMMITTED
    with pytest.raises(Conflict) as raised:
        await world.do("b", note(2))
    assert (raised.value.turn_ran, raised.value.retry_safe) == (False, True)
    assert await truth(world) == (1, ["1"])
    await world.do("b", note(3))
    assert await truth(world) == (3, ["1", "3"])


# ---- not taken, not answered


async def test_a_store_that_takes_nothing_leaves_everything_as_it_was(world: World) -> None:
    await world.do("b", note(1))
    world.store.fail("commit", Fault.UNAVAILABLE)
    with pytest.raises(StorageUnavailable) as raised:
        await world.do("b", note(2))
    assert (raised.value.turn_ran, raised.value.retry_safe) == (False, True)
    assert await truth(world) == (1, ["1"])
    await world.do("b", note(2))
    assert await truth(world) == (2, ["1", "2"])


@pytest.mark.parametrize(
    ("fault", "after"),
    [(Fault.LOST_BEFORE, (1, ["1"])), (Fault.LOST_AFTER, (2, ["1", "2"]))],
    ids=["on the way there", "on the way back"],
)
async def test_a_lost_answer_is_unknown_to_the_caller_and_the_next_message_reads_the_truth(
    world: World, fault: Fault, after: Any
) -> None:
    await world.do("b", note(1))
    commits = world.store.calls["commit"]
    world.store.fail("commit", fault)
    with pytest.raises(CommitOutcomeUnknown) as raised:
        await world.do("b", note(2))
    assert (raised.value.turn_ran, raised.value.retry_safe) == (None, False)
    assert world.store.calls["commit"] == commits + 1, "nothing is sent again"
    assert await truth(world) == after
    await world.do("b", note(3))
    assert (await truth(world))[0] == 3


async def test_a_grain_that_cannot_be_read_fails_its_callers_and_is_read_again_for_the_next(
    world: World,
) -> None:
    world.store.fail("load", Fault.UNAVAILABLE)
    results = await asyncio.gather(*(world.do("b", note(n)) for n in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [StorageUnavailable] * 3
    assert world.silo.active_grains == 0
    await world.do("b", note(7))
    assert (await truth(world))[0] == 7


async def test_a_silent_store_times_the_caller_out_and_the_turn_still_commits_later(world: World) -> None:
    await world.do("b", note(1))
    world.store.freeze("commit")
    with pytest.raises(CallTimeout) as raised:
        await world.do("b", note(2))
    assert raised.value.turn_ran is None
    world.store.thaw()
    assert await truth(world) == (2, ["1", "2"])


# ---- ticks end the same ways


async def test_a_tick_whose_commit_was_lost_on_the_way_there_is_delivered_again_under_the_same_id(
    world: World,
) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    world.store.fail("commit", Fault.LOST_BEFORE)
    await asyncio.sleep(15)
    first, second = world.rungs
    assert first.tick.id == second.tick.id
    assert first.due_at == second.due_at
    assert await world.rung("b") == 1


async def test_a_tick_whose_commit_was_lost_on_the_way_back_is_not_delivered_again(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    world.store.fail("commit", Fault.LOST_AFTER)
    await asyncio.sleep(35)
    assert [rung.tick.occurrence for rung in world.rungs] == [1, 2, 3]
    assert await world.rung("b") == 3


async def test_a_tick_that_the_store_did_not_take_is_delivered_again_and_is_no_failed_attempt(
    world: World,
) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(60)))
    world.store.fail("commit", Fault.UNAVAILABLE, Fault.UNAVAILABLE)
    await asyncio.sleep(90)
    assert [(rung.tick.occurrence, rung.tick.attempt) for rung in world.rungs] == [(1, 1)] * 3
    assert await world.rung("b") == 1


async def test_a_fenced_tick_commits_nothing_and_its_row_is_left_to_the_new_owner(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    row = await world.row("b", "ring")
    await another_silo_takes_everything(world)
    await asyncio.sleep(12)
    assert await world.row("b", "ring") == row


async def test_errors_answer_both_questions(world: World) -> None:
    """``turn_ran`` and ``retry_safe`` of what a turn may end with, in one place."""
    flags = {
        kind: (kind.turn_ran, kind.retry_safe)
        for kind in (GrainCallFailed, Fenced, Conflict, StorageUnavailable, CommitOutcomeUnknown)
    }
    assert flags == {
        GrainCallFailed: (False, False),
        Fenced: (False, True),
        Conflict: (False, True),
        StorageUnavailable: (False, True),
        CommitOutcomeUnknown: (None, False),
    }
    assert all(issubclass(kind, FarroError) for kind in flags)
