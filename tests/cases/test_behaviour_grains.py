"""Public cases about activations, calls, values and stores, as far as one silo in one process meets them.

Ids and facts: tests/cases/data/behaviour.jsonl.  Where the design decides otherwise, the test says so.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import namedtuple
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest

from farro.client.errors import CallCycle, CallTimeout, GrainCallFailed, InvalidPayload
from farro.silo.grains.decorators import oneway
from farro.silo.grains.grain import Grain
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.kit import Bell, World, bell_row, s

Pair = namedtuple("Pair", "a b")


@dataclass
class WorkState:
    count: int = 0
    value: Any = None
    log: list[str] = field(default_factory=list)


class Work(Grain[WorkState], name="work", idle_after=timedelta(seconds=60)):
    ups: ClassVar[list[int]]
    fails: ClassVar[int]

    async def on_activate(self) -> None:
        self.ups.append(id(self))
        await asyncio.sleep(0.01)
        if Work.fails:
            Work.fails -= 1
            raise OSError(f"not yet, {Work.fails} more")

    async def instance(self) -> int:
        return id(self)

    async def run(self, seconds: float) -> int:
        self.state.log.append("first half")
        await asyncio.sleep(seconds)
        self.state.log.append("second half")
        self.state.count += 1
        return self.state.count

    async def read(self) -> list[str]:
        return self.state.log

    async def call_back(self, path: list[str]) -> str:
        return await self.grain(Work, path[0]).call_back(path[1:]) if path else "end"

    async def plain(self) -> int:
        return await self.run(0.0)

    async def add_and_sleep(self) -> int:
        self.state.count += 1
        if self.state.count % 7 == 0:
            self.deactivate()
        await asyncio.sleep(0.001)
        return self.state.count

    @oneway
    async def explode(self) -> None:
        raise ValueError("unobserved")

    async def never(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def echo(self, value: Any) -> Any:
        return value

    async def echo_through(self, value: Any) -> Any:
        return await self.grain(Work, "inner").echo(value)

    async def append(self, items: list[int]) -> list[int]:
        items.append(4)
        return items

    async def lend(self) -> list[list[int]]:
        mine = [1, 2, 3]
        theirs = await self.grain(Work, "inner").append(mine)
        return [mine, theirs]

    async def set_value(self, value: Any) -> None:
        self.state.value = value

    async def get_value(self) -> Any:
        return self.state.value

    async def sleep(self) -> None:
        self.deactivate()


class Maybe(Grain[dict[str, int] | None], name="maybe"):
    async def put(self, value: dict[str, int] | None) -> None:
        self.state = value

    async def get(self) -> dict[str, int] | None:
        return self.state

    async def sleep(self) -> None:
        self.deactivate()

    async def clear(self) -> None:
        self.destroy()


@pytest.fixture(params=["memory", "sqlite"])
async def world(
    request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path
) -> AsyncGenerator[World]:
    Work.ups, Work.fails = [], 0
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'cases.db'}"
    world = World(virtual, url, grains=(Work, Maybe, Bell))
    async with world.up():
        yield world


@pytest.fixture
def work(world: World) -> Work:
    return world.silo.grain(Work, "w")


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- activations


async def test_ACT_001_a_cycle_fails_at_once_with_its_chain(world: World) -> None:
    began = now()
    with pytest.raises(CallCycle, match=r"work/a\.call_back -> work/b\.call_back -> work/a\.call_back"):
        await world.silo.grain(Work, "a").call_back(["b", "a"])
    assert now() - began < 1


async def test_ACT_003_a_grain_that_awaits_itself_fails_and_a_plain_call_works(work: Work) -> None:
    began = now()
    with pytest.raises(CallCycle, match=r"work/w\.call_back -> work/w\.call_back"):
        await work.call_back(["w"])
    assert now() - began < 1
    assert await work.plain() == 1


async def test_ACT_008_on_activate_runs_once_for_fifty_first_calls(work: Work) -> None:
    assert len(set(await asyncio.gather(*(work.instance() for _ in range(50))))) == 1
    assert len(Work.ups) == 1


async def test_ACT_009_a_failing_on_activate_leaves_no_zombie(world: World, work: Work) -> None:
    Work.fails = 2
    for left in (1, 0):
        with pytest.raises(GrainCallFailed, match=f"OSError: not yet, {left} more"):
            await work.run(0.0)
        assert world.silo.active_grains == 0
    assert await work.run(0.0) == 1


async def test_ACT_012_reminders_keep_a_grain_awake(world: World, work: Work) -> None:
    """The half about reminders; the other half waits for grain timers."""
    await work.instance()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(30)))
    bell = await world.do("b", lambda bell: bell)
    await asyncio.sleep(1200)
    assert world.silo.active_grains == 1
    assert await world.do("b", lambda bell: bell) is bell


async def test_ACT_014_no_message_is_lost_while_a_grain_falls_asleep_again_and_again(work: Work) -> None:
    limited: Any = work.with_options(timeout=3600)
    counts = []
    for _ in range(10):
        counts += await asyncio.gather(*(limited.add_and_sleep() for _ in range(50)))
    assert sorted(counts) == list(range(1, 501))
    assert len(Work.ups) > 5


async def test_ACT_017_a_cancelled_caller_leaves_the_turn_whole(work: Work) -> None:
    call = asyncio.ensure_future(work.run(1.0))
    await asyncio.sleep(0.1)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert await work.read() == ["first half", "second half"]


async def test_ACT_018_the_error_of_a_oneway_call_is_logged_once_with_its_traceback(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await work.explode()
        await asyncio.sleep(1)
    (record,) = [each for each in caplog.records if each.exc_info]
    assert "work/w.explode" in record.getMessage()
    assert "unobserved" in str(record.exc_info and record.exc_info[1])


async def test_ACT_020_a_stuck_turn_is_named_and_stops_nobody_else(
    world: World, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [asyncio.ensure_future(work.never()), asyncio.ensure_future(work.run(0.0))]
    await asyncio.sleep(20)
    assert await world.silo.grain(Work, "other").run(0.0) == 1
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [CallTimeout, CallTimeout]
    stuck = [each.getMessage() for each in caplog.records if "still running" in each.getMessage()]
    assert len(stuck) == 1
    assert "grain=work/w method=never" in stuck[0]


# ---- calls


async def test_TRA_008_a_call_that_timed_out_is_not_sent_again(work: Work) -> None:
    with pytest.raises(CallTimeout):
        await work.run(35.0)
    await asyncio.sleep(60)
    assert await work.read() == ["first half", "second half"]


async def test_TRA_009_late_answers_are_dropped(world: World, work: Work) -> None:
    hasty: Any = work.with_options(timeout=0.001)
    results: list[Any] = []
    for _ in range(5):
        calls = (hasty.run(0.05) for _ in range(200))
        results += await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(1)
    assert {type(result) for result in results} == {CallTimeout}
    await asyncio.sleep(60)
    assert world.silo.rooms.caller._deadlines._pending == {}


async def test_TRA_010_calls_whose_deadline_has_passed_in_the_queue_never_run(work: Work) -> None:
    hasty: Any = work.with_options(timeout=5.05)
    results = await asyncio.gather(*(hasty.run(1.0) for _ in range(100)), return_exceptions=True)
    await asyncio.sleep(200)
    assert sum(isinstance(result, int) for result in results) == 5
    assert (await work.read()).count("first half") <= 6


# ---- values


KEPT = [
    (1, 2),
    {1, 2},
    frozenset({3}),
    Decimal("1.10"),
    UUID(int=7),
    timedelta(days=1, microseconds=1),
    datetime(2030, 1, 1, tzinfo=UTC),
    b"\x00\xff",
    10**40,
]


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
async def test_SER_007_a_kept_value_comes_back_equal_and_of_its_type(work: Work, value: Any) -> None:
    for answer in (await work.echo(value), await work.echo_through(value)):
        assert answer == value
        assert type(answer) is type(value)
    await work.set_value(value)
    assert await work.get_value() == value


@pytest.mark.parametrize(
    "value",
    [Path("/tmp"), Pair(1, 2), 1 + 2j, datetime(2030, 1, 1), object()],
    ids=lambda v: type(v).__name__,
)
async def test_SER_007_a_refused_value_is_refused_at_the_call_and_named(work: Work, value: Any) -> None:
    with pytest.raises(InvalidPayload, match="value"):
        await work.echo(value)
    with pytest.raises((InvalidPayload, GrainCallFailed)):
        await work.echo([{"deep": value}])


async def test_SER_008_a_callers_list_is_its_own(work: Work) -> None:
    assert await work.lend() == [[1, 2, 3], [1, 2, 3, 4]]
    mine = [1, 2, 3]
    await work.append(mine)
    assert mine == [1, 2, 3]


# ---- stores


async def test_STO_013_none_as_a_state_is_told_apart_from_no_state(world: World) -> None:
    maybe = world.silo.grain(Maybe, "m")
    await maybe.put({"a": 1})
    await maybe.put(None)
    await maybe.sleep()
    await asyncio.sleep(1)
    assert await maybe.get() is None
    await maybe.put({"b": 2})
    await maybe.sleep()
    await asyncio.sleep(1)
    assert await maybe.get() == {"b": 2}
    await maybe.clear()
    assert await maybe.get() is None


async def test_STO_018_names_and_keys_with_syntax_in_them_are_plain_data(world: World) -> None:
    key, name = "x'; DROP TABLE reminders; --", "a*b?[c]:{}\n%_\\"
    await world.do(key, lambda bell: bell.schedule(bell.ring, after=s(10), key=name))
    await world.do("x", lambda bell: bell.schedule(bell.ring, after=s(10), key=name))
    status = await world.do(key, lambda bell: bell.reminder("ring", key=name))
    assert (status.key, status.name) == (name, f"ring:{name}")
    await world.do(key, lambda bell: bell.unschedule("ring", key=name))
    assert await world.rows(key) == []
    await asyncio.sleep(11)
    assert [rung.key for rung in world.rungs] == ["x"]


@pytest.mark.parametrize(
    "instant",
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    ids=str,
)
async def test_STO_007_edge_instants_come_back_equal(world: World, instant: datetime) -> None:
    await world.write(bell_row("edge", instant, status="paused", wake_at=None))
    status = await world.do("edge", lambda bell: bell.get_reminder("ring"))
    row = await world.row("edge", "ring")
    assert row.next_due_at == bell_row("edge", instant).next_due_at
    assert status.status == "paused"
    if instant > world.clock.at():
        await world.do("edge", lambda bell: bell.schedule(bell.toll, at=instant))
        assert (await world.do("edge", lambda bell: bell.reminder("toll"))).next_run_at == instant


async def test_STO_021_a_store_that_fails_marks_no_tick_as_done_and_recovers_without_a_restart(
    world: World,
) -> None:
    start = world.clock.at()
    await world.write(*(bell_row(f"k{number}", start + s(40)) for number in range(10)))
    full = [True]
    world.store.policy = lambda verb: Fault.UNAVAILABLE if full[0] else None
    await asyncio.sleep(200)
    rows = [await world.row(f"k{number}", "ring") for number in range(10)]
    assert all((row.status, row.occurrence, row.last_fire_at) == ("scheduled", 1, None) for row in rows)
    full[0] = False
    await asyncio.sleep(120)
    assert [await world.rows(f"k{number}") for number in range(10)] == [[]] * 10
    assert [await world.rung(f"k{number}") for number in range(10)] == [1] * 10


async def test_STO_005_instants_compare_as_numbers(world: World) -> None:
    second = world.clock.at() + s(40)
    await world.write(bell_row("half", second + s(0.5)), bell_row("whole", second))
    await asyncio.sleep(40.2)
    assert [rung.key for rung in world.rungs] == ["whole"]
    await asyncio.sleep(0.5)
    assert [rung.key for rung in world.rungs] == ["whole", "half"]


def test_STO_005_the_file_holds_integers(tmp_path: Path) -> None:
    """Read as any tool would: no text, no floats in the columns of instants."""

    async def main(clock: VirtualClock) -> None:
        world = World(clock, f"sqlite:///{tmp_path / 'types.db'}")
        async with world.up():
            await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10.5)))

    run_virtual(main)
    with closing(sqlite3.connect(tmp_path / "types.db")) as file:
        columns = [row[1] for row in file.execute("PRAGMA table_info(reminders)") if row[1].endswith("_at")]
        (row,) = file.execute(f"SELECT {', '.join(f'typeof({name})' for name in columns)} FROM reminders")
    assert columns
    assert set(row) <= {"integer", "null"}


async def test_SEC_010_names_with_line_breaks_are_escaped_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(bell: Bell) -> None:
        raise OSError("x")

    world.handler = fail
    await world.do("k\x1b[31m", lambda bell: bell.schedule(bell.ring, after=s(1), key="x\nERROR fake line"))
    with caplog.at_level(logging.WARNING, "farro"):
        await asyncio.sleep(2)
    messages = [each.getMessage() for each in caplog.records if each.name.startswith("farro")]
    assert any("x\\nERROR fake line" in message for message in messages)
    assert not any("\n" in message or "\x1b" in message for message in messages)
