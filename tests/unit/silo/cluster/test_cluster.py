"""Silos that share a store: they share the partitions, find each other's grains, and go without a loss."""

from __future__ import annotations

import asyncio

import pytest

from farro.client.errors import CallCycle
from farro.providers.errors import StoreInUse
from farro.providers.members import SiloStatus
from farro.providers.memory import MemoryProvider
from farro.silo.gateway.address import CannotListen
from farro.silo.host import Silo
from farro.silo.testing.faulty_provider import Fault
from tests.unit.silo.cluster.cluster_kit import LATE_S, QUICK, Count, Town, town, until


async def rows(made: Town) -> dict[int, SiloStatus]:
    silo = made.silos[0]
    return {row.number: row.status for row in await made.stores[silo].inner.silos()}


async def test_silos_on_one_store_share_the_partitions() -> None:
    async with town(3) as made:
        counts = [silo.cluster.figures().partitions for silo in made.silos]
        assert sum(counts) == 64
        assert set((await rows(made)).values()) == {SiloStatus.ACTIVE}


async def test_a_call_finds_its_grain_wherever_it_lives() -> None:
    async with town(2) as made:
        first, second = made.silos
        key = made.key_of(second)
        assert await first.grain(Count, key).add(2) == 2
        assert await second.grain(Count, key).add(3) == 5
        assert first.rooms.catalog.awake("count", key) is None
        assert second.rooms.catalog.awake("count", key) is not None


async def test_a_grain_calls_one_on_another_silo() -> None:
    async with town(2) as made:
        first, second = made.silos
        here, there = made.key_of(first), made.key_of(second)
        assert await first.grain(Count, here).ask(there, 7) == 7
        assert await second.grain(Count, there).add(0) == 7


async def test_a_cycle_across_silos_is_refused_at_once() -> None:
    async with town(2) as made:
        first, second = made.silos
        here, there = made.key_of(first), made.key_of(second)
        with pytest.raises(CallCycle, match="comes back to a grain that waits"):
            await first.grain(Count, here).back_and_forth(there)
        assert await first.grain(Count, here).add(1) == 1


async def test_a_silo_that_stops_hands_over_and_no_call_fails() -> None:
    async with town(2) as made:
        leaving, staying = made.silos
        stop = asyncio.Event()
        counted: dict[str, int] = {}

        async def call_on(key: str) -> None:
            while not stop.is_set():
                counted[key] = await staying.grain(Count, key).add(1)

        callers = [asyncio.create_task(call_on(str(i))) for i in range(32)]
        await until(lambda: len(counted) == 32, "everybody counts")
        await made.leave(leaving)
        at_the_end = dict(counted)
        await until(lambda: all(counted[key] > at_the_end[key] for key in counted), "everybody counts on")
        stop.set()
        await asyncio.gather(*callers)
        assert staying.cluster.figures().partitions == 64
        for key, value in counted.items():
            assert await staying.grain(Count, key).add(0) == value
        assert SiloStatus.LEFT in (await rows(made)).values()


async def test_a_grain_that_a_turn_elsewhere_asks_is_not_woken_in_a_partition_that_goes() -> None:
    async with town(2) as made:
        staying, leaving = made.silos
        owned = leaving.rooms.core.ownership
        busy = made.key_of(leaving)
        partition = owned.partition_of("count", busy)
        asleep = next(
            key
            for key in map(str, range(10_000))
            if owned.partition_of("count", key) == partition and key != busy
        )
        running = asyncio.create_task(leaving.grain(Count, busy).add_late(1))
        await until(lambda: leaving.rooms.core.running, "a turn runs")
        going = asyncio.create_task(made.leave(leaving))
        await until(lambda: partition in owned.closing, "its partition goes")
        await asyncio.sleep(LATE_S / 2)
        assert await staying.grain(Count, made.key_of(staying)).ask_late(asleep, 3) == 3
        assert await running == 1
        await going


