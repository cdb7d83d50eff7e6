"""The first seed, "Reminder cancellation and inspection": its tests and its handles, sentence by sentence.

The seed reads committed rows only; farro, like the seed's implementation, lays what the turn has staged over
them.  A cancel that commits while an occurrence waits in queue or mailbox drops it; one whose turn has begun
completes (design/reminders.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import FrozenInstanceError, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.client.errors import GrainCallFailed, InvalidPayload, InvalidReminderHandle
from farro.client.reminders import ReminderHandle, ReminderStatus
from farro.silo.grains.grain import Grain
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, World, s


@dataclass
class ShipmentState:
    chased: int = 0
    chase: ReminderHandle | None = None


class Shipment(Grain[ShipmentState], name="shipments"):
    """The seed's example, in Python."""

    async def dispatch(self, carrier_id: str) -> None:
        self.state.chase = self.schedule(
            self.chase_carrier, carrier_id, after=timedelta(days=2), every=timedelta(days=1), key=carrier_id
        )

    async def delivered(self) -> None:
        if self.state.chase:
            self.unschedule(self.state.chase)
        self.state.chase = None

    async def chase_carrier(self, carrier_id: str) -> None:
        self.state.chased += 1

    async def chased(self) -> int:
        return self.state.chased

    async def chase_due(self) -> str | None:
        found = await self.reminder(self.state.chase) if self.state.chase else None
        return None if found is None or found.next_run_at is None else found.next_run_at.isoformat()

    async def sleep(self) -> None:
        self.deactivate()


@pytest.fixture(params=["memory", "sqlite"])
async def world(
    request: pytest.FixtureRequest, virtual: VirtualClock, tmp_path: Path
) -> AsyncGenerator[World]:
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'seed.db'}"
    world = World(virtual, url, grains=(Bell, Shipment))
    async with world.up():
        yield world


async def names(world: World, key: str = "b") -> list[str]:
    return [row.name for row in await world.rows(key)]


# ---- Tests


async def test_a_cancelled_non_recurring_reminder_does_not_fire(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await world.do("control", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await asyncio.sleep(5)
    await world.do("b", lambda bell: bell.unschedule("ring"))
    await asyncio.sleep(60)
    assert [rung.key for rung in world.rungs] == ["control"]
    assert await names(world) == []


async def test_a_cancelled_recurring_reminder_stops_after_the_cancel_and_does_not_fire_again(
    world: World,
) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    await asyncio.sleep(25)
    assert len(world.rungs) == 2
    await world.do("b", lambda bell: bell.unschedule(bell.ring))
    await asyncio.sleep(3600)
    assert len(world.rungs) == 2
    assert await names(world) == []


async def test_unschedule_of_an_absent_name_raises_nothing_and_cancels_nothing(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10), key="one"))

    def cancel_what_is_not_there(bell: Any) -> Any:
        return [bell.unschedule("ring"), bell.unschedule("toll"), bell.unschedule("ring", key="two")]

    assert await world.do("b", cancel_what_is_not_there) == [None, None, None]
    assert await names(world) == ["ring:one"]


async def test_a_turn_that_raises_after_unschedule_leaves_the_reminder_scheduled(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))

    def cancel_and_fail(bell: Bell) -> None:
        bell.unschedule("ring")
        raise RuntimeError("second thoughts")

    with pytest.raises(GrainCallFailed, match="second thoughts"):
        await world.do("b", cancel_and_fail)
    assert await names(world) == ["ring"]
    await asyncio.sleep(11)
    assert len(world.rungs) == 1


async def test_unschedule_then_schedule_in_one_turn_leaves_one_row_with_the_new_time(world: World) -> None:
    began = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))

    def move(bell: Bell) -> None:
        bell.unschedule("ring")
        bell.schedule(bell.ring, after=s(100))

    await world.do("b", move)
    assert await names(world) == ["ring"]
    status = await world.do("b", lambda bell: bell.reminder("ring"))
    assert status.next_run_at == began + s(100)
    await asyncio.sleep(99)
    assert world.rungs == []
    await asyncio.sleep(2)
    assert world.due_at() == [began + s(100)]


