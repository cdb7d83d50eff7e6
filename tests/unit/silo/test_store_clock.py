"""Database time: never ahead of the store's clock, whatever the machine's clocks do."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.client.clock import SystemClock, to_us
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.store_clock import StoreClock

SECOND = 1_000_000
HOUR = 3_600 * SECOND


class Machine:
    """A clock of a machine: wrong by ``ahead``, its quartz too fast by ``ppm``."""

    def __init__(self, ahead: int = 0, ppm: int = 0) -> None:
        self.true = 1_800_000_000 * SECOND
        self.ahead = ahead
        self._ppm = ppm
        self._steady = 0.0

    def pass_by(self, us: int) -> None:
        self.true += us
        self._steady += us * (1 + self._ppm / 1e6)

    def now(self) -> int:
        return self.true + self.ahead

    def steady(self) -> int:
        return int(self._steady)

    def loop_seconds(self, schedule_us: int) -> float:
        return schedule_us / 1e6


def asks(clock: StoreClock, machine: Machine, *, there: int, back: int, store_is_behind: int = 0) -> None:
    asked_at = clock.steady()
    machine.pass_by(there)
    shown = machine.true - store_is_behind
    machine.pass_by(back)
    clock.heard(shown, asked_at)


def test_it_is_the_machines_clock_until_the_store_says_what_time_it_is() -> None:
    machine = Machine(ahead=5 * SECOND)
    clock = StoreClock(machine)
    assert clock.now() == machine.now()
    asks(clock, machine, there=300, back=700)
    assert clock.now() == machine.true - 700
    machine.ahead -= HOUR
    machine.pass_by(SECOND)
    assert machine.true - 1_000 < clock.now() <= machine.true - 700


def test_an_answer_that_took_long_takes_nothing_from_a_better_one() -> None:
    machine = Machine()
    clock = StoreClock(machine)
    asks(clock, machine, there=100, back=100)
    asks(clock, machine, there=100, back=2 * SECOND)
    assert machine.true - 1_000 < clock.now() <= machine.true


@pytest.mark.parametrize("behind", [10_000, SECOND, HOUR])
def test_a_store_whose_clock_was_set_back_is_followed_at_once(behind: int) -> None:
    machine = Machine()
    clock = StoreClock(machine)
    asks(clock, machine, there=100, back=100)
    asks(clock, machine, there=1_000, back=1_000, store_is_behind=behind)
    assert clock.now() <= machine.true - behind
    assert clock.now() > machine.true - behind - 5_000


@given(
    ahead=st.integers(-10 * HOUR, 10 * HOUR),
    ppm=st.integers(-200, 200),
    steps=st.lists(
        st.tuples(st.integers(0, HOUR), st.integers(0, 3 * SECOND), st.integers(0, 3 * SECOND)), min_size=1
    ),
)
def test_it_is_never_ahead_of_the_store_and_not_far_behind(
    ahead: int, ppm: int, steps: list[tuple[int, int, int]]
) -> None:
    machine = Machine(ahead, ppm)
    clock = StoreClock(machine)
    for passes, there, back in steps:
        asks(clock, machine, there=there, back=back)
        assert clock.now() <= machine.true
        assert clock.now() >= machine.true - back - 5
        before = machine.true - clock.now()
        machine.pass_by(passes)
        assert clock.now() <= machine.true + 1  # of rounding
        assert machine.true - clock.now() <= before + passes * 4 // 10_000 + 2


# ---- silos on machines whose clocks are wrong


class WrongClock(SystemClock):
    def __init__(self, ahead: timedelta) -> None:
        self._ahead_us = int(ahead.total_seconds() * 1e6)

    def now(self) -> int:
        return super().now() + self._ahead_us


class Elsewhere(MemoryProvider):
    """A store on another machine, whose clock is right."""

    async def store_time(self) -> int:
        return SystemClock().now()


class Egg(Grain):
    began: asyncio.Future[tuple[int, int]]

    async def boil(self) -> None:
        self.schedule(self.ready, after=timedelta(milliseconds=200))

    async def ready(self) -> None:
        assert self.tick is not None
        Egg.began.set_result((to_us(self.tick.due_at), SystemClock().now()))


@pytest.mark.parametrize("ahead", [timedelta(minutes=10), timedelta(minutes=-10)])
async def test_a_machine_whose_clock_is_wrong_delivers_in_time_and_never_early(ahead: timedelta) -> None:
    Egg.began = asyncio.get_running_loop().create_future()
    store = Elsewhere(MemoryStore())
    asked_at = SystemClock().now()
    async with Silo([Egg], store, None, clock=StoreClock(WrongClock(ahead))) as silo:
        await silo.grain(Egg, "one").boil()
        due_at, began_at = await asyncio.wait_for(Egg.began, 30)
        assert asked_at < due_at <= began_at
        assert due_at - asked_at < 60 * SECOND