async def test_no_partition_waits_for_the_turns_of_another() -> None:
    async with town(2) as made:
        staying, leaving = made.silos
        busy, idle = made.keys_of(leaving, 2)
        assert await staying.grain(Count, idle).add(3) == 3
        running = asyncio.create_task(leaving.grain(Count, busy).add_late(1))
        await until(lambda: leaving.rooms.core.running, "a turn runs")
        going = asyncio.create_task(made.leave(leaving))
        await until(lambda: leaving.cluster.draining, "it drains")
        assert await staying.grain(Count, idle).add(1) == 4
        assert staying.rooms.catalog.awake("count", idle) is not None
        assert not running.done()
        assert await running == 1
        await going


async def test_a_turn_that_holds_up_its_partition_reaches_a_grain_that_has_gone_on_before() -> None:
    async with town(2) as made:
        staying, leaving = made.silos
        busy, idle = made.keys_of(leaving, 2)
        assert await leaving.grain(Count, idle).add(3) == 3  # awake: both go in one batch
        running = asyncio.create_task(leaving.grain(Count, busy).late_ask(idle, 1))
        await until(lambda: leaving.rooms.core.running, "a turn runs")
        store, catalog = made.stores[leaving], leaving.rooms.catalog
        store.freeze("release")
        going = asyncio.create_task(made.leave(leaving))
        await store.until_frozen("release")  # of the partitions in which everybody sleeps
        store.thaw()
        store.freeze("release")
        await until(lambda: store.calls["release"] == 2, "the idle one's goes")
        await until(lambda: leaving.cluster.figures().calls_held or catalog.awake("count", idle), "it asks")
        assert catalog.awake("count", idle) is None
        store.thaw()
        assert await running == 4
        await going
        assert await staying.grain(Count, idle).add(0) == 4


async def test_what_waits_in_a_mailbox_is_the_next_owners() -> None:
    async with town(2) as made:
        staying, leaving = made.silos
        key = made.key_of(leaving)
        calls = [asyncio.create_task(staying.grain(Count, key).add_late(1)) for _ in range(5)]
        await until(lambda: leaving.rooms.core.running, "a turn runs")
        going = asyncio.create_task(made.leave(leaving))
        await until(calls[0].done, "the running turn has ended")
        await until(lambda: staying.rooms.catalog.awake("count", key), "the next owner goes on")
        assert not calls[4].done()
        assert await asyncio.gather(*calls) == [1, 2, 3, 4, 5]
        await going


async def test_a_release_that_is_answered_after_the_silo_joined_anew_takes_nothing_from_it() -> None:
    async with town(1) as made:
        (silo,) = made.silos
        core, store, before = silo.rooms.core, made.stores[silo], silo.number
        key = made.key_of(silo)
        partition = core.ownership.partition_of("count", key)
        store.freeze("release")
        moving = asyncio.create_task(silo.cluster._reconciler.partitions.hand_over([partition]))
        await store.until_frozen("release")
        marked = False
        while not marked:
            (row,) = [each for each in await store.inner.silos() if each.number == before]
            marked = await store.inner.mark_dead(before, row.renewals, 0)
        await until(lambda: silo.number != before and core.ownership.serves(partition), "taken anew")
        epoch = core.ownership.epoch(partition)
        store.thaw()
        await moving
        assert (core.ownership.serves(partition), core.ownership.epoch(partition)) == (True, epoch)
        assert await silo.grain(Count, key).add(1) == 1


async def test_what_a_crashed_silo_owned_is_taken_over_at_once() -> None:
    async with town(2) as made:
        crashing, staying = made.silos
        key = made.key_of(crashing)
        assert await staying.grain(Count, key).add(5) == 5
        number = crashing.number
        began = asyncio.get_running_loop().time()
        await made.crash(crashing)
        assert await staying.grain(Count, key).add(1) == 6
        took_s = asyncio.get_running_loop().time() - began
        assert took_s < QUICK.cluster.lease.total_seconds(), "proof of death did not wait for the lease"
        assert (await rows(made))[number] is SiloStatus.DEAD


