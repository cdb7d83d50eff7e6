"""``@idempotent_request``: one effect and one answer, however often a request is sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, ClassVar

import pytest

from farro.client.errors import (
    CallTimeout,
    CommitOutcomeUnknown,
    FarroError,
    GrainCallFailed,
    InvalidPayload,
    Overloaded,
    SiloUnavailable,
    StorageUnavailable,
)
from farro.client.interface import grain_interface, interface_of
from farro.client.reference import reference
from farro.client.requests import REPEATS_MAX, Repeats, Request, new_request_id
from farro.silo.activations.invocation import Invocation
from farro.silo.activations.requests import ANSWER_BYTES_MAX, made_by
from farro.silo.grains.context import RequestIds
from farro.silo.grains.decorators import idempotent_request, oneway, readonly
from farro.silo.grains.grain import Grain
from farro.silo.options import OptionsError, SiloOptions
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World


@dataclass
class Balance:
    amount: int = 0
    log: list[str] = field(default_factory=list)


class Account(Grain[Balance], name="accounts"):
    """``ran`` counts the turns whose code ran, committed or not."""

    ran: ClassVar[Counter[str]] = Counter()
    gate: ClassVar[asyncio.Event | None] = None
    fails: ClassVar[int] = 0

    @idempotent_request
    async def pay(self, amount: int) -> int:
        Account.ran["pay"] += 1
        self.state.amount += amount
        if Account.gate is not None:
            await Account.gate.wait()
        if Account.fails:
            Account.fails -= 1
            raise ValueError("no")
        return self.state.amount

    @idempotent_request
    async def look(self) -> dict[str, Any]:
        Account.ran["look"] += 1
        return {"amount": self.state.amount, "seen": Account.ran["look"], "by": self.turn.request_id}

    @idempotent_request
    async def close(self) -> int:
        Account.ran["close"] += 1
        self.destroy()
        return self.state.amount

    @idempotent_request
    async def write_much(self, size: int) -> bytes:
        self.state.amount += 1
        return bytes(size)

    async def pay_plainly(self, amount: int) -> int:
        self.state.amount += amount
        return self.state.amount

    @readonly
    async def balance(self) -> int:
        return self.state.amount


class Stampless(Grain, name="stampless"):
    given: ClassVar[int] = 0

    @idempotent_request
    async def next(self) -> int:
        Stampless.given += 1
        return Stampless.given


class Till(Grain[Balance], name="tills"):
    fails: ClassVar[int] = 0
    ids: ClassVar[list[str | None]] = []

    @idempotent_request
    async def sell(self, amount: int) -> int:
        first = await self.grain(Account, "shop").pay(amount)
        second = await self.grain(Account, "shop").pay(amount)
        Till.ids.append(self.turn.request_id)
        if Till.fails:
            Till.fails -= 1
            raise ValueError("the drawer is stuck")
        self.state.amount += amount
        return first + second

    async def sell_plainly(self, amount: int) -> int:
        await self.grain(Account, "shop").pay(amount)
        return await self.grain(Account, "shop").pay(amount)

    async def later(self) -> None:
        self.schedule(self.sell, 5, after=timedelta(seconds=5))


GRAINS = (Account, Stampless, Till)


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    Account.ran.clear()
    Account.gate, Account.fails = None, 0
    Stampless.given = 0
    Till.fails = 0
    Till.ids.clear()
    world = World(virtual, grains=GRAINS)
    async with world.up():
        yield world


def account(world: World, request_id: str | None = None) -> Account:
    found = world.silo.grain(Account, "a")
    return found if request_id is None else found.with_options(request_id=request_id)


async def send(world: World, request: Request | None, method: str = "pay", *args: Any) -> Any:
    """One attempt, as a gateway submits it."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def respond(answer: Any, error: FarroError | None) -> None:
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    deadline = asyncio.get_running_loop().time() + 30
    call = Invocation("accounts", "a", method, list(args), None, deadline, (), respond)
    call.request = request
    world.silo.rooms.catalog.submit(call)
    return await future


# ---- one effect


