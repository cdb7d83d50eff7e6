"""Placement and requests in a cluster: affinities share a silo, workers stay, requests survive their silo."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from farro.client.client import Client
from farro.providers.memory import MemoryProvider
from farro.silo.grains.decorators import idempotent_request
from farro.silo.grains.grain import Grain
from farro.silo.grains.stateless import stateless_worker
from farro.silo.host import Silo
from farro.silo.testing.faulty_provider import Fault, FaultyProvider
from tests.unit.silo.cluster.cluster_kit import QUICK, Town, until


@dataclass
class Balance:
    amount: int = 0


def silo_of(grain: Grain[Any]) -> int:
    """The number of the silo on which the grain is awake."""
    return int(grain._farro_runtime.desk.number)


class Account(Grain[Balance], name="accounts", affinity=str):
    ran: ClassVar[Counter[int]] = Counter()
    gates: ClassVar[dict[int, asyncio.Event]] = {}

    @idempotent_request
    async def pay(self, amount: int) -> int:
        here = silo_of(self)
        Account.ran[here] += 1
        if here in Account.gates:
            await Account.gates[here].wait()
        self.state.amount += amount
        return self.state.amount

    async def where(self) -> int:
        return silo_of(self)


class Booking(Grain, name="bookings", affinity=lambda key: key.split("/")[0]):
    async def where(self) -> list[int]:
        account = self.grain(Account, self.key.split("/")[0])
        return [silo_of(self), await account.where()]


@stateless_worker(max_local=2)
class Stamp(Grain, name="stamps"):
    async def where(self) -> int:
        return silo_of(self)


class Bank(Town):
    """Three silos that serve accounts."""

    async def join(self, listen: str | None = "127.0.0.1:0", **given: Any) -> Silo:
        store = FaultyProvider(MemoryProvider(self.memory))
        silo = Silo([Account, Booking, Stamp], store, listen, options=self.options, **given)
        await silo.start()
        self.silos.append(silo)
        self.stores[silo] = store
        return silo

    async def __aenter__(self) -> Bank:
        Account.ran.clear()
        Account.gates.clear()
        for _ in range(3):
            await self.join()
        await self.balanced()
        return self

    async def __aexit__(self, *_: object) -> None:
        for silo in self.silos:
            await silo.stop()

    def key_at(self, silo: Silo) -> str:
        owned = silo.rooms.core.ownership
        return next(str(i) for i in range(10_000) if owned.serves(owned.partition_of("accounts", str(i))))


async def test_grains_of_one_affinity_live_on_one_silo_wherever_they_are_called() -> None:
    async with Bank(QUICK) as bank:
        for key in map(str, range(8)):
            found = {
                number
                for silo in bank.silos
                for line in "ab"
                for number in await silo.grain(Booking, f"{key}/{line}").where()
            }
            assert len(found) == 1


async def test_a_stateless_worker_runs_on_the_silo_that_was_called() -> None:
    async with Bank(QUICK) as bank:
        for silo in bank.silos:
            assert await silo.grain(Stamp, "any").where() == silo.number
            async with Client(str(silo.address)) as client:
                assert await client.call("stamps", "any", "where") in [each.number for each in bank.silos]


async def test_a_request_whose_silo_dies_is_answered_by_the_next_one() -> None:
    async with Bank(QUICK) as bank:
        first, dying, _ = bank.silos
        key = bank.key_at(dying)
        Account.gates[dying.number] = asyncio.Event()
        paid = asyncio.ensure_future(first.grain(Account, key).pay(5))
        await until(lambda: Account.ran[dying.number] == 1, "the turn has begun")
        await bank.crash(dying)
        assert await paid == 5
        assert Account.ran.total() == 2


async def test_a_request_that_committed_on_a_silo_that_died_keeps_its_first_result() -> None:
    async with Bank(QUICK) as bank:
        first, dying, _ = bank.silos
        key = bank.key_at(dying)
        account = first.grain(Account, key).with_options(request_id="order-7")
        bank.stores[dying].fail("commit", Fault.LOST_AFTER)
        assert await account.pay(5) == 5
        await bank.crash(dying)
        assert await account.pay(5) == 5
        assert await first.grain(Account, key).pay(1) == 6
        assert Account.ran[dying.number] == 1, "the id went with the forwarded call"
