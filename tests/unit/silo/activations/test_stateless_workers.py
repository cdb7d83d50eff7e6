"""Stateless workers: where they are called, several at a time, with nothing kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from farro.client.errors import (
    CallCycle,
    CallTimeout,
    FarroError,
    GrainCallFailed,
    InvalidPayload,
    Overloaded,
    StatelessTurn,
)
from farro.client.interface import grain_interface, interface_of
from farro.silo.activations.invocation import Invocation
from farro.silo.activations.workers import WorkerActivation
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.registered import register_reminder
from farro.silo.grains.stateless import stateless_worker
from farro.silo.grains.subscriptions import subscribe
from farro.silo.host import Silo
from farro.silo.options import ActivationOptions, SiloOptions


class Stage:
    """What the turns of a test do: each stands at its gate until it is opened."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.done: list[str] = []
        self.objects: set[int] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.changed = asyncio.Event()
        self.slept: list[str] = []
        self.fails_to_wake = 0

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not fact():
                await self.changed.wait()


stage = Stage()


@pytest.fixture(autouse=True)
def a_new_stage() -> None:
    global stage
    stage = Stage()


@stateless_worker(max_local=2)
class Thumbs(Grain, name="thumbs", idle_after=timedelta(seconds=60)):
    async def on_activate(self) -> None:
        if stage.fails_to_wake:
            stage.fails_to_wake -= 1
            raise ValueError("no camera")

    async def on_deactivate(self, reason: str) -> None:
        stage.slept.append(reason)

    async def make(self, name: str) -> str:
        stage.running.append(name)
        stage.objects.add(id(self))
        stage.tell()
        await stage.gate(name).wait()
        stage.running.remove(name)
        stage.done.append(name)
        stage.tell()
        return name

    @readonly
    async def look(self, name: str) -> str:
        return await self.make(name)

    async def down(self, depth: int) -> int:
        stage.objects.add(id(self))
        return 0 if depth == 0 else 1 + await self.grain(Thumbs, self.key).down(depth - 1)

    async def go(self) -> None:
        self.deactivate()

    async def wrong(self, what: str) -> None:
        match what:
            case "schedule":
                self.schedule(self.make, "x", after=timedelta(seconds=5))
            case "unschedule":
                self.unschedule(self.make)
            case "unschedule_all":
                self.unschedule_all(self.make)
            case "register":
                await self.register_or_update_reminder("x", timedelta(seconds=5))
            case "unregister":
                await self.unregister_reminder("x")
            case "reminder":
                await self.reminder(self.make)
            case "reminders":
                await self.reminders()
            case "get_reminder":
                await self.get_reminder("x")
            case "get_reminders":
                await self.get_reminders()
            case "publish":
                self.publish("s", 1)
            case "destroy":
                self.destroy()


class Asker(Grain, name="asker"):
    async def ask(self, depth: int) -> int:
        return await self.grain(Thumbs, "t").down(depth)


def silo_of(*grains: type[Grain[Any]], **activations: Any) -> Silo:
    options = SiloOptions(activations=ActivationOptions(**activations))
    return Silo(grains or (Thumbs, Asker), options=options)


async def test_calls_run_side_by_side_up_to_the_bound_and_then_wait_for_whoever_is_free_first() -> None:
    async with silo_of() as silo:
        thumbs = silo.grain(Thumbs, "t")
        calls = {name: asyncio.ensure_future(thumbs.make(name)) for name in "abcd"}
        await stage.until(lambda: sorted(stage.running) == ["a", "b"])
        assert silo.active_grains == 2
        stage.gate("b").set()
        assert await calls["b"] == "b"
        await stage.until(lambda: sorted(stage.running) == ["a", "c"])
        stage.gate("c").set()
        await stage.until(lambda: sorted(stage.running) == ["a", "d"])
        stage.gate("d").set()
        assert [await calls["c"], await calls["d"]] == ["c", "d"]
        assert not calls["a"].done(), "nobody waited behind the long one"
        stage.gate("a").set()
        assert await calls["a"] == "a"
        assert len(stage.objects) == 2


async def test_an_activation_that_is_free_is_used_again_and_ids_do_not_share_theirs() -> None:
    async with silo_of() as silo:
        for name in "abc":
            stage.gate(name).set()
            assert await silo.grain(Thumbs, "t").make(name) == name
        assert silo.active_grains == 1
        stage.gate("d").set()
        assert await silo.grain(Thumbs, "u").make("d") == "d"
        assert silo.active_grains == 2


async def test_a_readonly_call_has_its_activation_for_itself() -> None:
    async with silo_of() as silo:
        calls = [asyncio.ensure_future(silo.grain(Thumbs, "t").look(name)) for name in "abc"]
        await stage.until(lambda: sorted(stage.running) == ["a", "b"])
        for name in "abc":
            stage.gate(name).set()
        assert await asyncio.gather(*calls) == ["a", "b", "c"]
        assert len(stage.objects) == 2


