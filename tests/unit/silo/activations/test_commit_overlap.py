"""A committer on a store that takes a second batch before the first is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from farro.client.errors import CommitOutcomeUnknown, StorageUnavailable
from farro.providers.conformance.made import writing
from farro.providers.errors import OutcomeUnknown, Unavailable
from farro.providers.memory import MemoryProvider
from farro.providers.rows import Commit, Outcome, Verdict
from farro.silo.activations.commit import OVERLAP, Committer
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World

DEPTH = 2


class OneAfterTheOther(MemoryProvider):
    """Answers each batch when it is told to, in the order given."""

    depth = DEPTH

    def prepare(self) -> None:
        self.given: list[list[str]] = []
        self.go_on = asyncio.Semaphore(0)
        self.failures: dict[int, Exception] = {}  # by the number of the batch
        self._turn = asyncio.Lock()

    @property
    def lane_depth(self) -> int:
        return self.depth

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        number = len(self.given)
        self.given.append([member.grain_key for member in batch])
        async with self._turn:
            await self.go_on.acquire()
            if number in self.failures:
                raise self.failures[number]
            return await super().commit(batch, owner, now)


class OverlappingWorld(World):
    def provider(self) -> OneAfterTheOther:  # type: ignore[override]
        return self.slow

    async def begin(self, depth: int = DEPTH) -> None:
        self.slow = OneAfterTheOther(self._memory)
        self.slow.prepare()
        self.slow.depth = depth
        self.slow.go_on.release()
        await self.start()
        self.slow.prepare()

    @property
    def committer(self) -> Committer:
        return self.silo.rooms.committer

    def commits(self, first: int, count: int) -> list[asyncio.Future[Verdict]]:
        return [
            self.committer.commit(Commit(0, 1, "shipments", f"k{number}", grain=writing(0)))
            for number in range(first, first + count)
        ]


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[OverlappingWorld]:
    world = OverlappingWorld(virtual)
    await world.begin()
    yield world
    for _ in range(100):
        world.slow.go_on.release()
    await world.silo.stop()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def sizes(world: OverlappingWorld) -> list[int]:
    return [len(batch) for batch in world.slow.given]


async def test_the_second_half_of_a_queue_is_there_before_the_first_is_answered(
    world: OverlappingWorld,
) -> None:
    futures = world.commits(0, 2 * OVERLAP)
    await settle()
    assert sizes(world) == [OVERLAP, OVERLAP]
    assert world.slow.given[0][0] == "k0" and world.slow.given[1][0] == f"k{OVERLAP}"
    more = world.commits(100, OVERLAP)
    await settle()
    assert len(world.slow.given) == DEPTH, "no more than the lane takes"
    world.slow.go_on.release()
    await settle()
    assert all(future.done() for future in futures[:OVERLAP]) and not futures[OVERLAP].done()
    assert sizes(world) == [OVERLAP] * 3
    world.slow.go_on.release()
    world.slow.go_on.release()
    verdicts = await asyncio.gather(*futures, *more)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.COMMITTED}


async def test_a_short_queue_waits_for_the_answer_and_grows(world: OverlappingWorld) -> None:
    first = world.commits(0, 1)
    await settle()
    behind = world.commits(1, OVERLAP - 1)
    await settle()
    assert sizes(world) == [1]
    world.slow.go_on.release()
    await settle()
    assert sizes(world) == [1, OVERLAP - 1]
    world.slow.go_on.release()
    await asyncio.gather(*first, *behind)


async def test_what_is_left_of_a_queue_goes_when_nothing_is_under_way(world: OverlappingWorld) -> None:
    futures = world.commits(0, OVERLAP + 8)
    await settle()
    assert sizes(world) == [OVERLAP]
    for _ in range(2):
        world.slow.go_on.release()
        await settle()
    assert sizes(world) == [OVERLAP, 8]
    await asyncio.gather(*futures)


async def test_a_long_queue_goes_in_full_batches(world: OverlappingWorld) -> None:
    most = world.silo.options.activations.commit_batch_max
    futures = world.commits(0, 5 * most)
    await settle()
    assert sizes(world) == [most, most]
    for _ in range(10):
        world.slow.go_on.release()
    await asyncio.gather(*futures)
    assert sum(sizes(world)) == 5 * most and sizes(world)[:4] == [most] * 4


async def test_a_store_that_takes_one_at_a_time_is_given_one(virtual: VirtualClock) -> None:
    world = OverlappingWorld(virtual)
    await world.begin(depth=1)
    futures = world.commits(0, 2 * OVERLAP)
    await settle()
    assert sizes(world) == [2 * OVERLAP]
    more = world.commits(100, OVERLAP)
    await settle()
    assert sizes(world) == [2 * OVERLAP]
    for _ in range(4):
        world.slow.go_on.release()
    await asyncio.gather(*futures, *more)
    assert sizes(world) == [2 * OVERLAP, OVERLAP]
    world.slow.go_on.release()
    await world.silo.stop()


@pytest.mark.parametrize(
    ("failure", "error"),
    [(Unavailable("not taken"), StorageUnavailable), (OutcomeUnknown("lost"), CommitOutcomeUnknown)],
)
async def test_a_failure_of_the_first_says_nothing_of_the_second(
    world: OverlappingWorld, failure: Exception, error: type[Exception]
) -> None:
    futures = world.commits(0, 2 * OVERLAP)
    await settle()
    world.slow.failures[0] = failure
    world.slow.go_on.release()
    await settle()
    assert {type(future.exception()) for future in futures[:OVERLAP]} == {error}
    assert world.committer.failures_in_a_row == 1
    world.slow.go_on.release()
    assert {each.outcome for each in await asyncio.gather(*futures[OVERLAP:])} == {Outcome.COMMITTED}
    assert world.committer.healthy


async def test_a_drain_that_is_cancelled_before_it_begins_leaves_nobody_waiting(
    world: OverlappingWorld,
) -> None:
    first = world.commits(0, 1)
    await settle()
    second = world.commits(1, OVERLAP)
    for task in asyncio.all_tasks():
        if task.get_name() == "commit":
            task.cancel()
    await settle()
    assert {type(future.exception()) for future in first} == {CommitOutcomeUnknown}
    assert {type(future.exception()) for future in second} == {StorageUnavailable}
    late = world.commits(100, 1)
    world.slow.go_on.release()
    await settle()
    assert late[0].done()


async def test_the_end_of_the_silo_is_told_to_both_and_to_all_that_wait(world: OverlappingWorld) -> None:
    futures = world.commits(0, 2 * OVERLAP + 5)
    await settle()
    await world.silo.tear_down(0.1)
    kinds = [type(future.exception()) for future in futures]
    assert kinds == [CommitOutcomeUnknown] * (2 * OVERLAP) + [StorageUnavailable] * 5
