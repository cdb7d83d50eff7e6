"""Billing with reminders: a trial that ends once, a renewal that comes back every thirty days.

What is scheduled or cancelled and what is written to the state happen together or not at all: there is no
moment in which a customer is cancelled and still charged.

Serve it:   farro silo examples.subscriptions
Ask it:     farro call subscriptions ada start_trial
            farro reminders list subscriptions ada
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from farro.client import Client
from farro.silo import Grain, readonly

TRIAL = timedelta(days=14)
MONTH = timedelta(days=30)


@dataclass
class SubscriptionState:
    status: str = "new"
    renewals: int = 0


class Subscription(Grain[SubscriptionState], name="subscriptions"):
    async def start_trial(self) -> None:
        self.state.status = "trialing"
        self.schedule(self.trial_expired, after=TRIAL)

    async def convert_to_paid(self) -> None:
        self.state.status = "active"
        self.unschedule(self.trial_expired)
        self.schedule(self.charge_renewal, every=MONTH)

    async def cancel_immediately(self) -> None:
        self.state.status = "cancelled"
        self.unschedule(self.charge_renewal)

    async def trial_expired(self) -> None:
        self.state.status = "expired"

    async def charge_renewal(self) -> None:
        # at least once is what the world outside gets: give self.tick.id to the payment service as its
        # idempotency key; the state below counts each renewal exactly once
        self.state.renewals += 1

    async def next_charge_at(self) -> datetime | None:
        reminder = await self.reminder(self.charge_renewal)
        return reminder.next_run_at if reminder else None

    @readonly
    async def status(self) -> str:
        return self.state.status

    @readonly
    async def renewals(self) -> int:
        return self.state.renewals


async def sign_up(client: Client, customer: str) -> datetime | None:
    """A customer who tries and stays; when the first renewal is charged."""
    subscription = client.grain(Subscription, customer)
    await subscription.start_trial()
    await subscription.convert_to_paid()
    return await subscription.next_charge_at()


async def main() -> None:
    async with Client("http://127.0.0.1:11111") as client:
        print("ada is charged next at", await sign_up(client, "ada"))


if __name__ == "__main__":
    asyncio.run(main())