async def test_a_repeated_request_is_answered_with_the_first_result_without_running(world: World) -> None:
    assert await account(world, "r1").pay(5) == 5
    await account(world).pay(10)
    assert await account(world, "r1").pay(5) == 5
    assert Account.ran["pay"] == 2
    assert await account(world).balance() == 15


async def test_an_answer_is_remembered_though_nothing_else_changed(world: World) -> None:
    first = await account(world, "r1").look()
    assert first == {"amount": 0, "seen": 1, "by": "r1"}
    assert await account(world, "r1").look() == first
    assert await world.silo.grain(Stampless, "s").with_options(request_id="r").next() == 1
    assert await world.silo.grain(Stampless, "s").with_options(request_id="r").next() == 1
    assert await world.silo.grain(Stampless, "s").next() == 2


async def test_calls_without_an_id_of_their_callers_are_requests_of_their_own(world: World) -> None:
    assert [await account(world).pay(1) for _ in range(3)] == [1, 2, 3]
    store = world.store
    assert store.calls["answer_to"] == 0, "an id that was made up just now cannot have been answered"


async def test_one_id_is_another_request_for_another_method_and_another_grain(world: World) -> None:
    assert await account(world, "r1").pay(5) == 5
    assert (await account(world, "r1").look())["amount"] == 5
    assert await world.silo.grain(Account, "b").with_options(request_id="r1").pay(7) == 7


async def test_a_method_that_raised_is_not_remembered(world: World) -> None:
    Account.fails = 1
    with pytest.raises(GrainCallFailed):
        await account(world, "r1").pay(5)
    assert await account(world, "r1").pay(5) == 5
    assert Account.ran["pay"] == 2


async def test_the_same_request_while_it_runs_waits_and_finds_the_answer(world: World) -> None:
    Account.gate = asyncio.Event()
    calls = [asyncio.ensure_future(account(world, "r1").pay(5)) for _ in range(3)]
    await asyncio.sleep(1)
    assert Account.ran["pay"] == 1
    Account.gate.set()
    assert await asyncio.gather(*calls) == [5, 5, 5]
    assert Account.ran["pay"] == 1


async def test_an_answer_outlives_the_activation_the_silo_and_the_grain(world: World) -> None:
    assert await account(world, "r1").pay(5) == 5
    await world.crash()
    await world.start()
    assert await account(world, "r1").pay(5) == 5
    assert await account(world, "r2").close() == 5
    assert await account(world, "r2").close() == 5
    assert await account(world, "r1").pay(5) == 5
    assert await account(world).balance() == 0
    assert Account.ran == {"pay": 1, "close": 1}


async def test_answers_are_forgotten_after_the_window(world: World) -> None:
    await account(world, "old").pay(5)
    await asyncio.sleep(12 * 3600)
    await account(world, "new").pay(5)
    await asyncio.sleep(11.5 * 3600)
    assert await account(world, "old").pay(5) == 5, "within 24 hours"
    await asyncio.sleep(1.1 * 3600)
    assert await world.store.inner.answer_to("accounts", "a", "pay/old") is None
    assert await account(world, "new").pay(5) == 10
    assert await account(world, "old").pay(5) == 15


# ---- faults


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE, Fault.STRAGGLES])
async def test_an_unknown_outcome_is_asked_for_again_and_the_effect_is_there_once(
    world: World, fault: Fault
) -> None:
    world.store.fail("commit", fault)
    assert await account(world).pay(5) == 5
    assert await account(world).balance() == 5
    assert Account.ran["pay"] == (1 if fault is not Fault.LOST_BEFORE else 2)


async def test_twice_in_parallel_with_a_lost_answer_takes_effect_once(world: World) -> None:
    await account(world).pay(1)
    world.store.fail("commit", Fault.LOST_AFTER)
    answers = await asyncio.gather(*(account(world, "r").pay(5) for _ in range(2)))
    assert answers == [6, 6]
    assert await account(world).balance() == 6


