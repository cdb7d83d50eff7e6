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
    idempotent_request,
    readonly,
    register_reminder,
    stateless_worker,
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


class Parcel(Grain[ShipmentState], name="parcels", affinity=lambda key: key.split("/")[0]):
    @idempotent_request
    async def weigh(self, grams: int) -> float:
        assert_type(self.turn.request_id, str | None)
        return grams / 1000


class Truck(Grain, affinity=str):
    """Lives with the parcels whose keys begin with its own."""


@stateless_worker(max_local=4)
class Labels(Grain):
    async def label(self, text: str) -> bytes:
        return text.encode()


@stateless_worker
class Routes(Grain):
    async def length(self) -> int:
        return len(await self.grain(Labels, "any").label(self.key))


@grain_interface("shipments")
class ShipmentApi(Protocol):
    async def status(self) -> str: ...


@grain_interface("parcels", affinity=lambda key: key.split("/")[0])
class ParcelApi(Protocol):
    @idempotent_request
    async def weigh(self, grams: int) -> float: ...


@grain_interface("Labels", stateless=True)
class LabelApi(Protocol):
    async def label(self, text: str) -> bytes: ...


async def call_from_outside() -> None:
    async with Client("http://127.0.0.1:11111", timeout=5.0) as client:
        shipment = client.grain(Shipment, "s-42")
        assert_type(shipment, Shipment)
        assert_type(await shipment.dispatch("c-7", express=True), int)
        assert_type(await shipment.with_options(timeout=1.0).status(), str)
        assert_type(await client.grain(ShipmentApi, 42).status(), str)
        await client.call("shipments", "s-42", "dispatch", "c-7")
        parcel = client.grain(Parcel, "truck-7/1")
        assert_type(await parcel.weigh(250), float)
        assert_type(await parcel.with_options(request_id="scale-1").weigh(250), float)
        assert_type(await client.grain(ParcelApi, "truck-7/1").weigh(grams=250), float)
        assert_type(await client.grain(Labels, "any").label("x"), bytes)
        assert_type(await client.grain(LabelApi, "any").label("x"), bytes)
        assert_type(await client.grain(Routes, "A-B").length(), int)
        await client.call("parcels", "truck-7/1", "weigh", 250, request_id="scale-1")
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
