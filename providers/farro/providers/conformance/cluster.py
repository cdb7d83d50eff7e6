"""What a cluster needs of its store: views, takes by epoch, ends of silos, locks, handles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest

from farro.providers.conformance.made import NOW, PARTITION, SECOND, Owner, a_reminder, an_owner, writing
from farro.providers.conformance.stores import MakeProvider, StoreKit, reopened
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError, Unavailable
from farro.providers.members import ClusterRows, Members, PartitionRow, SiloRow, SiloStatus
from farro.providers.rows import Outcome, PutReminder

DAY = 86_400 * SECOND
YEAR_2020 = 1_577_836_800 * SECOND


async def heartbeat(handle: Members, beats: int, begun: Callable[[], object]) -> tuple[SiloRow, ClusterRows]:
    """Join and renew on an event loop of one's own; the silo and what the cluster looked like at the end."""
    try:
        silo = await handle.join("heart", NOW)
        begun()
        for beat in range(beats):
            assert await handle.renew(silo.number, NOW + beat, beat) is not None
            assert await handle.is_held(silo.number)
        return silo, await handle.cluster()
    finally:
        await handle.close()


class ClusterKit(StoreKit):
    members_in_threads: ClassVar[bool] = True
    """Whether ``members()`` may be used from a thread and an event loop of its own."""

    async def test_a_silo_joins_and_its_status_and_view_are_told(self, store: Provider) -> None:
        silo = await store.join("10.0.0.1:1", NOW)
        assert silo.status is SiloStatus.JOINING and (silo.renewals, silo.load) == (0, 0)
        rows = await store.cluster()
        assert rows.silos == (silo,) and len(rows.owners) == len(rows.epochs)
        assert set(rows.owners) == set(rows.epochs) == {0}
        assert await store.set_status(silo.number, SiloStatus.ACTIVE, NOW + 1)
        assert await store.set_status(silo.number, SiloStatus.DRAINING, NOW + 2)
        active = replace(silo, status=SiloStatus.DRAINING, renewed_at=NOW + 2)
        assert (await store.cluster()).silos == (active,)

    async def test_a_clock_of_the_stores_own_goes_on(self, store: Provider) -> None:
        handle = store.members()
        try:
            shown = [await store.store_time(), await handle.store_time(), await store.store_time()]
        finally:
            await handle.close()
        told = [at for at in shown if at is not None]
        assert len(told) in (0, 3) and told == sorted(told)
        assert all(at > YEAR_2020 for at in told), "microseconds since the epoch"

    async def test_the_view_grows_with_every_change_of_what_is_told_and_only_then(
        self, store: Provider
    ) -> None:
        views = [(await store.cluster()).view]

        async def view_after() -> int:
            views.append((await store.cluster()).view)
            return views[-1] - views[-2]

        first = await store.join("a", NOW)
        assert await view_after() > 0
        second = await store.join("b", NOW)
        assert await view_after() > 0
        await store.set_status(first.number, SiloStatus.ACTIVE, NOW)
        assert await view_after() > 0
        await store.set_status(first.number, SiloStatus.ACTIVE, NOW)
        assert await view_after() == 0, "repeated"
        assert await store.renew(first.number, NOW + 1, 7) == views[-1]
        assert await view_after() == 0
        await store.take(first.number, [1, 2], NOW)
        assert await view_after() > 0
        await store.take(second.number, [1], NOW, [9])
        await store.take(first.number, [], NOW)
        await store.release(second.number, [1], NOW)
        assert await view_after() == 0, "nothing taken, nothing released"
        await store.release(first.number, [1], NOW)
        assert await view_after() > 0
        await store.release(first.number, [1], NOW)
        assert await view_after() == 0, "repeated"
        assert not await store.mark_dead(second.number, 5, NOW)
        assert await view_after() == 0
        assert await store.mark_dead(second.number, 0, NOW)
        assert await view_after() > 0
        await store.leave(second.number, NOW)
        assert await view_after() == 0, "dead before"
        await store.leave(first.number, NOW)
        assert await view_after() > 0

    async def test_a_renewal_is_counted_and_tells_the_load(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        for count in (1, 2):
            assert await store.renew(silo.number, NOW + count, 10 * count) is not None
        (row,) = await store.silos()
        assert (row.renewals, row.load, row.renewed_at) == (2, 20, NOW + 2)

    async def test_a_take_by_epochs_takes_what_is_free_or_its_own(self, store: Provider) -> None:
        first, second = await store.join("a", NOW), await store.join("b", NOW)
        taken = await store.take(first.number, [5, 2], NOW, [0, 0])
        assert taken == [PartitionRow(2, 1, None), PartitionRow(5, 1, None)]
        # another's, another epoch's, a free one, one's own
        assert await store.take(second.number, [2, 3, 4], NOW, [1, 7, 0]) == [PartitionRow(4, 1, None)]
        assert await store.take(first.number, [2], NOW, [0]) == []
        assert await store.take(first.number, [2], NOW, [1]) == [PartitionRow(2, 2, NOW)]
        rows = await store.cluster()
        told = {index: (rows.owners[index], rows.epochs[index]) for index in range(6)}
        nobody = (0, 0)
        assert told == {
            0: nobody,
            1: nobody,
            2: (first.number, 2),
            3: nobody,
            4: (second.number, 1),
            5: (first.number, 1),
        }

    async def test_of_silos_that_take_the_same_epoch_one_gets_it(self, store: Provider) -> None:
        silos = [await store.join(str(index), NOW) for index in range(4)]
        epochs = list((await store.cluster()).epochs)
        everything = range(len(epochs))
        answers = await asyncio.gather(
            *(store.take(silo.number, everything, NOW, epochs) for silo in silos for _ in range(2))
        )
        taken = [row.partition for rows in answers[::2] for row in rows]
        # a silo's second take of the same epoch finds the epoch moved
        assert sorted(taken + [row.partition for rows in answers[1::2] for row in rows]) == list(everything)
        rows = await store.cluster()
        assert set(rows.epochs) == {1} and 0 not in rows.owners

    async def test_a_take_without_epochs_takes_from_whoever_has_it(self, store: Provider) -> None:
        first, second = await store.join("a", NOW), await store.join("b", NOW)
        await store.take(first.number, [2], NOW)
        assert await store.take(second.number, [2], NOW + 5) == [PartitionRow(2, 2, NOW)]
        assert (await store.cluster()).owners[2] == second.number

    async def test_what_is_released_is_free_keeps_its_epoch_and_remembers_the_sign_of_life(
        self, store: Provider
    ) -> None:
        first, second = await store.join("a", NOW), await store.join("b", NOW)
        await store.take(first.number, [1, 2, 3], NOW)
        await store.release(second.number, [1, 2, 3], NOW + 1)
        await store.release(first.number, [3, 1, 9], NOW + 2)
        rows = await store.cluster()
        assert (rows.owners[1:4], rows.epochs[1:4]) == ((0, first.number, 0), (1, 1, 1))
        assert await store.take(second.number, [1, 2], NOW + 9, [1, 1]) == [PartitionRow(1, 2, NOW + 2)]

    async def test_marking_dead_holds_only_for_the_renewals_that_were_seen(self, owner: Owner) -> None:
        store, number = owner.store, owner.number
        await store.renew(number, NOW + 3)
        for seen in (0, 2):
            assert not await store.mark_dead(number, seen, NOW + 60)
        assert await store.mark_dead(number, 1, NOW + 60)
        assert not await store.mark_dead(number, 1, NOW + 61)
        assert not await store.mark_dead(number + 1, 0, NOW + 61)
        (row,) = await store.silos()
        assert (row.status, row.renewed_at, row.left_at) == (SiloStatus.DEAD, NOW + 3, NOW + 60)

    @pytest.mark.parametrize("dead", [False, True])
    async def test_the_end_of_a_silo_frees_its_partitions_and_is_final(
        self, owner: Owner, dead: bool
    ) -> None:
        store, number = owner.store, owner.number
        if dead:
            assert await store.mark_dead(number, 0, NOW + 60)
        else:
            await store.leave(number, NOW + 60)
        assert set((await store.cluster()).owners) == {0}
        before = await store.silos()
        assert before[0].status is (SiloStatus.DEAD if dead else SiloStatus.LEFT)
        assert await store.renew(number, NOW + 61) is None
        assert not await store.set_status(number, SiloStatus.ACTIVE, NOW + 61)
        with pytest.raises(StoreError, match="not a member"):
            await store.take(number, [PARTITION], NOW + 61)
        assert not await store.mark_dead(number, 0, NOW + 61)
        await store.leave(number, NOW + 61)
        assert await store.silos() == before
        second = await store.join("b", NOW + 61)
        (row,) = await store.take(second.number, [PARTITION], NOW + 62, [owner.epochs[PARTITION]])
        alive_at = NOW if dead else NOW + 60
        assert row == PartitionRow(PARTITION, owner.epochs[PARTITION] + 1, alive_at)
        (verdict,) = await owner.commit(owner.member(grain=writing()))
        assert verdict.outcome is Outcome.FENCED

    async def test_an_expired_owner_that_nobody_replaced_may_commit(self, owner: Owner) -> None:
        assert await owner.store.mark_dead(owner.number, 0, NOW + 60)
        before = await owner.store.silos()
        (verdict,) = await owner.commit(owner.member(grain=writing()), now=NOW + 61)
        assert verdict.outcome is Outcome.COMMITTED
        assert await owner.store.silos() == before, "that is no sign of life"

    async def test_silos_that_ended_more_than_a_day_ago_are_forgotten_and_their_numbers_not_reused(
        self, store: Provider
    ) -> None:
        silos = [await store.join(str(index), NOW) for index in range(4)]
        await store.leave(silos[0].number, NOW)
        await store.mark_dead(silos[1].number, 0, NOW)
        await store.leave(silos[3].number, NOW + 10)
        last = await store.join("later", NOW + DAY + 1)
        assert [row.number for row in await store.silos()] == [
            silos[2].number,
            silos[3].number,
            last.number,
        ]
        assert last.number > silos[3].number
        newest = await store.join("latest", NOW + 9 * DAY)
        assert [row.number for row in await store.silos()] == [silos[2].number, last.number, newest.number]

    async def test_the_lock_of_a_silo_is_held_by_who_joined_until_that_is_closed(
        self, store: Provider
    ) -> None:
        handle, other = store.members(), store.members()
        first, second = await handle.join("a", NOW), await store.join("b", NOW)
        for asker in (store, handle, other, store):
            held = [
                await asker.is_held(number) for number in (first.number, second.number, second.number + 1)
            ]
            assert held == [True, True, False]
        await other.close()
        await handle.close()
        third = store.members()
        assert [await third.is_held(number) for number in (first.number, second.number)] == [False, True]
        await third.close()
        (row, _) = await store.silos()
        assert row.status is SiloStatus.JOINING, "the lock says nothing in the rows"

    async def test_the_lock_of_a_provider_ends_with_it(
        self, store: Provider, make_provider: MakeProvider
    ) -> None:
        silo = await store.join("a", NOW)
        again = await reopened(store, make_provider)
        held = await again.is_held(silo.number)
        await again.close()
        assert not held

    async def test_many_that_ask_at_once_take_the_lock_from_nobody(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        askers = [store.members() for _ in range(3)]
        for _ in range(5):
            assert all(await asyncio.gather(*(each.is_held(silo.number) for each in askers)))
        joined = [await each.join("b", NOW) for each in askers]
        assert all([await store.is_held(row.number) for row in (silo, *joined)])
        for each in askers:
            await each.close()

    async def test_a_handle_has_the_verbs_of_membership_and_closes_alone(self, store: Provider) -> None:
        handle = store.members()
        silo = await handle.join("a", NOW)
        assert await handle.set_status(silo.number, SiloStatus.ACTIVE, NOW)
        (taken,) = await handle.take(silo.number, [PARTITION], NOW, [0])
        view = await handle.renew(silo.number, NOW + 1, 3)
        assert await handle.cluster() == await store.cluster()
        assert (await store.cluster()).view == view
        assert await handle.silos() == await store.silos()
        await handle.close()
        await handle.close()
        with pytest.raises(Unavailable, match="not open"):
            await handle.renew(silo.number, NOW + 2)
        await Owner(store, silo.number, {PARTITION: taken.epoch}).committed(grain=writing())

    async def test_a_handle_that_was_never_used_is_closed_too(self, store: Provider) -> None:
        await store.members().close()

    async def test_one_service_sees_nothing_of_the_cluster_of_another(
        self, owner: Owner, make_provider: MakeProvider
    ) -> None:
        other = await reopened(owner.store, make_provider, "other")
        empty = await other.cluster()
        silo = await other.join("a", NOW)
        assert await other.mark_dead(silo.number, 0, NOW)
        await other.release(owner.number, [PARTITION], NOW)
        back = await reopened(other, make_provider)
        rows = await back.cluster()
        await back.close()
        assert empty.silos == () and set(empty.owners) == {0}
        assert [row.number for row in rows.silos] == [owner.number]
        assert rows.owners[PARTITION] == owner.number

    async def test_a_heartbeat_in_a_thread_of_its_own_renews_while_the_provider_commits(
        self, store: Provider
    ) -> None:
        if not self.members_in_threads:
            pytest.skip("this store has no handles for other threads")
        beats, commits = 30, 30
        handle = store.members()
        owner = await an_owner(store)
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        beating = asyncio.create_task(
            asyncio.to_thread(
                asyncio.run, heartbeat(handle, beats, lambda: loop.call_soon_threadsafe(begun.set))
            )
        )
        await begun.wait()
        for version in range(commits):
            await owner.committed(grain=writing(version), reminders=(PutReminder(a_reminder()),))
        silo, told = await beating
        (row,) = await store.load([("shipments", "k")])
        assert row is not None and row.version == commits
        assert [each.renewals for each in await store.silos() if each.number == silo.number] == [beats]
        assert told.epochs[PARTITION] == owner.epochs[PARTITION]