async def test_a_worker_is_entered_again_by_another_activation_until_there_is_none() -> None:
    async with silo_of() as silo:
        thumbs = silo.grain(Thumbs, "t")
        assert await thumbs.down(1) == 1
        assert len(stage.objects) == 2
        with pytest.raises(
            CallCycle, match=r"max_local=2 of them, all wait for it: thumbs/t.down -> "
        ) as caught:
            await thumbs.down(2)
        assert caught.value.chain == ["thumbs/t.down"] * 3
        assert await silo.grain(Asker, "a").ask(1) == 1
        with pytest.raises(CallCycle):
            await silo.grain(Asker, "a").ask(2)


async def test_a_call_that_comes_back_while_others_are_busy_waits_for_one_of_them() -> None:
    async with silo_of() as silo:
        thumbs = silo.grain(Thumbs, "t")
        busy = asyncio.ensure_future(thumbs.make("a"))
        await stage.until(lambda: stage.running == ["a"])
        down = asyncio.ensure_future(thumbs.down(1))
        await asyncio.sleep(0)
        assert not down.done()
        stage.gate("a").set()
        assert [await busy, await down] == ["a", 1]


async def test_what_waits_beyond_the_bound_is_refused_and_what_nobody_wants_makes_room() -> None:
    async with silo_of(mailbox_max=1) as silo:
        thumbs = silo.grain(Thumbs, "t")
        running = [asyncio.ensure_future(thumbs.make(name)) for name in "ab"]
        await stage.until(lambda: len(stage.running) == 2)
        waiting = [asyncio.ensure_future(thumbs.make(name)) for name in "cd"]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"thumbs/t already has 2 messages waiting"):
            await thumbs.make("e")
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        later = asyncio.ensure_future(thumbs.make("f"))
        await asyncio.sleep(0)
        for name in "abcdf":
            stage.gate(name).set()
        assert await asyncio.gather(*running, waiting[1], later) == ["a", "b", "d", "f"]
        assert "c" not in stage.done


async def test_a_waiting_call_whose_deadline_passed_never_starts() -> None:
    async with silo_of() as silo:
        thumbs = silo.grain(Thumbs, "t")
        running = [asyncio.ensure_future(thumbs.make(name)) for name in "ab"]
        await stage.until(lambda: len(stage.running) == 2)
        with pytest.raises(CallTimeout):
            await thumbs.with_options(timeout=0.01).make("late")
        last = asyncio.ensure_future(thumbs.make("c"))
        for name in ("a", "b", "c", "late"):
            stage.gate(name).set()
        assert await asyncio.gather(*running, last) == ["a", "b", "c"]
        assert "late" not in stage.done


async def test_a_worker_that_cannot_wake_tells_its_own_caller_and_the_next_one_tries_anew() -> None:
    async with silo_of() as silo:
        thumbs = silo.grain(Thumbs, "t")
        stage.fails_to_wake = 3
        stage.gate("d").set()
        calls = [asyncio.ensure_future(thumbs.make(name)) for name in "abcd"]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in answers] == [GrainCallFailed] * 3 + [str]
        assert silo.active_grains == 1


async def test_idle_workers_are_put_to_sleep_like_any_grain() -> None:
    async with silo_of() as silo:
        catalog = silo.rooms.catalog
        calls = [asyncio.ensure_future(silo.grain(Thumbs, "t").make(name)) for name in "ab"]
        await stage.until(lambda: len(stage.running) == 2)
        stage.gate("a").set()
        await calls[0]
        for each in catalog._workers:
            each.last_active -= 61
        assert catalog.collect() == 1
        stage.gate("b").set()
        await calls[1]
        await silo.rooms.turn_tasks.wait(10)
        assert silo.active_grains == 1
        assert stage.slept == ["idle"]


async def test_a_worker_may_put_itself_to_sleep_and_what_waits_is_served() -> None:
    async with silo_of() as silo:
        thumbs = silo.grain(Thumbs, "t")
        running = [asyncio.ensure_future(thumbs.make(name)) for name in "ab"]
        await stage.until(lambda: len(stage.running) == 2)
        waiting = [asyncio.ensure_future(thumbs.go()), asyncio.ensure_future(thumbs.make("c"))]
        for name in "abc":
            stage.gate(name).set()
        assert await asyncio.gather(*running, *waiting) == ["a", "b", None, "c"]
        await silo.rooms.turn_tasks.wait(10)
        assert stage.slept == ["the grain asked for it"]
        assert silo.active_grains == 1


