"""Commits that are ready together go as one transaction, and no member suffers for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farro.client.errors import CommitOutcomeUnknown, InvalidPayload, StorageUnavailable
from farro.providers.rows import EventRow
from farro.silo.grains.grain import Grain
from farro.silo.options import ActivationOptions, SiloOptions
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World


@dataclass
class CellState:
    value: int = 0
    blob: bytes = b""


class Cell(Grain[CellState], name="cell"):
    async def put(self, value: int, size: int = 0) -> int:
        self.state.value = value
        self.state.blob = bytes(size)
        return value

    async def get(self) -> int:
        return self.state.value

    async def put_with_an_event_no_store_takes(self, value: int) -> None:
        self.state.value = value
        # nothing an author can say gets this far: a lone surrogate is no text in any store
        self.turn.effects.events.append(EventRow("bad \ud800 name", b"", 0))


@pytest.fixture(params=["memory", "sqlite"])
async def world(
    request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path
) -> AsyncGenerator[World]:
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'group.db'}"
    options = SiloOptions(activations=ActivationOptions(commit_batch_max=8, commit_bytes_max=100_000))
    world = World(virtual, url, grains=(Cell, Bell), options=options)
    async with world.up():
        yield world


async def all_in(world: World, start: Callable[[], Iterable[Awaitable[Any]]]) -> list[Any]:
    """Let the calls that ``start`` makes queue behind a frozen commit, then let all of them go on."""
    world.store.freeze("commit")
    blocker = asyncio.ensure_future(world.silo.grain(Cell, "blocker").put(1))
    await world.store.until_frozen("commit")
    world.store.batches.clear()
    results = asyncio.gather(*start(), return_exceptions=True)
    await asyncio.sleep(1)
    world.store.thaw()
    await blocker
    return list(await results)


async def test_what_becomes_ready_while_a_batch_is_out_goes_together_next(world: World) -> None:
    def start() -> Iterable[Awaitable[Any]]:
        return [world.silo.grain(Cell, str(number)).put(number + 1) for number in range(20)]

    assert await all_in(world, start) == list(range(1, 21))
    assert list(world.store.batches) == [8, 8, 4]


async def test_a_batch_is_bounded_in_bytes_too_and_one_large_member_goes_alone(world: World) -> None:
    sizes = [40_000, 40_000, 40_000, 300_000, 10]

    def start() -> Iterable[Awaitable[Any]]:
        return [world.silo.grain(Cell, str(number)).put(number, size) for number, size in enumerate(sizes)]

    assert await all_in(world, start) == list(range(5))
    assert list(world.store.batches) == [2, 1, 1, 1]


async def test_the_bad_data_of_one_member_does_not_hurt_the_others(world: World) -> None:
    def start() -> Iterable[Awaitable[Any]]:
        for number in range(8):
            cell = world.silo.grain(Cell, str(number))
            if number in (2, 5):
                yield cell.put_with_an_event_no_store_takes(number + 1)
            else:
                yield cell.put(number + 1)

    results = await all_in(world, start)
    assert list(world.store.batches) == [8]
    for number, result in enumerate(results):
        if number in (2, 5):
            assert isinstance(result, InvalidPayload)
            assert await world.silo.grain(Cell, str(number)).get() == 0
        else:
            assert result == number + 1
            assert await world.silo.grain(Cell, str(number)).get() == number + 1


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (Fault.UNAVAILABLE, StorageUnavailable, False),
        (Fault.LOST_BEFORE, CommitOutcomeUnknown, False),
        (Fault.LOST_AFTER, CommitOutcomeUnknown, True),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
async def test_a_fault_of_the_store_meets_every_member_of_the_batch_and_nobody_else(
    world: World, fault: Fault, error: type[Exception], applied: bool
) -> None:
    def start() -> Iterable[Awaitable[Any]]:
        return [world.silo.grain(Cell, str(number)).put(number + 1) for number in range(12)]

    world.store.fail("commit", None, fault, None)
    results = await all_in(world, start)
    assert [type(result) for result in results[:8]] == [error] * 8
    assert results[8:] == [9, 10, 11, 12]
    for number in range(12):
        expected = number + 1 if applied or number >= 8 else 0
        assert await world.silo.grain(Cell, str(number)).get() == expected


async def test_turns_of_one_grain_never_share_a_batch(world: World) -> None:
    """The next turn of a grain begins only when the last one's commit is acknowledged."""

    def start() -> Iterable[Awaitable[Any]]:
        return [world.silo.grain(Cell, "one").put(number + 1) for number in range(5)]

    await all_in(world, start)
    assert list(world.store.batches) == [1] * 5


async def test_every_acknowledged_change_is_there_after_a_crash(world: World) -> None:
    acknowledged: dict[str, int] = {}

    async def write(key: str) -> None:
        for value in range(1, 20):
            acknowledged[key] = await world.silo.grain(Cell, key).put(value)

    writers = [asyncio.ensure_future(write(str(number))) for number in range(16)]
    world.store.delay("commit", 0.01)
    await asyncio.sleep(0.1)
    await world.crash()
    await asyncio.gather(*writers, return_exceptions=True)
    assert acknowledged
    await world.start()
    for key, value in acknowledged.items():
        # one more may have reached the store whose answer did not get out
        assert await world.silo.grain(Cell, key).get() in (value, value + 1)
    await world.silo.stop()
