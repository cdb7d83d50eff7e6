"""Many reminders of one operation: keys tell them apart, handles cancel them days later.

Serve it:   farro silo examples.shipments
Ask it:     farro call shipments s-42 dispatch '"c-7"'
            farro reminders list shipments s-42
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from farro.client import Client
from farro.silo import Grain, ReminderHandle, readonly

PATIENCE = timedelta(days=2)
AGAIN = timedelta(days=1)


@dataclass
class ShipmentState:
    status: str = "new"
    chase: ReminderHandle | None = None  # plain data: it survives in the state
    chased: list[str] = field(default_factory=list[str])


class Shipment(Grain[ShipmentState], name="shipments"):
    async def dispatch(self, carrier_id: str) -> None:
        self.state.status = "on its way"
        self.state.chase = self.schedule(
            self.chase_carrier, carrier_id, after=PATIENCE, every=AGAIN, key=carrier_id
        )

    async def delivered(self) -> None:
        self.state.status = "delivered"
        if self.state.chase is not None:
            self.unschedule(self.state.chase)
        self.state.chase = None

    async def ask_also(self, carrier_id: str) -> None:
        """Another carrier may have it: its own key, its own reminder."""
        self.schedule(self.chase_carrier, carrier_id, every=AGAIN, key=carrier_id)

    async def heard_from(self, carrier_id: str) -> None:
        self.unschedule(self.chase_carrier, key=carrier_id)

    async def stop_chasing_everyone(self) -> None:
        self.unschedule_all(self.chase_carrier)

    async def chase_carrier(self, carrier_id: str) -> None:
        self.state.chased.append(carrier_id)

    async def pending_chases(self) -> list[str]:
        return [reminder.key or "" for reminder in await self.reminders(self.chase_carrier)]

    @readonly
    async def status(self) -> str:
        return self.state.status

    @readonly
    async def chased(self) -> list[str]:
        return self.state.chased


async def send_parcel(client: Client, parcel: str) -> list[str]:
    """Dispatch with one carrier, ask a second one; who is being chased now."""
    shipment = client.grain(Shipment, parcel)
    await shipment.dispatch("c-7")
    await shipment.ask_also("c-8")
    return await shipment.pending_chases()


async def main() -> None:
    async with Client("http://127.0.0.1:11111") as client:
        print("chasing", await send_parcel(client, "s-42"))


if __name__ == "__main__":
    asyncio.run(main())
