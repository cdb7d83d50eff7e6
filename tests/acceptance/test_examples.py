"""Every example does what it says: its client's part over a real connection, its months on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples import counter, crontab, shipments, subscriptions
from farro.client import Client, GrainCallFailed
from farro.silo import Grain, Silo
from farro.silo.testing.virtual_time import VirtualClock

CRONTAB = (Path(crontab.__file__).with_name("crontab.txt")).read_text(encoding="utf-8")


@asynccontextmanager
async def served(grain: type[Grain[Any]], store: str = "memory://") -> AsyncGenerator[Client]:
    async with Silo([grain], store, "127.0.0.1:0") as silo, Client(f"http://{silo.address}") as client:
        yield client


def days(count: float) -> float:
    return timedelta(days=count).total_seconds()


async def soon() -> None:
    """A second of virtual time, in which a silo that has just started delivers what is owed."""
    await asyncio.sleep(1)


async def test_ten_visitors_at_once_are_counted_ten_times() -> None:
    async with served(counter.Counter) as client:
        assert await counter.count_visitors(client) == 10
        await client.grain(counter.Counter, "visitors").reset()
        assert await client.grain(counter.Counter, "visitors").value() == 0


async def test_the_counter_stands_after_a_restart_on_the_same_file(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'counter.db'}"
    async with served(counter.Counter, store) as client:
        await counter.count_visitors(client)
    async with served(counter.Counter, store) as client:
        assert await client.grain(counter.Counter, "visitors").value() == 10


async def test_a_customer_who_stays_is_charged_after_thirty_days() -> None:
    async with served(subscriptions.Subscription) as client:
        before = datetime.now(UTC)
        charged_at = await subscriptions.sign_up(client, "ada")
        assert charged_at is not None
        assert timedelta(0) <= charged_at - before - subscriptions.MONTH < timedelta(minutes=1)


async def test_a_trial_expires_and_a_renewal_comes_every_month(virtual: VirtualClock) -> None:
    def silo() -> Silo:
        return Silo([subscriptions.Subscription], "memory://example-subscriptions", clock=virtual)

    async with silo() as running:
        leaves, stays = (running.grain(subscriptions.Subscription, key) for key in ("leaves", "stays"))
        await leaves.start_trial()
        await stays.start_trial()
        await stays.convert_to_paid()
    for month in (1, 2, 3):
        await asyncio.sleep(days(30.5))
        async with silo() as running:
            await soon()
            leaves, stays = (running.grain(subscriptions.Subscription, key) for key in ("leaves", "stays"))
            assert (await leaves.status(), await stays.status()) == ("expired", "active")
            assert await stays.renewals() == month
    async with silo() as running:
        stays = running.grain(subscriptions.Subscription, "stays")
        await stays.cancel_immediately()
        assert await stays.next_charge_at() is None
    await asyncio.sleep(days(90))
    async with silo() as running:
        await soon()
        stays = running.grain(subscriptions.Subscription, "stays")
        assert (await stays.renewals(), await stays.status()) == (3, "cancelled")


async def test_a_parcel_chases_every_carrier_it_asked() -> None:
    async with served(shipments.Shipment) as client:
        assert await shipments.send_parcel(client, "s-42") == ["c-7", "c-8"]


async def test_a_stored_handle_cancels_and_a_key_cancels_one(virtual: VirtualClock) -> None:
    def silo() -> Silo:
        return Silo([shipments.Shipment], "memory://example-shipments", clock=virtual)

    async with silo() as running:
        parcel = running.grain(shipments.Shipment, "s-1")
        await parcel.dispatch("c-7")
        await parcel.ask_also("c-8")
    await asyncio.sleep(days(2.5))
    async with silo() as running:
        await soon()
        parcel = running.grain(shipments.Shipment, "s-1")
        assert sorted(await parcel.chased()) == ["c-7", "c-8"]  # c-8's first day is told by missed_count
        await parcel.delivered()
        assert await parcel.pending_chases() == ["c-8"]
        await parcel.heard_from("c-8")
    await asyncio.sleep(days(5))
    async with silo() as running:
        await soon()
        parcel = running.grain(shipments.Shipment, "s-1")
        assert len(await parcel.chased()) == 2
        await parcel.ask_also("c-9")
        await parcel.stop_chasing_everyone()
        assert await parcel.pending_chases() == []


async def test_a_crontab_file_becomes_reminders_that_run(virtual: VirtualClock) -> None:
    async with Silo([crontab.Crontab], clock=virtual) as silo:
        table = silo.grain(crontab.Crontab, "main")
        due = await table.load(CRONTAB)
        assert sorted(due) == ["backup", "heartbeat", "report", "tidy"]
        assert min(due, key=lambda job: due[job]) == "heartbeat"
        await asyncio.sleep(days(1 / 24))
        ran = await table.ran()
        assert ran["heartbeat"] == 12
        await table.load("*/10 * * * * heartbeat")
        await asyncio.sleep(days(1 / 24))
        assert (await table.ran())["heartbeat"] == 12 + 6


async def test_a_crontab_is_loaded_by_a_client_and_shown_in_order_of_time() -> None:
    async with served(crontab.Crontab) as client:
        shown = await crontab.load(client, CRONTAB)
        assert shown[0].endswith("heartbeat")
        times = [line[:16] for line in shown]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("* * * * * rm", "expected 5 fields and one of"),
        ("* * * * heartbeat", "expected 5 fields"),
        ("61 * * * * heartbeat", "minute"),
        ("0 0 30 2 * heartbeat", "never"),
    ],
)
async def test_one_bad_line_refuses_the_whole_crontab(text: str, reason: str) -> None:
    async with Silo([crontab.Crontab]) as silo:
        table = silo.grain(crontab.Crontab, "main")
        await table.load("@hourly backup")
        with pytest.raises(GrainCallFailed, match=reason):
            await table.load(f"@daily tidy\n{text}")
        assert list(await silo.call("farro.reminders", "any", "list_for_grain", "crontabs", "main"))
        listed = await silo.call("farro.reminders", "any", "list_for_grain", "crontabs", "main")
        assert [each["name"] for each in listed] == ["run:backup"]