async def test_a_silo_that_stops_answers_what_waits() -> None:
    async with silo_of() as silo:
        calls = [asyncio.ensure_future(silo.grain(Thumbs, "t").make(name)) for name in "abcd"]
        await stage.until(lambda: len(stage.running) == 2)
        for name in "abcd":
            stage.gate(name).set()
    assert await asyncio.gather(*calls) == list("abcd")
    assert stage.slept == ["the silo stops"] * 2


@pytest.mark.parametrize(
    "what",
    [
        "schedule",
        "unschedule",
        "unschedule_all",
        "register",
        "unregister",
        "reminder",
        "reminders",
        "get_reminder",
        "get_reminders",
        "publish",
        "destroy",
    ],
)
async def test_a_worker_has_nothing_that_is_stored(what: str) -> None:
    async with silo_of() as silo:
        with pytest.raises(GrainCallFailed, match=r"StatelessTurn: thumbs/t is a stateless worker") as caught:
            await silo.grain(Thumbs, "t").wrong(what)
        assert caught.value.remote_type.endswith(".StatelessTurn")


async def test_nobody_can_set_a_reminder_of_a_worker_from_outside() -> None:
    async with silo_of() as silo:
        with pytest.raises(FarroError, match=r"has no receive_reminder|lives in no partition"):
            await silo.reminders.register_or_update("thumbs/t", "x", timedelta(seconds=5))
        with pytest.raises(InvalidPayload, match="thumbs/t lives in no partition"):
            await silo.reminders.unregister("thumbs/t", "x")


async def test_a_tick_for_a_class_that_became_a_worker_is_refused() -> None:
    heard: list[Any] = []
    async with silo_of() as silo:
        call = Invocation("thumbs", "t", "make", ["x"], None, 1e12, (), lambda *said: heard.append(said))
        call.delivery = object()  # type: ignore[assignment]
        silo.rooms.catalog.submit(call)
        assert silo.active_grains == 0
    assert len(heard) == 1
    assert isinstance(heard[0][1], StatelessTurn)


async def test_a_worker_is_never_looked_for_by_name() -> None:
    async with silo_of() as silo:
        stage.gate("a").set()
        await silo.grain(Thumbs, "t").make("a")
        assert silo.rooms.catalog.awake("thumbs", "t") is None
        (activation,) = silo.rooms.catalog._workers
        assert isinstance(activation, WorkerActivation)


# ---- declarations


def test_the_bound_is_the_number_of_cpus_where_none_is_given() -> None:
    @stateless_worker
    class Plain(Grain):
        async def work(self) -> None: ...

    @stateless_worker()
    class Called(Grain):
        async def work(self) -> None: ...

    assert (
        Plain.__farro_class__.max_local == Called.__farro_class__.max_local == min(os.cpu_count() or 1, 256)
    )
    assert interface_of(Plain).stateless


def test_a_worker_is_not_inherited_and_a_client_without_the_class_can_name_it() -> None:
    class Special(Thumbs, name="special"):
        pass

    assert Special.__farro_class__.max_local == 0
    assert not interface_of(Special).stateless

    @grain_interface("thumbs", stateless=True)
    class Api:
        async def make(self, name: str) -> None: ...

    assert interface_of(Api).stateless


@dataclass
class Count:
    n: int = 0


class WithState(Grain[Count]):
    pass


class WithReminders(Grain):
    async def receive_reminder(self, name: str, status: Any) -> None: ...


@register_reminder("daily", cron="0 0 * * *")
class WithDeclared(WithReminders):
    pass


class WithEvents(Grain):
    @subscribe("orders")
    async def order(self, event: Any) -> None: ...


class WithAffinity(Grain, affinity=str):
    pass


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (WithState, "has no state"),
        (WithReminders, "has no reminders"),
        (WithDeclared, "has no reminders"),
        (WithEvents, "subscribes to nothing, and this one does to 'orders'"),
        (WithAffinity, "affinity= has no meaning"),
    ],
)
def test_what_a_worker_cannot_have_is_a_mistake_of_its_declaration(cls: type, problem: str) -> None:
    with pytest.raises(TypeError, match=problem) as caught:
        stateless_worker(max_local=2)(cls)
    assert f"{cls.__qualname__} (" in str(caught.value), "it says where"
    assert cls.__farro_class__.max_local == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("bound", [0, -1, 257, 1.5, True, "4"])
def test_a_bound_that_cannot_be_is_refused(bound: Any) -> None:
    with pytest.raises(ValueError, match="max_local must be an int from 1 to 256"):
        stateless_worker(max_local=bound)


def test_the_mark_goes_on_grain_classes() -> None:
    with pytest.raises(TypeError, match="goes on a Grain subclass"):
        stateless_worker(dict)
    with pytest.raises(TypeError, match="give the number as max_local="):
        stateless_worker(4)  # type: ignore[call-overload]
