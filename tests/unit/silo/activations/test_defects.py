"""What an author's worst code, or a fault of farro's own, must not do: wedge a grain, a stop, a reminder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from farro.client.errors import CallTimeout, FarroError, GrainCallFailed, SiloStopping
from farro.silo import ActivationOptions, Grain, ReminderOptions, Silo, SiloOptions, TickStatus
from farro.silo.testing.virtual_time import VirtualClock


@dataclass
class Count:
    value: int = 0


class Trouble(Grain[Count], name="trouble"):
    """Every method is a way to misbehave."""

    released = False

    async def add(self) -> int:
        self.state.value += 1
        return self.state.value

    async def destroy_and_raise(self) -> None:
        await asyncio.sleep(1)
        self.destroy()
        raise ValueError("changed my mind")

    async def boom(self) -> None:
        raise ValueError("boom")

    async def cancel_itself(self) -> int:
        self.state.value += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return self.state.value

    async def cancel_itself_and_wait(self) -> None:
        await self.cancel_itself()
        await asyncio.sleep(1)

    async def never(self) -> None:
        while not Trouble.released:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def again(self, other: str) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await self.grain(Trouble, other).add()


class SlowToWake(Grain[Count], name="slow-to-wake"):
    ran = 0

    async def on_activate(self) -> None:
        if self.key == "slow":
            await asyncio.sleep(1000)

    async def on_deactivate(self, reason: str) -> None:
        raise SystemExit(3)

    async def arm(self) -> None:
        self.schedule(self.ring, after=timedelta(seconds=1))

    async def ring(self) -> None:
        type(self).ran += 1

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        type(self).ran += 1


def new_silo(clock: VirtualClock, **activations: Any) -> Silo:
    options = SiloOptions(
        stop_timeout=timedelta(seconds=5),
        activations=ActivationOptions(**activations),
        reminders=ReminderOptions(max_attempts=1),
    )
    return Silo([Trouble, SlowToWake], "memory://", options=options, clock=clock)


@pytest.fixture
async def silo(virtual: VirtualClock) -> AsyncGenerator[Silo]:
    async with new_silo(virtual) as silo:
        yield silo


async def test_destroy_in_a_turn_that_raises_touches_nobody(silo: Silo) -> None:
    grain = silo.grain(Trouble, "a")
    await grain.add()
    failing = asyncio.ensure_future(grain.destroy_and_raise())
    await asyncio.sleep(0.5)
    waiting = [asyncio.ensure_future(grain.add()) for _ in range(2)]
    with pytest.raises(GrainCallFailed, match="changed my mind"):
        await failing
    assert [await each for each in waiting] == [2, 3]


async def test_a_logging_filter_that_raises_does_not_wedge_the_grain(silo: Silo) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError("the filter is broken")

    logger = logging.getLogger("farro.turns")
    logger.addFilter(broken)
    try:
        with pytest.raises((FarroError, RuntimeError)):
            await asyncio.wait_for(silo.grain(Trouble, "a").boom(), 5)
    finally:
        logger.removeFilter(broken)
    assert await silo.grain(Trouble, "a").add() == 1


async def test_a_method_that_cancels_its_own_task_and_returns_has_committed(silo: Silo) -> None:
    grain = silo.grain(Trouble, "a")
    assert await grain.cancel_itself() == 1
    assert await grain.add() == 2


async def test_a_method_that_cancels_its_own_task_and_waits_has_failed(silo: Silo) -> None:
    grain = silo.grain(Trouble, "a")
    with pytest.raises(GrainCallFailed, match="CancelledError"):
        await grain.cancel_itself_and_wait()
    assert await grain.add() == 1


async def test_on_deactivate_that_exits_lets_the_grain_go(silo: Silo) -> None:
    grain = silo.grain(SlowToWake, "quick")
    await grain.arm()
    await asyncio.sleep(3600)
    await grain.arm()


async def test_expired_calls_hold_no_place_in_a_full_mailbox(virtual: VirtualClock) -> None:
    async with new_silo(virtual, mailbox_max=10) as silo:
        stuck = silo.grain(Trouble, "a")
        running = asyncio.ensure_future(stuck.wait(100))
        await asyncio.sleep(0.1)
        quick = stuck.with_options(timeout=1.0)
        gone = [asyncio.ensure_future(quick.add()) for _ in range(10)]
        await asyncio.sleep(2)
        assert all(isinstance(each.exception(), CallTimeout) for each in gone)
        last = asyncio.ensure_future(stuck.with_options(timeout=500.0).add())
        with pytest.raises(CallTimeout):
            await running
        assert await last == 1  # none of the ten ran


async def test_a_stop_ends_although_a_turn_swallows_its_cancellation(virtual: VirtualClock) -> None:
    silo = new_silo(virtual)
    await silo.start()
    call = asyncio.ensure_future(silo.grain(Trouble, "a").never())
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await silo.stop()
    assert asyncio.get_running_loop().time() - began < 30
    Trouble.released = True
    for task in asyncio.all_tasks():
        if task.get_name() in ("turn", "activate"):
            task.cancel()
    with pytest.raises(FarroError):
        await call


async def test_turns_that_call_each_other_as_they_are_cut_off_do_not_keep_the_stop_waiting(
    virtual: VirtualClock,
) -> None:
    silo = new_silo(virtual)
    await silo.start()
    calls = [
        asyncio.ensure_future(silo.grain(Trouble, one).again(other))
        for one, other in (("a", "b"), ("b", "a"))
    ]
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await silo.stop()
    assert asyncio.get_running_loop().time() - began < 30
    assert all(isinstance(each, FarroError) for each in await asyncio.gather(*calls, return_exceptions=True))


async def test_a_stop_while_a_grain_wakes_costs_its_reminder_no_attempt(virtual: VirtualClock) -> None:
    SlowToWake.ran = 0
    options = SiloOptions(stop_timeout=timedelta(seconds=5), reminders=ReminderOptions(max_attempts=1))
    async with Silo([Trouble, SlowToWake], "memory://wakes", options=options, clock=virtual) as silo:
        await silo.reminders.register_or_update("slow-to-wake/slow", "bell", timedelta(seconds=1))
        await asyncio.sleep(2)  # the tick wakes the grain, whose on_activate takes its time
        call = asyncio.ensure_future(silo.call("slow-to-wake", "slow", "arm"))
        await asyncio.sleep(1)
    with pytest.raises(SiloStopping):
        await call
    async with Silo([Trouble, SlowToWake], "memory://wakes", options=options, clock=virtual) as silo:
        bell = await silo.reminders.get("slow-to-wake/slow", "bell")
        assert bell is not None and (bell.status, bell.attempts) == ("scheduled", 0)
