"""A committer on a store with several lanes: none waits for another, and a partition keeps its order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from random import Random

import pytest

from farro.client.errors import CommitOutcomeUnknown, StorageUnavailable
from farro.providers.conformance.made import writing
from farro.providers.errors import StoreChanged, Unavailable
from farro.providers.memory import MemoryProvider
from farro.providers.rows import Commit, Outcome, Verdict
from farro.silo.activations.commit import Committer
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World

LANES = 3


class Lanes(MemoryProvider):
    """Three lanes; ``closed`` ones keep their batches, ``failing`` ones refuse them, each after its time."""

    def prepare(self) -> None:
        self.opened = [asyncio.Event() for _ in range(LANES)]
        for gate in self.opened:
            gate.set()
        self.arrived: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.failing: dict[int, Exception] = {}
        self.random = Random(7)
        self.batches: list[tuple[int, list[str]]] = []

    @property
    def lanes(self) -> int:
        return LANES

    @property
    def lane_depth(self) -> int:
        return 1

    def lane_of(self, partition: int) -> int:
        return partition % LANES

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        (lane,) = {self.lane_of(member.partition) for member in batch}
        self.batches.append((lane, [member.grain_key for member in batch]))
        self.arrived[lane].set()
        await self.opened[lane].wait()
        await asyncio.sleep(self.random.random() / 100)
        if lane in self.failing:
            raise self.failing[lane]
        return await super().commit(batch, owner, now)


class LanedWorld(World):
    def provider(self) -> Lanes:  # type: ignore[override]
        return self.lanes

    async def begin(self) -> None:
        self.lanes = Lanes(self._memory)
        self.lanes.prepare()
        await self.start()

    @property
    def committer(self) -> Committer:
        return self.silo.rooms.committer

    def member(self, partition: int, key: str, epoch: int = 1) -> Commit:
        return Commit(partition, epoch, "shipments", key, grain=writing(0))

    def commit(self, partition: int, key: str, epoch: int = 1) -> asyncio.Future[Verdict]:
        return self.committer.commit(self.member(partition, key, epoch))


@pytest.fixture
async def world(virtual: VirtualClock) -> AsyncGenerator[LanedWorld]:
    world = LanedWorld(virtual)
    await world.begin()
    yield world
    for gate in world.lanes.opened:
        gate.set()
    await world.silo.stop()


async def test_a_lane_whose_batch_is_out_holds_up_no_other(world: LanedWorld) -> None:
    world.lanes.opened[0].clear()
    held = world.commit(0, "held")
    await world.lanes.arrived[0].wait()
    behind = [world.commit(0, f"behind-{number}") for number in range(2)]
    free = await asyncio.gather(world.commit(1, "one"), world.commit(2, "two"), world.commit(4, "four"))
    assert [verdict.outcome for verdict in free] == [Outcome.COMMITTED] * 3
    assert not held.done() and not any(future.done() for future in behind)
    assert world.committer.figures().waiting == 2
    assert world.committer.batches_waiting == 2 / world.silo.options.activations.commit_batch_max
    world.lanes.opened[0].set()
    await asyncio.gather(held, *behind)
    assert [keys for lane, keys in world.lanes.batches if lane == 0] == [["held"], ["behind-0", "behind-1"]]


async def test_the_commits_of_a_partition_reach_the_store_in_the_order_they_came(world: LanedWorld) -> None:
    random = Random(3)
    handed: dict[int, list[str]] = defaultdict(list)
    futures = []
    for number in range(600):
        partition = random.randrange(9)
        handed[partition].append(f"k{partition}-{number}")
        futures.append(world.commit(partition, handed[partition][-1]))
        if random.random() < 0.1:
            await asyncio.sleep(0.002)
    await asyncio.gather(*futures)
    stored: dict[int, list[str]] = defaultdict(list)
    for _, keys in world.lanes.batches:
        for key in keys:
            stored[int(key[1])].append(key)
    assert stored == handed
    assert world.committer.commits == 600 and world.committer.figures().waiting == 0


async def test_what_one_lane_does_not_take_fails_there_alone(world: LanedWorld) -> None:
    world.lanes.failing[1] = Unavailable("not taken")
    results = await asyncio.gather(
        *(world.commit(partition, f"k{partition}") for partition in range(LANES)), return_exceptions=True
    )
    assert [type(result) for result in results] == [Verdict, StorageUnavailable, Verdict]
    assert (world.committer.failures, world.committer.batches) == (1, 2)


async def test_the_end_of_a_silo_is_told_to_all_that_wait_on_every_lane(world: LanedWorld) -> None:
    for gate in world.lanes.opened:
        gate.clear()
    out = [world.commit(lane, f"out-{lane}") for lane in range(LANES)]
    for lane in range(LANES):
        await world.lanes.arrived[lane].wait()
    waiting = [world.commit(lane, f"waiting-{lane}") for lane in range(LANES)]
    await world.silo.tear_down(0.1)
    assert [type(future.exception()) for future in out] == [CommitOutcomeUnknown] * LANES
    assert [type(future.exception()) for future in waiting] == [StorageUnavailable] * LANES


async def test_a_partition_that_was_taken_over_is_told_once_a_batch_and_the_others_go_on(
    world: LanedWorld,
) -> None:
    fenced: list[int] = []
    ended: list[str] = []
    world.committer.on_fenced = fenced.append
    world.committer.on_dispossessed = ended.append
    other = await world.lanes.join("elsewhere", 0)
    await world.lanes.take(other.number, [0, 3], 0)
    verdicts = await asyncio.gather(
        *(world.commit(partition, f"k{n}") for n, partition in enumerate((0, 6, 0, 3, 1))),
    )
    expected = [Outcome.FENCED, Outcome.COMMITTED, Outcome.FENCED, Outcome.FENCED, Outcome.COMMITTED]
    assert [verdict.outcome for verdict in verdicts] == expected
    assert fenced == [0, 3]
    await world.commit(0, "again")
    assert (fenced, ended) == ([0, 3, 0], [])


async def test_a_member_without_an_epoch_tells_nobody(world: LanedWorld) -> None:
    fenced: list[int] = []
    world.committer.on_fenced = fenced.append
    assert (await world.commit(2, "k", epoch=0)).outcome is Outcome.FENCED
    assert fenced == []


async def test_another_store_in_place_of_the_one_that_was_opened_ends_it_all(world: LanedWorld) -> None:
    fenced: list[int] = []
    ended: list[str] = []
    world.committer.on_fenced = fenced.append
    world.committer.on_dispossessed = ended.append
    world.lanes.failing[2] = StoreChanged("promoted")
    with pytest.raises(StorageUnavailable):
        await world.commit(2, "k")
    assert (fenced, ended) == ([], ["promoted"])