async def test_an_earlier_sending_that_comes_later_changes_nothing_and_gets_the_first_answer(
    world: World,
) -> None:
    request_id = new_request_id(Random(1))
    assert await send(world, Request(request_id, again=True), "pay", 5) == 5
    await account(world).pay(1)
    discarded = world.silo.statistics().turns.discarded
    assert await send(world, Request(request_id, again=False), "pay", 5) == 5
    assert Account.ran["pay"] == 3, "nobody looked before it ran"
    assert await account(world).balance() == 6
    assert world.silo.statistics().turns.discarded == discarded + 1


async def test_an_earlier_sending_of_a_destroying_request_does_not_destroy_again(world: World) -> None:
    await account(world).pay(5)
    assert await send(world, Request("r", again=False), "close") == 5
    await account(world).pay(7)
    assert await send(world, Request("r", again=False), "close") == 5
    assert await account(world).balance() == 7


async def test_a_store_that_cannot_be_asked_says_so_and_nothing_runs(world: World) -> None:
    await account(world).pay(1)
    world.store.fail("answer_to", Fault.UNAVAILABLE)
    with pytest.raises(StorageUnavailable, match="the answer to a request could not be read"):
        await account(world, "r").pay(5)
    assert Account.ran["pay"] == 1
    assert await account(world, "r").pay(5) == 6


async def test_a_store_that_loses_every_answer_ends_at_the_deadline_with_the_outcome_unknown(
    world: World,
) -> None:
    world.store.policy = lambda verb: Fault.LOST_BEFORE if verb == "commit" else None
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises((CommitOutcomeUnknown, CallTimeout)) as caught:
        await account(world).with_options(timeout=7).pay(5)
    assert caught.value.turn_ran is None
    assert 6 <= loop.time() - began <= 7.1
    assert 7 <= world.store.calls["commit"] <= 60


async def test_a_plain_method_is_not_sent_again(world: World) -> None:
    world.store.fail("commit", Fault.LOST_AFTER)
    with pytest.raises(CommitOutcomeUnknown):
        await account(world).pay_plainly(5)
    assert await account(world).balance() == 5


# ---- what is not a request


async def test_an_id_for_a_method_that_keeps_no_answers_is_refused_on_both_sides(world: World) -> None:
    with pytest.raises(InvalidPayload, match=r"Account.pay_plainly\(\) is no @idempotent_request"):
        await account(world, "r").pay_plainly(5)
    with pytest.raises(InvalidPayload, match=r"accounts/a.pay_plainly is no @idempotent_request"):
        await send(world, Request("r", again=True), "pay_plainly", 5)
    assert await account(world).balance() == 0


async def test_an_idempotent_method_called_without_a_request_just_runs(world: World) -> None:
    assert [await send(world, None, "pay", 5) for _ in range(2)] == [5, 10]


async def test_a_result_that_is_too_large_to_keep_fails_the_turn(world: World) -> None:
    assert len(await account(world, "r1").write_much(ANSWER_BYTES_MAX - 5)) == ANSWER_BYTES_MAX - 5
    with pytest.raises(GrainCallFailed, match=r"takes 262,149 bytes packed; an @idempotent_request keeps at"):
        await account(world, "r2").write_much(ANSWER_BYTES_MAX)
    assert await account(world).balance() == 1


@pytest.mark.parametrize("bad", ["", "a" * 129, "a\nb", "\ud800", 7])
def test_an_id_that_cannot_be_is_refused_where_it_is_given(bad: Any) -> None:
    with pytest.raises(InvalidPayload, match="a request id must"):
        reference(interface_of(Account), "a", object()).with_options(request_id=bad)  # type: ignore[arg-type]


async def test_options_of_a_reference_stand_for_themselves(world: World) -> None:
    named = account(world, "r")
    assert await named.pay(1) == 1
    assert await named.with_options(timeout=5).pay(1) == 2, "with_options() gives the others their defaults"
    assert await named.pay(1) == 1
    assert named == account(world)


