"""Requests of clients: their ids travel, and what may have run is sent again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from farro.client.blocking import BlockingClient
from farro.client.client import Client
from farro.client.connection import Connection
from farro.client.errors import (
    CommitOutcomeUnknown,
    InvalidPayload,
    ProtocolError,
    SiloUnavailable,
)
from farro.client.protocol import HELLO
from farro.client.requests import Request
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.silo.grains.decorators import idempotent_request, readonly
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.testing.faulty_provider import Fault, FaultyProvider
from tests.unit.silo.gateway.serving import Target, raw, serving


@dataclass
class Balance:
    amount: int = 0


class Account(Grain[Balance], name="accounts"):
    ran: ClassVar[int] = 0
    gate: ClassVar[asyncio.Event]
    begun: ClassVar[asyncio.Event]

    @idempotent_request
    async def pay(self, amount: int) -> int:
        Account.ran += 1
        Account.begun.set()
        self.state.amount += amount
        await Account.gate.wait()
        return self.state.amount

    async def pay_plainly(self, amount: int) -> int:
        return await self.pay(amount)

    @readonly
    async def balance(self) -> int:
        return self.state.amount


@asynccontextmanager
async def a_bank() -> AsyncIterator[tuple[Client, FaultyProvider]]:
    Account.ran = 0
    Account.gate, Account.begun = asyncio.Event(), asyncio.Event()
    Account.gate.set()
    store = FaultyProvider(MemoryProvider(MemoryStore()))
    async with (
        Silo([Account], store, "127.0.0.1:0") as silo,
        Client(str(silo.address)) as client,
    ):
        yield client, store


async def test_a_lost_commit_is_asked_for_again_and_paid_once() -> None:
    async with a_bank() as (client, store):
        account = client.grain(Account, "a")
        store.fail("commit", Fault.LOST_AFTER)
        assert await account.pay(5) == 5
        store.fail("commit", Fault.LOST_AFTER)
        with pytest.raises(CommitOutcomeUnknown):
            await account.pay_plainly(5)
        assert await account.balance() == 10


async def test_a_lost_connection_is_made_anew_and_the_running_request_is_waited_for() -> None:
    async with a_bank() as (client, _):
        Account.gate.clear()
        paid = asyncio.ensure_future(client.grain(Account, "a").pay(5))
        await Account.begun.wait()
        await current(client).close()
        Account.gate.set()
        assert await paid == 5
        assert Account.ran == 1
        assert await client.grain(Account, "a").balance() == 5
        assert client.statistics().connections_made == 2


async def test_a_plain_call_on_a_lost_connection_is_not_sent_again() -> None:
    async with a_bank() as (client, _):
        Account.gate.clear()
        paid = asyncio.ensure_future(client.grain(Account, "a").pay_plainly(5))
        await Account.begun.wait()
        await current(client).close()
        with pytest.raises(SiloUnavailable):
            await paid
        Account.gate.set()


async def test_an_id_of_the_callers_own_works_typed_untyped_and_without_async() -> None:
    async with a_bank() as (client, _):
        address = str(client.statistics().connected_to)
        assert await client.grain(Account, "a").with_options(request_id="order-7").pay(5) == 5
        assert await client.call("accounts", "a", "pay", 5, request_id="order-7") == 5

        def in_a_thread() -> int:
            with BlockingClient(address) as blocking:
                assert blocking.call("accounts", "a", "pay", 5, request_id="order-7") == 5
                account: Any = blocking.grain(Account, "a")
                return int(account.with_options(request_id="order-7").pay(5))

        assert await asyncio.to_thread(in_a_thread) == 5
        assert Account.ran == 1


async def test_an_id_is_refused_where_it_would_promise_what_nobody_keeps() -> None:
    async with a_bank() as (client, _):
        with pytest.raises(InvalidPayload, match="pay_plainly is no @idempotent_request"):
            await client.call("accounts", "a", "pay_plainly", 5, request_id="r")
        with pytest.raises(InvalidPayload, match=r"pay_plainly\(\) is no @idempotent_request"):
            await client.grain(Account, "a").with_options(request_id="r").pay_plainly(5)
        with pytest.raises(InvalidPayload, match="1 to 128 printable characters"):
            await client.call("accounts", "a", "pay", 5, request_id="")
        assert Account.ran == 0


async def test_a_client_that_was_closed_says_that_the_outcome_is_unknown() -> None:
    async with a_bank() as (client, _):
        Account.gate.clear()
        paid = asyncio.ensure_future(client.grain(Account, "a").pay(5))
        await Account.begun.wait()
        await client.close()
        with pytest.raises(SiloUnavailable) as caught:
            await paid
        assert caught.value.turn_ran is None
        Account.gate.set()


# ---- on the wire

CALL = [3, 1, "echo", "a", "add", [1, 2], None, 1000, None]


async def test_a_request_is_the_tenth_element_of_a_call() -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        await peer.send([*CALL, ["r-1", True]])
        assert await peer.receive() == [[4, 1, 3]]
        await peer.send([3, 2, *CALL[2:]])
        await peer.receive()
        assert [call.request for call in target.seen] == [Request("r-1", again=True), None]


@pytest.mark.parametrize(
    "tenth", [None, "r", ["r"], ["r", 1], [1, True], ["r", True, 0], ["", True], ["a" * 129, True]]
)
async def test_a_tenth_element_that_is_no_request_breaks_the_protocol(tenth: Any) -> None:
    async with serving() as (gateway, target), raw(gateway) as peer:
        await peer.send([*CALL, tenth])
        assert await peer.closed() == 1002
        assert target.seen == []


async def test_version_1_carries_no_requests() -> None:
    async with serving() as (gateway, target), raw(gateway, greet=False) as peer:
        await peer.send([HELLO, 1, 1, {}])
        await peer.receive()
        await peer.send([*CALL, ["r-1", True]])
        assert await peer.closed() == 1002
        assert target.seen == []


async def test_a_request_is_not_sent_to_a_silo_that_could_not_keep_it() -> None:
    async with serving() as (gateway, target), Client(gateway.address) as client:
        current(client).version = 1
        with pytest.raises(ProtocolError, match="speaks version 1 of the protocol, which carries no"):
            await client.call("echo", "a", "add", 1, 2, request_id="r")
        assert target.seen == []
        assert await client.call("echo", "a", "add", 1, 2) == 3


async def test_the_first_attempt_says_that_it_is_the_first() -> None:
    class Losing(Target):
        """Answers the first two calls with an unknown outcome."""

        def submit(self, call: Any) -> None:
            if len(self.seen) < 2:
                self.seen.append(call)
                call.respond(None, CommitOutcomeUnknown("lost"))
            else:
                super().submit(call)

    target = Losing()
    async with serving(target) as (gateway, _), Client(gateway.address) as client:
        assert await client.call("echo", "a", "add", 1, 2, request_id="mine") == 3
        assert [call.request for call in target.seen] == [Request("mine", again=True)] * 3
        target.seen.clear()
        send: Callable[..., Awaitable[Any]] = client.grain(Sums, "a").add
        assert await send(1, 2) == 3
        first, *others = [call.request for call in target.seen]
        assert first is not None
        assert not first.again
        assert others == [Request(first.id, again=True)] * 2


class Sums(Grain, name="echo"):
    @idempotent_request
    async def add(self, left: int, right: int) -> int:
        return left + right


def current(client: Client) -> Connection:
    assert client._connections is not None
    connection = client._connections.gateway
    assert connection is not None
    return connection
