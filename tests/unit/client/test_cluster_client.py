"""The client in a cluster: the map, the way to owners, what is sent again; over pipes and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

import pytest

from farro.client.client import Client
from farro.client.codec import Codec
from farro.client.connection import Connection
from farro.client.connections import ROUTES_MAX
from farro.client.dialing import CLIENT_INFO
from farro.client.errors import (
    CommitOutcomeUnknown,
    Fenced,
    NotMine,
    SiloStopping,
    SiloUnavailable,
)
from farro.client.identity import partition_of
from farro.client.interface import grain_interface
from farro.client.retries import RETRIES_FREE
from farro.silo.testing.pipes import PipeNetwork
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.cluster.routing import PARTITIONS, SmallSilo, address, cluster, key_in, silos, until

ALL = list(range(8))
EVEN, ODD = [0, 2, 4, 6], [1, 3, 5, 7]
HERE, THERE = key_in(0), key_in(1)  # with silo 1 and 2, where they own what is even and odd


@asynccontextmanager
async def connected(
    *made: SmallSilo, gateways: tuple[int, ...] = (1,), **options: Any
) -> AsyncIterator[Client]:
    network = made[0].network

    async def dial(where: str) -> Connection:
        return await network.dial("client", where, Codec(), CLIENT_INFO)

    urls = [address(number) for number in gateways]
    async with Client(*urls, chance=Random(1), dial=dial, **options) as client:
        yield client


def ways(network: PipeNetwork) -> list[str]:
    """What the client has dialled, in order."""
    return [where for who, where, _ in network.pipes if who == "client"]


def cut(network: PipeNetwork, number: int) -> None:
    """The process of that silo is gone."""
    gone = address(number)
    network.gateways.pop(gone, None)
    for who, where, pipe in network.pipes:
        if where == gone or who == f"silo-{number}":
            pipe.cut()


async def direct(client: Client, connections: int = 2) -> None:
    await until(lambda: client.statistics().connections == connections)


async def test_calls_go_straight_to_the_owner_once_it_has_been_dialled(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        assert await client.call("echo", THERE, "echo", 1) == 1
        await direct(client)
        assert await client.call("echo", THERE, "echo", 2) == 2
        assert await client.call("echo", HERE, "echo", 3) == 3
        assert [call.forwarded for call in two.seen][-1] is False
        assert one.router.figures().forwarded <= 1
        figures = client.statistics()
        assert (figures.view, figures.connected_to, figures.calls) == (1, address(1), 3)
        assert figures.retries == figures.retries_refused == 0


async def test_calls_that_wait_for_one_silo_share_its_dial_and_do_not_wait(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        await until(lambda: client.statistics().view == 1)
        answers = await asyncio.gather(*(client.call("echo", THERE, "echo", n) for n in range(100)))
        assert answers == list(range(100))
        await direct(client)
        assert ways(one.network) == [address(1), address(2)]
        assert len(two.seen) == 100


async def test_an_owner_that_cannot_be_dialled_is_called_through_the_gateway(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        one.network.refuses = lambda who, where: who == "client" and where == address(2)
        for number in range(20):
            assert await client.call("echo", THERE, "echo", number) == number
        assert one.router.figures().forwarded == 20
        one.network.refuses = lambda who, where: False
        await direct(client)
        assert await client.call("echo", THERE, "echo", "x") == "x"
        assert one.router.figures().forwarded == 20 and len(two.seen) == 21


async def test_a_newer_view_moves_the_calls_and_an_older_one_does_not(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        await client.call("echo", THERE, "echo")
        await direct(client)
        one.own(*ODD)
        two.ownership.drop(ODD)
        for silo in (one, two):
            silo.update(cluster(4, [1] * 8, 1, 2))
        await until(lambda: client.statistics().view == 4)
        before = len(one.seen)
        await client.call("echo", THERE, "echo")
        assert len(one.seen) == before + 1
        two.gateway.publish(cluster(3, [2] * 8, 1, 2))
        await client.call("echo", THERE, "echo")
        assert (client.statistics().view, len(one.seen)) == (4, before + 2)


async def test_without_a_map_everything_goes_through_the_gateway(virtual: VirtualClock) -> None:
    network = PipeNetwork()
    alone = SmallSilo(network, 1, ALL)
    await alone.gateway.start()
    async with connected(alone) as client:
        assert await client.call("echo", THERE, "echo", 1) == 1
        assert client.statistics().view is None
        assert ways(network) == [address(1)]
    await alone.close()


async def test_a_silo_that_dies_fails_at_once_what_it_had_and_nothing_else(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        await client.call("echo", THERE, "echo")
        await direct(client)
        loop = asyncio.get_running_loop()
        out = asyncio.create_task(client.call("echo", THERE, "hold"))
        await until(lambda: two.held)
        began = loop.time()
        cut(one.network, 2)
        unsent = asyncio.create_task(client.call("echo", THERE, "echo", "later"))
        with pytest.raises(SiloUnavailable) as lost:
            await out
        assert loop.time() - began < 0.01
        assert (lost.value.turn_ran, lost.value.retry_safe) == (None, False)
        one.own(*ODD)
        one.update(cluster(2, [1] * 8, 1))
        assert await unsent == "later"
        assert [call.method for call in two.seen] == ["echo", "hold"], "an unknown outcome is not sent again"


async def test_a_frozen_silo_fails_what_it_had_when_the_map_says_that_it_is_gone(
    virtual: VirtualClock,
) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        await client.call("echo", THERE, "echo")
        await direct(client)
        out = asyncio.create_task(client.call("echo", THERE, "hold", timeout=3_600))
        await until(lambda: two.held)
        one.own(*ODD)
        one.update(cluster(2, [1] * 8, 1))
        with pytest.raises(SiloUnavailable, match="no member of the cluster any more") as lost:
            await out
        assert lost.value.turn_ran is None
        await direct(client, 1)


async def test_losing_the_gateway_another_silo_takes_its_part(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        await client.call("echo", THERE, "echo")
        await direct(client)
        two.own(*EVEN)
        cut(one.network, 1)
        await until(lambda: client.statistics().connected_to != address(1))
        two.update(cluster(2, [2] * 8, 2))
        assert await client.call("echo", HERE, "echo", "x") == "x"
        assert client.statistics().connected_to == address(2)
        assert ways(one.network) == [address(1), address(2)]


async def test_the_addresses_of_the_map_are_gateways_too(virtual: VirtualClock) -> None:
    async with silos(ALL, []) as (one, two), connected(one) as client:
        await client.call("echo", HERE, "echo")
        await direct(client, 1)
        two.own(*ALL)
        cut(one.network, 1)
        await until(lambda: client.statistics().connected_to != address(1))
        two.update(cluster(2, [2] * 8, 2))
        assert await client.call("echo", HERE, "echo", "x") == "x"


async def test_a_cluster_that_began_anew_counts_its_views_from_the_start(virtual: VirtualClock) -> None:
    network = PipeNetwork()
    old = SmallSilo(network, 1, ALL)
    await old.gateway.start()
    old.update(cluster(900, [1] * 8))
    async with connected(old) as client:
        await until(lambda: client.statistics().view == 900)
        cut(network, 1)
        await until(lambda: client.statistics().connected_to is None)
        new = SmallSilo(network, 1, ALL)
        await new.gateway.start()
        new.update(cluster(2, [1] * 8))
        assert await client.call("echo", HERE, "echo", "x") == "x"
        await until(lambda: client.statistics().view == 2)
    await old.close()
    await new.close()


@pytest.mark.parametrize("error", [Fenced("lost"), NotMine("not here"), SiloStopping("stopping")])
async def test_what_certainly_did_not_run_is_sent_again(error: Any, virtual: VirtualClock) -> None:
    async with silos(ALL) as (one,), connected(one) as client:
        asked = asyncio.create_task(client.call("echo", HERE, "hold"))
        for _ in range(3):
            await until(lambda: one.held)
            one.release(error)
        await until(lambda: one.held)
        one.release()
        assert await asked == "held"
        assert client.statistics().retries == 3


async def test_an_unknown_outcome_goes_to_the_caller_tra_008(virtual: VirtualClock) -> None:
    async with silos(ALL) as (one,), connected(one) as client:
        asked = asyncio.create_task(client.call("echo", HERE, "hold"))
        await until(lambda: one.held)
        one.release(CommitOutcomeUnknown("nobody knows"))
        with pytest.raises(CommitOutcomeUnknown):
            await asked
        assert len(one.seen) == 1


async def test_a_storm_ends_at_the_budget(virtual: VirtualClock) -> None:
    async with silos(ALL) as (one,), connected(one) as client:
        stopped = asyncio.Event()

        async def refuse() -> None:
            while not stopped.is_set():
                one.release(Fenced("lost"))
                await asyncio.sleep(0.001)

        refusing = asyncio.create_task(refuse())
        calls = [client.call("echo", HERE, "hold") for _ in range(200)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        stopped.set()
        await refusing
        assert {type(result) for result in results} == {Fenced}
        assert len(one.seen) <= 200 * 1.1 + RETRIES_FREE
        figures = client.statistics()
        assert (figures.calls, figures.retries_refused) == (200, 200)


async def test_a_retry_that_would_come_too_late_is_not_made(virtual: VirtualClock) -> None:
    async with silos(ALL) as (one,), connected(one) as client:
        loop = asyncio.get_running_loop()
        asked = asyncio.create_task(client.call("echo", HERE, "hold", timeout=1.0))
        began = loop.time()
        while not asked.done():
            one.release(Fenced("lost"))
            await asyncio.sleep(0.001)
        assert loop.time() - began <= 1.0
        assert isinstance(asked.exception(), Fenced)


async def test_a_planned_restart_fails_no_call(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one, gateways=(1, 2)) as client:
        failed: list[BaseException] = []
        done = asyncio.Event()
        made = 0

        async def call_on(key: str) -> None:
            nonlocal made
            while not done.is_set():
                try:
                    await client.call("echo", key, "echo")
                except Exception as error:
                    failed.append(error)
                made += 1
                await asyncio.sleep(0.0005)

        async with asyncio.TaskGroup() as group:
            for key in (HERE, THERE) * 8:
                group.create_task(call_on(key))
            await until(lambda: made > 200)
            two.ownership.close(ODD)  # it drains: hands over, then its gateway stops
            await until(lambda: two.router.held > 0)
            two.ownership.drop(ODD)
            one.own(*ODD)
            for silo in (one, two):
                silo.update(cluster(2, [1] * 8, 1, 2))
            stop_at = made + 200
            await until(lambda: made > stop_at)
            await two.gateway.stop(30)
            one.update(cluster(3, [1] * 8, 1))
            stop_at = made + 200
            await until(lambda: made > stop_at)
            done.set()
        assert failed == []
        assert client.statistics().retries_refused == 0


async def test_a_oneway_call_goes_to_the_owner_too(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        grain = client.grain(Pinger, THERE)
        await grain.ping()
        await until(lambda: two.seen)
        await direct(client)
        await grain.ping()
        await until(lambda: len(two.seen) == 2)
        assert [call.forwarded for call in two.seen] == [True, False] or not two.seen[0].forwarded


async def test_a_cancelled_caller_cancels_its_call_at_the_owner(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two), connected(one) as client:
        asked = asyncio.create_task(client.call("echo", THERE, "hold"))
        await until(lambda: two.held)
        asked.cancel()
        await until(lambda: not two.held)
        assert two.seen[-1].cancelled


async def test_affinity_decides_where_a_call_goes_and_is_asked_once_for_a_grain(
    virtual: VirtualClock,
) -> None:
    async with silos(EVEN, ODD) as (one, _), connected(one) as client:
        await until(lambda: client.statistics().view == 1)
        room = next(
            text for text in map(str, range(100)) if partition_of("", text, PARTITIONS) in ODD
        )  # as the class with affinity has it: the hash of no type and the affinity
        near = next(
            key
            for key in (f"{room}/{number}" for number in range(100))
            if partition_of("near", key, PARTITIONS) in EVEN
        )
        grain = client.grain(Near, near)
        await grain.echo(1)
        await direct(client)
        AFFINITIES.clear()
        for number in range(10):
            await grain.echo(number)
        assert [near] == AFFINITIES
        assert client.statistics().connections == 2


async def test_ways_are_remembered_within_a_bound(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, _), connected(one) as client:
        await until(lambda: client.statistics().view == 1)
        for number in range(ROUTES_MAX + 10):
            client._route("echo", str(number))
        assert 0 < len(client._routes) <= ROUTES_MAX


AFFINITIES: list[str] = []


def first_part(key: str) -> str:
    AFFINITIES.append(key)
    return key.split("/")[0]


@grain_interface("near", affinity=first_part)
class Near(Protocol):
    async def echo(self, value: Any) -> Any: ...


@grain_interface("echo")
class Pinger(Protocol):
    async def ping(self) -> None: ...


Pinger.ping.__farro_oneway__ = True  # type: ignore[attr-defined]