async def test_a_reminder_claimed_before_the_cancel_fires_once_then_stops(world: World) -> None:
    """Claimed: its turn has begun.  The cancel waits its turn behind it, and finds nothing left to stop."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hold(bell: Bell) -> None:
        began.set()
        await go_on.wait()

    world.handler = hold
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    await began.wait()
    cancelling = asyncio.ensure_future(world.do("b", lambda bell: bell.unschedule("ring")))
    await asyncio.sleep(1)
    assert not cancelling.done()
    go_on.set()
    await cancelling
    await asyncio.sleep(600)
    assert len(world.rungs) == 1
    assert await world.rung("b") == 1
    assert await names(world) == []


async def test_a_reminder_that_only_waits_in_the_mailbox_is_dropped_when_its_cancel_commits(
    world: World,
) -> None:
    """The other side of the same sentence: no tick's turn begins after the cancel has committed."""

    async def cancel_late(bell: Bell) -> None:
        await asyncio.sleep(15)  # its tick comes due meanwhile and waits for this turn
        bell.unschedule("ring")

    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    await world.do("b", cancel_late)
    await asyncio.sleep(600)
    assert world.rungs == []


async def test_keyed_cancel_removes_one_key_and_leaves_its_siblings(world: World) -> None:
    def plan(bell: Bell) -> None:
        for key in ("one", "two", "three"):
            bell.schedule(bell.ring, key, after=s(10), key=key)

    await world.do("b", plan)
    await world.do("b", lambda bell: bell.unschedule(bell.ring, key="two"))
    assert await names(world) == ["ring:one", "ring:three"]
    await asyncio.sleep(30)
    assert sorted(rung.args for rung in world.rungs) == [("one",), ("three",)]


async def test_unschedule_all_removes_every_key_of_one_operation_and_leaves_other_operations_alone(
    world: World,
) -> None:
    def plan(bell: Bell) -> None:
        bell.schedule(bell.ring, after=s(10))
        for key in ("one", "two"):
            bell.schedule(bell.ring, after=s(10), key=key)
            bell.schedule(bell.toll, after=s(10), key=key)

    await world.do("b", plan)
    assert await world.do("b", lambda bell: bell.unschedule_all("ring")) is None
    assert await names(world) == ["toll:one", "toll:two"]
    await asyncio.sleep(30)
    assert [rung.operation for rung in world.rungs] == ["toll", "toll"]


async def test_inspection_reports_the_next_run_time_and_the_interval_and_nothing_after_a_destroy(
    world: World,
) -> None:
    began = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(30)))
    await asyncio.sleep(31)
    status = await world.do("b", lambda bell: bell.reminder(bell.ring))
    assert isinstance(status, ReminderStatus)
    assert (status.name, status.operation, status.key) == ("ring", "ring", None)
    assert (status.next_run_at, status.interval_seconds) == (began + s(60), 30.0)
    assert (status.occurrence, status.status, status.last_fired_at) == (2, "scheduled", began + s(30))
    with pytest.raises(FrozenInstanceError):
        status.next_run_at = None  # type: ignore[misc]

    await world.do("b", lambda bell: bell.destroy())
    assert await world.do("b", lambda bell: bell.reminder("ring")) is None
    assert await world.do("b", lambda bell: bell.reminders()) == []
    await asyncio.sleep(120)
    assert len(world.rungs) == 1


# ---- Handles


async def test_schedule_returns_a_handle_whose_reminder_name_matches_the_composed_name(world: World) -> None:
    handles = await world.do(
        "b",
        lambda bell: [
            bell.schedule(bell.ring, after=s(10)),
            bell.schedule("ring", after=s(10), key="c-42"),
            bell.schedule(bell.ring, after=s(10), key="with:colons"),
            bell.schedule(bell.ring, after=s(10), key=7),
        ],
    )
    expected = ["ring", "ring:c-42", "ring:with:colons", "ring:7"]
    assert handles == [{"reminder_name": name} for name in expected]
    assert await names(world) == sorted(expected)


async def test_cancelling_by_handle_and_cancelling_by_operation_and_key_remove_the_same_row(
    world: World,
) -> None:
    def plan(bell: Bell) -> Any:
        return bell.schedule(bell.ring, after=s(10), key="k")

    handle = await world.do("b", plan)
    await world.do("b", lambda bell: bell.unschedule(handle))
    assert await names(world) == []
    await world.do("b", plan)
    await world.do("b", lambda bell: bell.unschedule("ring", key="k"))
    assert await names(world) == []


async def test_a_handle_stored_in_state_cancels_after_a_deactivation_and_a_reactivation(
    world: World,
) -> None:
    shipment = world.silo.grain(Shipment, "s-42")
    began = world.clock.at()
    await shipment.dispatch("c-7")
    assert await shipment.chase_due() == (began + timedelta(days=2)).isoformat()
    await shipment.sleep()
    await asyncio.sleep(1)
    assert world.silo.active_grains == 0
    await shipment.delivered()
    assert await world.store.inner.reminders_of("shipments", "s-42") == []
    assert await shipment.chase_due() is None
    assert await shipment.chased() == 0


