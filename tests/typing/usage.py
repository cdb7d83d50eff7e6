"""What the documents show, as type checkers see it: checked by mypy --strict and pyright strict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol, assert_type

from farro.client import BlockingClient, Client, grain_interface
from farro.silo import (
    Cron,
    Grain,
    MissedReminderAction,
    ReminderHandle,
    ReminderPriority,
    ReminderStatus,
    Silo,
    StreamEvent,
    TickStatus,
    readonly,
    register_reminder,
    subscribe,
)


@dataclass
class ShipmentState:
    status: str = "new"
    chase: ReminderHandle | None = None
    notes: list[str] = field(default_factory=list[str])


@register_reminder("Daily", cron="0 0 6 * * *", priority=ReminderPriority.CRITICAL)
class Shipment(Grain[ShipmentState], name="shipments"):
    async def dispatch(self, carrier_id: str, *, express: bool = False) -> int:
        self.state.status = "on its way"
        self.state.chase = self.schedule(
            self.chase_carrier,
            carrier_id,
            after=timedelta(days=2),
            every=timedelta(days=1),
            key=carrier_id,
            missed=MissedReminderAction.FIRE_ALL,
        )
        self.schedule(self.chase_carrier, carrier_id, cron=Cron("0 0 9 * * MON", timezone="Europe/Berlin"))
        self.publish("shipped", {"carrier": carrier_id})
        return len(self.state.notes)

    async def delivered(self) -> None:
        if self.state.chase:
            self.unschedule(self.state.chase)
        self.unschedule_all(self.chase_carrier)
        await self.register_or_update_reminder("feedback", timedelta(days=7))

    async def chase_carrier(self, carrier_id: str) -> None:
        assert_type(self.key, str)
        tick = self.tick
        if tick is not None:
            assert_type(tick.due_at, datetime)

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        assert_type(status.current_tick_at, datetime)

    @readonly
    async def status(self) -> str:
        reminder = await self.reminder(self.chase_carrier, key="c-7")
        assert_type(reminder, ReminderStatus | None)
        return self.state.status

    @subscribe("shipped")
    async def on_shipped(self, event: StreamEvent) -> None:
        assert_type(event.published_at, datetime)


class Echo(Grain):
    """A grain without state."""

    async def echo(self, text: str) -> str:
        other = self.grain(Shipment, "s-1")
        assert_type(await other.dispatch("c-7"), int)
        return text


@grain_interface("shipments")
class ShipmentApi(Protocol):
    async def status(self) -> str: ...


async def call_from_outside() -> None:
    async with Client("http://127.0.0.1:11111", timeout=5.0) as client:
        shipment = client.grain(Shipment, "s-42")
        assert_type(shipment, Shipment)
        assert_type(await shipment.dispatch("c-7", express=True), int)
        assert_type(await shipment.with_options(timeout=1.0).status(), str)
        assert_type(await client.grain(ShipmentApi, 42).status(), str)
        await client.call("shipments", "s-42", "dispatch", "c-7")
        await client.reminders.pause(shipment, "Daily", note="holidays")
        events: AsyncIterator[StreamEvent] = client.stream("shipped", consumer="billing")
        async for event in events:
            assert_type(event, StreamEvent)


def call_from_a_script() -> None:
    with BlockingClient("http://127.0.0.1:11111") as client:
        client.grain(Shipment, "s-42")


async def host() -> None:
    async with Silo(grains=[Shipment, Echo], store="sqlite:///farro.db", listen="127.0.0.1:0") as silo:
        assert_type(await silo.grain(Echo, "e").echo("x"), str)


def fires_next() -> None:
    assert_type(Cron("0 0 9 * * MON-FRI").next(datetime.now(UTC)), datetime | None)