async def test_a_silo_that_crashed_and_starts_again_at_its_address_has_everything_at_once() -> None:
    async with town(1) as made:
        (silo,) = made.silos
        address = silo.address
        await made.crash(silo)
        again = await made.join(listen=address)
        assert again.cluster.figures().partitions == 64


async def test_a_silo_that_cannot_renew_freezes_and_goes_on_with_its_memory() -> None:
    async with town(1) as made:
        (silo,) = made.silos
        store = made.stores[silo]
        await silo.grain(Count, "a").add(1)
        before = await silo.grain(Count, "a").here()
        store.policy = lambda verb: Fault.UNAVAILABLE if verb in ("renew", "cluster") else None
        await until(lambda: silo.cluster.figures().stage == "frozen", "frozen")
        held = asyncio.create_task(silo.call("count", "a", "here"))
        await until(lambda: silo.cluster.figures().calls_held == 1, "the call is held")
        store.policy = lambda verb: None
        assert await held == before
        assert silo.cluster.figures().stage == "healthy"


async def test_a_silo_that_was_taken_for_dead_joins_again_and_commits_nothing_under_its_old_epochs() -> None:
    async with town(2) as made:
        cut_off, staying = made.silos
        key = made.key_of(cut_off)
        assert await cut_off.grain(Count, key).add(1) == 1
        number, store = cut_off.number, made.stores[cut_off]
        store.policy = lambda verb: Fault.UNAVAILABLE if verb in ("renew", "cluster") else None
        await until(lambda: staying.cluster.figures().partitions == 64, "all taken over")
        assert await staying.grain(Count, key).add(1) == 2
        store.policy = lambda verb: None
        await until(lambda: cut_off.number != number, "a new number")
        await made.balanced()
        assert await cut_off.grain(Count, key).add(1) == 3
        assert (await rows(made))[number] is SiloStatus.DEAD


async def test_a_silo_without_an_address_is_alone_on_its_store() -> None:
    async with town(1) as made:
        with pytest.raises(StoreInUse, match="give every silo listen=HOST:PORT"):
            await made.join(listen=None)
        assert sorted(status.value for status in (await rows(made)).values()) == ["active", "left"]
    async with town() as made:
        await made.join(listen=None)
        with pytest.raises(StoreInUse, match="has no address"):
            await made.join()


async def test_a_port_in_use_is_said_before_anything_is_written() -> None:
    async with town(1) as made:
        (silo,) = made.silos
        with pytest.raises(CannotListen, match=f"{silo.address} is already in use"):
            await made.join(listen=silo.address)
        assert list((await rows(made)).values()) == [SiloStatus.ACTIVE]


async def test_services_of_one_store_are_clusters_of_their_own() -> None:
    async with town(1) as made:
        other = Silo(
            [Count],
            MemoryProvider(made.memory, service_id="other"),
            "127.0.0.1:0",
            options=QUICK,
            service_id="other",
        )
        async with other:
            assert other.cluster.figures().partitions == 64
            assert made.silos[0].cluster.figures().partitions == 64
            await made.silos[0].grain(Count, "k").add(5)
            assert await other.grain(Count, "k").add(1) == 1


async def test_every_silo_killed_and_one_started_again_serves_all() -> None:
    async with town(3) as made:
        for key in ("a", "b", "c", "d"):
            await made.silos[0].grain(Count, key).add(1)
        for silo in list(made.silos):
            await made.crash(silo)
        again = await made.join()
        assert again.cluster.figures().partitions == 64
        for key in ("a", "b", "c", "d"):
            assert await again.grain(Count, key).add(1) == 2


async def test_a_hand_over_whose_answer_was_lost_leaves_no_partition_without_an_owner() -> None:
    async with town(2) as made:
        leaving, staying = made.silos
        made.stores[leaving].fail("release", Fault.LOST_AFTER, Fault.LOST_BEFORE)
        key = made.key_of(leaving)
        assert await staying.grain(Count, key).add(1) == 1
        await made.join()
        await made.balanced()
        assert made.stores[leaving].calls["release"] >= 3
        assert await staying.grain(Count, key).add(1) == 2