async def test_a_handle_stored_in_state_cancels_after_a_crash_and_another_silo(world: World) -> None:
    await world.silo.grain(Shipment, "s-42").dispatch("c-7")
    await world.crash()
    await world.start()
    await world.silo.grain(Shipment, "s-42").delivered()
    assert await world.store.inner.reminders_of("shipments", "s-42") == []


async def test_a_handle_for_an_already_fired_reminder_raises_nothing_and_cancels_nothing(
    world: World,
) -> None:
    def plan(bell: Bell) -> Any:
        bell.schedule(bell.ring, after=s(1000), key="other")
        return bell.schedule(bell.ring, after=s(5), key="k")

    handle = await world.do("b", plan)
    await asyncio.sleep(6)
    assert len(world.rungs) == 1
    assert await world.do("b", lambda bell: bell.unschedule(handle)) is None
    assert await world.do("b", lambda bell: bell.reminder(handle)) is None
    assert await names(world) == ["ring:other"]


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        {},
        {"reminder_name": ""},
        {"reminder_name": None},
        {"reminder_name": 7},
        {"effect_id": "ring"},
        {"reminder_name": "ring", "more": 1},
        ["ring"],
        7,
    ],
    ids=repr,
)
async def test_a_malformed_handle_raises_invalid_payload(world: World, malformed: Any) -> None:
    async def try_all(bell: Bell) -> None:
        with pytest.raises(InvalidReminderHandle) as raised:
            bell.unschedule(malformed)
        assert isinstance(raised.value, InvalidPayload)
        with pytest.raises(InvalidPayload):
            await bell.reminder(malformed)

    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await world.do("b", try_all)
    assert await names(world) == ["ring"]


async def test_a_handle_from_one_grain_cancels_nothing_in_another(world: World) -> None:
    handle = await world.do("a", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await world.do("b", lambda bell: bell.schedule(bell.toll, after=s(10)))
    await world.do("b", lambda bell: bell.unschedule(handle))
    assert (await names(world, "a"), await names(world, "b")) == (["ring"], ["toll"])
    await asyncio.sleep(11)
    assert sorted((rung.key, rung.operation) for rung in world.rungs) == [("a", "ring"), ("b", "toll")]


async def test_the_handle_of_a_reminder_status_round_trips_through_unschedule(world: World) -> None:
    def plan(bell: Bell) -> None:
        bell.schedule(bell.ring, every=s(10), key="one")
        bell.schedule(bell.ring, every=s(10), key="two")

    async def cancel_the_first(bell: Bell) -> list[str | None]:
        found = await bell.reminders("ring")
        bell.unschedule(found[0].handle)
        return [status.key for status in found]

    await world.do("b", plan)
    assert await world.do("b", cancel_the_first) == ["one", "two"]
    assert await names(world) == ["ring:two"]


# ---- Semantics


async def test_a_handle_with_a_key_is_a_type_error(world: World) -> None:
    def mix(bell: Bell) -> None:
        handle = bell.schedule(bell.ring, after=s(10))
        with pytest.raises(TypeError, match="key"):
            bell.unschedule(handle, key="k")

    await world.do("b", mix)


async def test_reads_show_committed_rows_overlaid_with_what_the_turn_has_staged(world: World) -> None:
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))

    async def look(bell: Bell) -> list[list[str]]:
        seen = [[each.name for each in await bell.reminders()]]
        bell.schedule(bell.toll, after=s(10))
        seen.append([each.name for each in await bell.reminders()])
        bell.unschedule("ring")
        seen.append([each.name for each in await bell.reminders()])
        return seen

    assert await world.do("b", look) == [["ring"], ["ring", "toll"], ["toll"]]
    assert await names(world) == ["toll"]


async def test_a_tick_may_cancel_its_own_reminder_and_it_does_not_come_back(world: World) -> None:
    world.handler = lambda bell: bell.unschedule("ring")
    await world.do("b", lambda bell: bell.schedule(bell.ring, every=s(10)))
    await asyncio.sleep(100)
    assert len(world.rungs) == 1
    assert await names(world) == []


async def test_a_one_shot_may_schedule_itself_anew_from_its_own_tick(world: World) -> None:
    world.handler = lambda bell: bell.schedule(bell.ring, after=s(10))
    began = world.clock.at()
    await world.do("b", lambda bell: bell.schedule(bell.ring, after=s(10)))
    await asyncio.sleep(35)
    assert world.due_at() == [began + s(10), began + s(20), began + s(30)]
    assert await world.rung("b") == 3
