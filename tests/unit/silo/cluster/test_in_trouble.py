"""What goes wrong around a cluster at the worst moment: the store, a provider, a stop beside a start."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from farro.providers.memory import MemoryProvider
from farro.silo import membership
from farro.silo.host import Silo
from farro.silo.testing.faulty_provider import Fault, FaultyProvider
from tests.unit.silo.cluster.cluster_kit import QUICK, Count, town, until


def heartbeats() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "farro heartbeat"]


async def test_a_call_for_a_sleeping_grain_goes_on_as_soon_as_the_silo_is_trusted_again() -> None:
    async with town(1) as made:
        (silo,) = made.silos
        store = made.stores[silo]
        store.policy = lambda verb: Fault.UNAVAILABLE if verb in ("renew", "cluster") else None
        await until(lambda: silo.cluster.figures().stage == "suspect", "suspect")
        held = asyncio.create_task(silo.grain(Count, "asleep").add(1))
        await until(lambda: silo.cluster.figures().calls_held == 1, "the call is held")
        store.policy = lambda verb: None
        await until(lambda: silo.cluster.figures().stage == "healthy", "healthy")
        async with asyncio.timeout(2):
            assert await held == 1


async def test_a_second_stop_beside_the_first_waits_for_it() -> None:
    async with town(2) as made:
        silo = made.silos.pop()
        await asyncio.gather(silo.stop(), silo.stop())
        await silo.stop()


async def test_stop_beside_a_start_ends_it() -> None:
    async with town() as made:
        for verb in ("join", "set_status", "cluster", "take"):
            before = len(heartbeats())
            store = FaultyProvider(MemoryProvider(made.memory))
            silo = Silo([Count], store, "127.0.0.1:0", options=QUICK)
            store.freeze(verb)
            start = asyncio.create_task(silo.start())
            await until(partial(store.calls.get, verb), f"it waits for {verb}")
            async with asyncio.timeout(5):
                await asyncio.gather(silo.stop(), silo.stop())
            assert len(heartbeats()) == before
            with pytest.raises(RuntimeError, match="was stopped while it started"):
                await start


async def test_a_provider_that_raises_anything_ends_no_tending() -> None:
    async with town(2) as made:
        silo, other = made.silos
        store = made.stores[silo]

        def fault(verb: str) -> None:
            if verb == "cluster":
                raise ZeroDivisionError("a fault in a provider")

        store.policy = fault
        await asyncio.sleep(0.5)
        store.policy = lambda verb: None
        await made.crash(other)
        await until(lambda: silo.cluster.figures().partitions == 64, "taken over")


async def test_a_provider_that_raises_anything_ends_no_rejoining() -> None:
    async with town(2) as made:
        silo, _ = made.silos
        store, number = made.stores[silo], silo.number
        failed: list[str] = []

        def fault(verb: str) -> None:
            if verb in ("join", "set_status") and len(failed) < 3:
                failed.append(verb)
                raise ZeroDivisionError("a fault in a provider")

        store.policy = fault
        await store.inner.leave(number, 0)
        await until(lambda: silo.number != number, "joined again")
        await made.balanced()


async def test_a_silo_that_drains_joins_again_without_being_given_partitions() -> None:
    async with town(2) as made:
        silo, other = made.silos
        store, number = made.stores[silo], silo.number
        silo.cluster._reconciler.draining = True
        await store.inner.leave(number, 0)
        await until(lambda: silo.number != number, "joined again")
        await until(lambda: other.cluster.figures().partitions == 64, "all taken")


async def test_a_silo_that_joined_again_does_not_dial_itself() -> None:
    async with town(2) as made:
        silo, other = made.silos
        store, number = made.stores[silo], silo.number
        store.freeze("set_status")
        await store.inner.leave(number, 0)
        await store.until_frozen("set_status")
        await asyncio.sleep(0.6)
        store.thaw()
        await until(lambda: silo.number != number, "joined again")
        await made.balanced()
        assert sorted(silo.cluster._links._tending) == [other.number]


async def test_a_silo_without_an_address_that_was_taken_for_dead_makes_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "ALONE_RENEW_S", 0.3)
    async with town() as made:
        alone = await made.join(listen=None)
        failures: list[str] = []
        alone.on_failure(failures.append)
        await made.stores[alone].inner.leave(alone.number, 0)
        other = await made.join()
        await until(lambda: failures, "it gives up")
        await until(lambda: not other.cluster.has_peers, "it is no member")
        assert other.cluster.figures().partitions == 64
        assert await other.grain(Count, "a").add(1) == 1


async def test_a_good_bye_that_the_store_does_not_answer_holds_no_stop_up() -> None:
    async with town(1) as made:
        silo = made.silos.pop()
        made.stores[silo].freeze("leave")
        async with asyncio.timeout(5):
            await silo.stop()
        assert not heartbeats()


async def test_a_beat_after_the_cluster_room_closed_joins_nothing_again() -> None:
    async with town(1) as made:
        silo = made.silos.pop()
        store, number = made.stores[silo], silo.number
        await silo.cluster.close()
        await store.inner.leave(number, 0)
        await asyncio.sleep(0.6)
        assert [row.number for row in await store.inner.silos()] == [number]
        await silo.stop()


async def test_a_partition_whose_release_got_no_answer_is_served_no_more_until_it_is_another_silos() -> None:
    async with town(1) as made:
        (silo,) = made.silos
        store, owned = made.stores[silo], silo.rooms.core.ownership
        store.fail("release", Fault.LOST_AFTER, Fault.LOST_BEFORE, Fault.LOST_AFTER)
        other = await made.join()
        while other.cluster.figures().partitions < 28:
            owners = (await store.inner.cluster()).owners
            assert not [each for each in range(64) if owned.serves(each) and owners[each] != silo.number]
            await asyncio.sleep(0.001)
        await made.balanced()
        assert store.calls["release"] > 3


async def test_news_of_a_view_that_the_store_does_not_know_makes_no_storm_of_looks() -> None:
    async with town(2) as made:
        silo = made.silos[0]
        looks = made.stores[silo].calls
        before, until_then = looks["cluster"], asyncio.get_running_loop().time() + 0.5
        while asyncio.get_running_loop().time() < until_then:
            silo.cluster.news(1 << 62)
            await asyncio.sleep(0)
        assert looks["cluster"] - before <= 150