def test_marks_that_contradict_each_other_are_a_mistake_of_the_declaration() -> None:
    with pytest.raises(TypeError, match=r"Reads.look: @idempotent_request .* is @readonly changes nothing"):

        class Reads(Grain):
            @idempotent_request
            @readonly
            async def look(self) -> None: ...

    with pytest.raises(TypeError, match=r"Tells.tell: @idempotent_request .* is @oneway gives no answer"):

        @grain_interface("tells")
        class Tells:
            @oneway
            @idempotent_request
            async def tell(self) -> None: ...

    with pytest.raises(TypeError, match="goes on an 'async def' method, without parentheses"):
        idempotent_request()  # type: ignore[call-arg]


def test_a_window_must_be_positive() -> None:
    with pytest.raises(OptionsError, match="request_window must be greater than zero"):
        SiloOptions(request_window=timedelta(0)).validate()


# ---- between grains


async def test_a_request_that_is_tried_again_makes_the_same_requests_again(world: World) -> None:
    till = world.silo.grain(Till, "t").with_options(request_id="sale-1")
    Till.fails = 1
    with pytest.raises(GrainCallFailed):
        await till.sell(5)
    assert await world.silo.grain(Account, "shop").balance() == 10
    assert await till.sell(5) == 15, "the results of the first time"
    assert await world.silo.grain(Account, "shop").balance() == 10
    assert Till.ids == ["sale-1", "sale-1"]
    assert Account.ran["pay"] == 2
    await world.silo.grain(Till, "u").with_options(request_id="sale-1").sell(5)
    assert await world.silo.grain(Account, "shop").balance() == 20, (
        "the same id at another grain is another sale"
    )


async def test_a_tick_that_is_delivered_again_makes_the_same_requests_again(world: World) -> None:
    Till.fails = 2
    await world.silo.grain(Till, "t").later()
    await asyncio.sleep(3600)
    assert len(Till.ids) == 3
    assert await world.silo.grain(Account, "shop").balance() == 10
    assert Account.ran["pay"] == 2


async def test_calls_of_a_plain_turn_are_requests_of_their_own(world: World) -> None:
    assert [await world.silo.grain(Till, "t").sell_plainly(1) for _ in range(2)] == [2, 4]


def test_the_ids_that_a_turn_gives_follow_from_its_name_and_their_order() -> None:
    def ids(base: str) -> list[str]:
        made = RequestIds(base)
        return [made.next("accounts/a.pay"), made.next("accounts/a.pay"), made.next("accounts/b.pay")]

    assert ids("x") == ids("x")
    assert len({*ids("x"), *ids("y")}) == 6
    assert ids("x")[0] == "0574ea7a0c18f7bb4177ec72b5c0f520", "as b2sum -l 128 says"


def test_nobody_outside_a_turn_makes_a_request_twice() -> None:
    random = Random(3)
    made = {made_by(None, "accounts/a.pay", random) for _ in range(100)}
    assert len({each.id for each in made}) == 100
    assert not any(each.again for each in made)


# ---- when to send again


def test_only_what_may_have_run_is_sent_again_and_then_also_what_did_not_run() -> None:
    lost, refused = SiloUnavailable("gone"), Overloaded("full")
    repeats = Repeats(Random(1))
    with pytest.raises(Overloaded):
        repeats.after(refused, 10)
    assert 0 <= repeats.after(lost, 10) <= 0.04
    assert 0 <= repeats.after(refused, 10) <= 0.08
    with pytest.raises(GrainCallFailed):
        repeats.after(GrainCallFailed("no"), 10)
    with pytest.raises(SiloUnavailable) as caught:
        repeats.after(refused, 0)
    assert caught.value is lost, "the last time says nothing of the first"
    with pytest.raises(SiloUnavailable):
        Repeats(Random(1)).after(SiloUnavailable("not sent", turn_ran=False), 10)


def test_a_request_is_sent_a_bounded_number_of_times() -> None:
    repeats = Repeats(Random(1))
    lost = CommitOutcomeUnknown("lost")
    pauses = [repeats.after(lost, 1e9) for _ in range(REPEATS_MAX)]
    assert max(pauses) <= 1
    with pytest.raises(CommitOutcomeUnknown):
        repeats.after(lost, 1e9)
