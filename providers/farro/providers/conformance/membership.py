"""Silos, signs of life, partitions, services, opening and closing."""

from __future__ import annotations

import pytest

from farro.providers.conformance.made import NOW, PARTITION, SECOND, Owner, a_reminder, an_owner, writing
from farro.providers.conformance.stores import MakeProvider, StoreKit, reopened
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError, Unavailable
from farro.providers.members import SiloRow
from farro.providers.rows import Outcome, PollQuery, PutReminder, ReminderFilter


class MembershipKit(StoreKit):
    async def test_open_tells_schema_and_partitions_and_hides_nothing_else(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider("billing")
        info = await provider.open(NOW)
        await provider.close()
        assert provider.service_id == "billing"
        assert info.schema_version >= 1
        assert info.partitions > 0 and info.partitions & (info.partitions - 1) == 0

    async def test_close_is_repeatable(self, store: Provider) -> None:
        await store.close()
        await store.close()

    async def test_a_closed_store_says_so(self, store: Provider) -> None:
        await store.close()
        with pytest.raises(Unavailable, match="not open"):
            await store.load([("shipments", "k")])
        with pytest.raises(Unavailable, match="not open"):
            await store.renew(1, NOW)

    async def test_silos_join_under_new_numbers_and_are_listed_by_number(self, store: Provider) -> None:
        first = await store.join("10.0.0.1:1", NOW)
        second = await store.join("10.0.0.1:1", NOW + 1)
        assert first.number < second.number
        assert first == SiloRow(first.number, "10.0.0.1:1", NOW, NOW, None)
        assert await store.silos() == [first, second]

    async def test_a_number_is_never_used_again(self, store: Provider, make_provider: MakeProvider) -> None:
        first = await store.join("a", NOW)
        await store.leave(first.number, NOW)
        again = await reopened(store, make_provider)
        second = await again.join("a", NOW)
        await again.close()
        assert second.number > first.number

    async def test_a_renewal_stores_the_sign_of_life(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        assert await store.renew(silo.number, NOW + 5 * SECOND)
        assert [row.renewed_at for row in await store.silos()] == [NOW + 5 * SECOND]

    async def test_unknown_and_departed_silos_cannot_renew(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        await store.leave(silo.number, NOW + 1)
        assert not await store.renew(silo.number, NOW + 2)
        assert not await store.renew(silo.number + 1, NOW + 2)
        assert [(row.renewed_at, row.left_at) for row in await store.silos()] == [(NOW + 1, NOW + 1)]

    async def test_leaving_is_repeatable_and_its_first_time_counts(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        await store.leave(silo.number, NOW + 1)
        await store.leave(silo.number, NOW + 9)
        await store.leave(silo.number + 1, NOW + 9)
        assert [row.left_at for row in await store.silos()] == [NOW + 1]

    async def test_a_batch_stores_the_sign_of_life_of_its_owner(self, owner: Owner) -> None:
        await owner.commit(owner.member(epoch=99), now=NOW + 7)
        assert [row.renewed_at for row in await owner.store.silos()] == [NOW + 7]

    async def test_an_empty_batch_does_nothing(self, owner: Owner) -> None:
        assert await owner.commit(now=NOW + 7) == []
        assert [row.renewed_at for row in await owner.store.silos()] == [NOW]

    async def test_each_take_raises_each_epoch_by_one_and_answers_ascending(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        first = await store.take(silo.number, [7, 2, 5, 2], NOW)
        second = await store.take(silo.number, [5, 9], NOW)
        assert [row.partition for row in first] == [2, 5, 7]
        epochs = {row.partition: row.epoch for row in first}
        assert [row.partition for row in second] == [5, 9]
        assert second[0].epoch == epochs[5] + 1
        assert await store.take(silo.number, [], NOW) == []

    async def test_a_take_tells_the_last_sign_of_life_of_the_owner_before(self, store: Provider) -> None:
        first = await store.join("a", NOW)
        (new,) = await store.take(first.number, [2], NOW)
        await store.renew(first.number, NOW + 3)
        second = await store.join("b", NOW + 60)
        (over,) = await store.take(second.number, [2], NOW + 60)
        assert (new.previous_alive_at, over.previous_alive_at) == (None, NOW + 3)

    async def test_the_sign_of_life_of_an_owner_that_left_is_still_told(self, store: Provider) -> None:
        first = await store.join("a", NOW)
        await store.take(first.number, [2], NOW)
        await store.leave(first.number, NOW + 4)
        second = await store.join("b", NOW + 60)
        (row,) = await store.take(second.number, [2], NOW + 60)
        assert row.previous_alive_at == NOW + 4

    async def test_taking_is_a_sign_of_life(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        await store.take(silo.number, [2], NOW + 8)
        assert [row.renewed_at for row in await store.silos()] == [NOW + 8]

    async def test_only_a_member_takes_partitions_that_exist(self, store: Provider) -> None:
        silo = await store.join("a", NOW)
        await store.leave(silo.number, NOW)
        for number in (silo.number, silo.number + 1):
            with pytest.raises(StoreError, match="not a member"):
                await store.take(number, [1], NOW)
        member = await store.join("b", NOW)
        for partitions in ([-1], [0, 1_000_000]):
            with pytest.raises(StoreError, match="partitions go from 0"):
                await store.take(member.number, partitions, NOW)
        assert [row.epoch for row in await store.take(member.number, [0, 1], NOW)] == [1, 1]

    async def test_services_in_one_store_never_meet(self, owner: Owner, make_provider: MakeProvider) -> None:
        await owner.committed(grain=writing(), reminders=(PutReminder(a_reminder()),))
        other = await reopened(owner.store, make_provider, "other")
        assert await other.silos() == []
        assert await other.load([("shipments", "k")]) == [None]
        assert await other.reminders_of("shipments", "k") == []
        assert await other.poll([PollQuery(1, NOW, 10)]) == [[]]
        assert await other.list_reminders(ReminderFilter(), 10) == []
        assert await other.count_reminders(ReminderFilter()) == []
        stranger = await an_owner(other, PARTITION)
        assert stranger.epochs == {PARTITION: 1}
        (verdict,) = await stranger.commit(stranger.member(grain=writing(1)))
        assert verdict.outcome is Outcome.CONFLICT
        await stranger.committed(grain=writing(0, b"theirs"))
        back = await reopened(other, make_provider)
        (row,) = await back.load([("shipments", "k")])
        await back.close()
        assert row is not None and row.state == b"state"
