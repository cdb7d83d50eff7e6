"""A provider or a listener that raises what nobody expects: who waits is answered, and the silo goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest

from farro.client.errors import CommitOutcomeUnknown, StorageUnavailable
from farro.providers.memory import MemoryProvider
from farro.silo.host import Silo
from farro.silo.options import SiloOptions
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World, s


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[World]:
    world = World(virtual)
    async with world.up():
        yield world


def breaks(world: World, verb: str, times: int = 1) -> None:
    """The next calls of ``verb`` raise something that is no StoreError."""
    left = times

    def policy(called: str) -> Fault | None:
        nonlocal left
        if called == verb and left:
            left -= 1
            raise MemoryError("a fault in the provider")
        return None

    world.store.policy = policy


async def queued(world: World, verb: str, start: Callable[[str], Any]) -> list[Any]:
    """What calls to four grains answer, the first of which is at the store while the others queue."""
    world.store.freeze(verb)
    first = asyncio.ensure_future(start("0"))
    await world.store.until_frozen(verb)
    breaks(world, verb)
    others = asyncio.gather(*(start(key) for key in "123"), return_exceptions=True)
    await asyncio.sleep(1)
    world.store.thaw()
    outcome = await asyncio.gather(first, return_exceptions=True)
    return [outcome[0], *await others]


async def test_commits_behind_one_that_met_a_fault_of_the_provider_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for key in "0123":
        await world.do(key, lambda bell: None)

    def start(key: str) -> Any:
        return world.do(key, lambda bell: setattr(bell.state, "note", key))

    first, *others = await queued(world, "commit", start)
    assert isinstance(first, CommitOutcomeUnknown)
    assert others == [None, None, None]
    assert any(record.exc_info for record in caplog.records)
    assert world.silo.healthy


async def test_loads_behind_one_that_met_a_fault_of_the_provider_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, *others = await queued(world, "load", lambda key: world.do(key, lambda bell: 7))
    assert isinstance(first, StorageUnavailable)
    assert others == [7, 7, 7]
    assert any(record.exc_info for record in caplog.records)


async def test_a_listener_that_raises_keeps_nobody_from_the_answer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(*args: Any) -> None:
        raise LookupError("a fault in a listener")

    world.silo.rooms.committer.listen(listener, lost=listener)
    await world.do("b", lambda bell: setattr(bell.state, "note", 1))
    world.store.fail("commit", Fault.LOST_AFTER)
    with pytest.raises(CommitOutcomeUnknown):
        await world.do("b", lambda bell: setattr(bell.state, "note", 2))
    assert caplog.text.count("LookupError: a fault in a listener") == 2


async def test_a_silo_whose_loads_fail_is_not_healthy_until_one_succeeds(world: World) -> None:
    world.store.fail("load", Fault.UNAVAILABLE)
    with pytest.raises(StorageUnavailable):
        await world.do("b", lambda bell: None)
    assert not world.silo.healthy
    await world.do("b", lambda bell: None)
    assert world.silo.healthy


async def test_a_reminder_that_could_not_be_read_again_for_a_fault_fires_all_the_same(world: World) -> None:
    start = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await asyncio.sleep(5)
    world.store.fail("commit", Fault.LOST_BEFORE)
    breaks(world, "reminder", times=3)
    await asyncio.sleep(120)
    assert len(world.rungs) == 2  # once for the commit that got lost, once for the one that counts
    assert world.fired_at()[0] == start + s(10)
    assert await world.rung("b") == 1


async def test_a_silo_the_store_does_not_know_any_more_joins_again_and_goes_on(world: World) -> None:
    told: list[str] = []
    world.silo.on_failure(told.append)
    number = world.silo.number
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(40)))
    await world.store.inner.leave(number, world.clock.now())
    await asyncio.sleep(60)
    assert world.silo.number > number
    assert world.silo.healthy and told == []
    assert await world.rung("b") == 1


class Clinging(MemoryProvider):
    """A provider that fails at its end."""

    async def leave(self, number: int, now: int) -> None:
        raise LookupError("a fault at the good-bye")

    async def close(self) -> None:
        await super().close()
        raise OSError("a fault at closing")


async def test_a_silo_stops_whatever_its_store_says_to_it(caplog: pytest.LogCaptureFixture) -> None:
    silo = Silo([Bell], Clinging())
    await silo.start()
    await silo.stop()
    with pytest.raises(RuntimeError, match="this silo is stopped"):
        await silo.start()
    assert "a fault at the good-bye" in caplog.text and "a fault at closing" in caplog.text


async def lowering(wanted_s: float) -> Silo:
    silo = Silo([Bell], options=SiloOptions(switch_interval=timedelta(seconds=wanted_s)))
    await silo.start()
    return silo


@pytest.mark.parametrize(("set_meanwhile", "left"), [(None, 0.005), (0.003, 0.003)])
async def test_a_stopped_silo_puts_the_switch_interval_back_unless_somebody_changed_it(
    set_meanwhile: float | None, left: float
) -> None:
    found = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        silo = await lowering(0.001)
        assert sys.getswitchinterval() == pytest.approx(0.001)
        if set_meanwhile is not None:
            sys.setswitchinterval(set_meanwhile)
        await silo.stop()
        assert sys.getswitchinterval() == pytest.approx(left)
    finally:
        sys.setswitchinterval(found)
