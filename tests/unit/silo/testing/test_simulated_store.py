"""The way to a simulated store: slow, cut, lying; what is promised all the same, and the log."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from farro.client.identity import partition_of
from farro.providers.errors import OutcomeUnknown, Unavailable
from farro.providers.memory_tables import PARTITIONS
from farro.providers.rows import Commit, GrainWrite, Outcome
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.simulated_provider import SimulatedProvider
from farro.silo.testing.simulated_store import Committed, Member, SimulatedStore, Taken
from farro.silo.testing.simulated_time import Simulation

GRAIN = ("ledger", "a")
PARTITION = partition_of(*GRAIN, PARTITIONS)
SECOND = 1_000_000


class World:
    """A store, and one process beside it with a silo that owns everything."""

    def __init__(self) -> None:
        self.simulation = Simulation(1)
        self.store = SimulatedStore(self.simulation)
        self.loop = self.simulation.loop("one")
        self.provider = SimulatedProvider(self.store, self.loop)
        self.number = self.run(self._join())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.simulation.run(self.loop, work)

    async def _join(self) -> int:
        await self.provider.open(0)
        row = await self.provider.join("10.0.0.1:1", 0)
        await self.provider.take(row.number, [PARTITION], 0)
        return row.number

    async def commit(self, version: int, state: bytes = b"s", epoch: int = 1) -> Outcome:
        member = Commit(PARTITION, epoch, *GRAIN, grain=GrainWrite(version, True, state))
        return (await self.provider.commit([member], self.number, 0))[0].outcome

    @property
    def version(self) -> int:
        row = self.store.service.grains.get(GRAIN)
        return 0 if row is None else row.version


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.simulation.close()


def test_the_log_has_what_was_committed_and_taken_in_order_with_the_true_time(world: World) -> None:
    assert world.run(world.commit(0)) is Outcome.COMMITTED
    assert world.run(world.commit(0)) is Outcome.CONFLICT
    member, taken, committed = world.store.log
    assert isinstance(member, Member)
    assert isinstance(taken, Taken)
    assert isinstance(committed, Committed)
    assert (taken.silo, taken.partition, taken.epoch, taken.before) == (world.number, PARTITION, 1, 0)
    assert (committed.silo, committed.commit.epoch, committed.verdict.version) == (world.number, 1, 1)
    assert world.simulation.start_us < taken.at < committed.at < world.simulation.wall_us


def test_requests_take_their_time(world: World) -> None:
    world.provider.trouble.delay_us = (SECOND, SECOND)
    began = world.simulation.now_us
    world.run(world.commit(0))
    assert world.simulation.now_us == began + 2 * SECOND


@pytest.mark.parametrize(
    ("fault", "error", "landed"),
    [
        (Fault.UNAVAILABLE, Unavailable, 0),
        (Fault.LOST_BEFORE, OutcomeUnknown, 0),
        (Fault.LOST_AFTER, OutcomeUnknown, 1),
    ],
)
def test_a_fault_says_the_truth_about_what_may_have_happened(
    world: World, fault: Fault, error: type[Exception], landed: int
) -> None:
    world.provider.trouble.chances = {fault: 1.0}
    with pytest.raises(error):
        world.run(world.commit(0))
    assert world.version == landed


def test_a_straggler_lands_before_the_next_load_of_its_partition(world: World) -> None:
    world.provider.trouble.late_us = 3_600 * SECOND
    world.provider.trouble.chances = {Fault.STRAGGLES: 1.0}
    with pytest.raises(OutcomeUnknown):
        world.run(world.commit(0))
    world.provider.trouble.chances.clear()
    assert world.version == 0
    (row,) = world.run(world.provider.load([GRAIN]))
    assert row is not None
    assert row.version == world.version == 1


def test_a_straggler_that_a_take_over_has_overtaken_is_fenced(world: World) -> None:
    world.provider.trouble.late_us = 3_600 * SECOND
    world.provider.trouble.chances = {Fault.STRAGGLES: 1.0}
    with pytest.raises(OutcomeUnknown):
        world.run(world.commit(0))
    world.provider.trouble.chances.clear()
    setattr(world.store.simulation.random, "random", lambda: 0.9)  # noqa: B010 - so that the take comes first
    world.run(world.provider.take(world.number, [PARTITION], 0))
    world.store.land()
    assert world.version == 0


def test_a_database_that_goes_away_loses_answers_and_locks_and_gets_the_locks_back(world: World) -> None:
    assert world.run(world.provider.is_held(world.number))
    world.store.stop()
    with pytest.raises(Unavailable):
        world.run(world.provider.cluster())
    assert world.store.service.locks == {}
    world.store.restart()
    assert world.run(world.provider.is_held(world.number)), "the first request takes the lock again"


def test_a_process_that_is_no_more_holds_no_lock(world: World) -> None:
    world.provider.forget_locks()
    other = SimulatedProvider(world.store, world.loop)
    world.run(other.open(0))
    assert not world.run(other.is_held(world.number))


def test_a_process_that_is_cut_off_hears_nothing_and_others_go_on(world: World) -> None:
    other = SimulatedProvider(world.store, world.loop)
    world.run(other.open(0))
    world.provider.reachable = False
    with pytest.raises(Unavailable):
        world.run(world.provider.load([GRAIN]))
    assert world.run(other.load([GRAIN])) == [None]


def test_what_was_sent_before_a_freeze_lands_and_its_answer_waits(world: World) -> None:
    world.provider.trouble.delay_us = (SECOND, SECOND)
    answers: list[Outcome] = []

    async def work() -> None:
        answers.append(await world.commit(0))

    task = world.loop.create_task(work())
    simulation = world.simulation
    began = simulation.now_us
    simulation.at(began + SECOND // 2, world.loop.freeze)
    simulation.run_until(began + 10 * SECOND)
    assert (world.version, answers) == (1, [])
    world.loop.thaw()
    simulation.run_until(began + 11 * SECOND)
    assert answers == [Outcome.COMMITTED]
    assert task.done()
