"""Grain rows: versions, states, destroy, the fence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder, an_owner, writing
from farro.providers.conformance.stores import MakeProvider, StoreKit, reopened
from farro.providers.contracts import Provider
from farro.providers.rows import GrainRow, GrainWrite, Outcome, PutReminder, Settle, Watermark


class GrainKit(StoreKit):
    async def test_a_grain_that_was_never_committed_loads_as_none(self, store: Provider) -> None:
        assert await store.load([("shipments", "k")]) == [None]

    async def test_rows_load_in_the_order_asked_with_none_in_the_gaps(self, owner: Owner) -> None:
        await owner.committed("a", grain=writing(state=b"A"))
        await owner.committed("b", grain=writing(state=b"B"))
        rows = await owner.store.load([("shipments", k) for k in ("b", "x", "a", "b")])
        assert [row and row.state for row in rows] == [b"B", None, b"A", b"B"]

    async def test_the_first_commit_makes_version_one_of_incarnation_one(self, owner: Owner) -> None:
        verdict = await owner.committed(grain=writing(state=b"new", layout=4))
        assert verdict.version == 1
        assert await owner.store.load([("shipments", "k")]) == [
            GrainRow("shipments", "k", PARTITION, version=1, incarnation=1, layout=4, state=b"new")
        ]

    async def test_every_commit_moves_the_version_also_without_a_new_state(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0, b"one", layout=2))
        verdict = await owner.committed(grain=GrainWrite(1, layout=9))
        (row,) = await owner.store.load([("shipments", "k")])
        assert (verdict.version, row) == (2, GrainRow("shipments", "k", PARTITION, 2, 1, 2, b"one"))

    async def test_a_grain_may_be_stored_without_a_state(self, owner: Owner) -> None:
        await owner.committed(grain=GrainWrite(0))
        (row,) = await owner.store.load([("shipments", "k")])
        assert row is not None and (row.version, row.state) == (1, None)

    async def test_no_state_an_empty_state_and_a_state_again_are_told_apart(self, owner: Owner) -> None:
        for version, state in enumerate([b"x", None, b"", b"\xc0", None, b"y"]):
            await owner.committed(grain=writing(version, state))
            (row,) = await owner.store.load([("shipments", "k")])
            assert row is not None and (row.version, row.state) == (version + 1, state)

    async def test_states_of_every_length_load_together(self, owner: Owner) -> None:
        states = [b"", b"\x00", b"short", bytes(2048), bytes(2049), b"\xff" * 100_000]
        for number, state in enumerate(states):
            await owner.committed(f"k{number}", grain=writing(0, state))
        rows = await owner.store.load([("shipments", f"k{number}") for number in range(len(states))])
        assert [row and row.state for row in rows] == states

    @pytest.mark.parametrize("expected", [0, 1, 3, -1])
    async def test_another_version_than_the_stored_one_is_a_conflict_that_changes_nothing(
        self, owner: Owner, expected: int
    ) -> None:
        await owner.committed(grain=writing(0))
        await owner.committed(grain=writing(1, b"second"), reminders=(PutReminder(a_reminder()),))
        before = await owner.store.load([("shipments", "k")])
        (verdict,) = await owner.commit(
            owner.member(
                grain=writing(expected, b"stale"),
                settle=Settle("chase", 1, 1, None),
                reminders=(PutReminder(a_reminder(name="other")),),
            )
        )
        assert verdict.outcome is Outcome.CONFLICT
        assert await owner.store.load([("shipments", "k")]) == before
        assert await owner.store.reminders_of("shipments", "k") == [a_reminder()]

    async def test_a_version_of_a_grain_that_does_not_exist_is_a_conflict(self, owner: Owner) -> None:
        (verdict,) = await owner.commit(owner.member(grain=writing(1)))
        assert verdict.outcome is Outcome.CONFLICT
        assert await owner.store.load([("shipments", "k")]) == [None]

    @pytest.mark.parametrize("stale_by", [1, -1])
    async def test_another_epoch_is_fenced_and_changes_nothing(self, owner: Owner, stale_by: int) -> None:
        epoch = owner.epochs[PARTITION]
        (verdict,) = await owner.commit(
            owner.member(epoch=epoch - stale_by, grain=writing(), reminders=(PutReminder(a_reminder()),))
        )
        assert verdict.outcome is Outcome.FENCED
        assert await owner.store.load([("shipments", "k")]) == [None]
        assert await owner.store.reminders_of("shipments", "k") == []

    async def test_a_partition_that_nobody_took_fences_every_commit(self, owner: Owner) -> None:
        verdicts = await owner.commit(
            owner.member(partition=9, epoch=0), owner.member(partition=9, epoch=1, grain=writing())
        )
        assert [verdict.outcome for verdict in verdicts] == [Outcome.FENCED, Outcome.FENCED]

    async def test_a_take_over_fences_the_commits_of_the_owner_before(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0, b"old"))
        await an_owner(owner.store, PARTITION)
        (verdict,) = await owner.commit(owner.member(grain=writing(1, b"late")))
        assert verdict.outcome is Outcome.FENCED
        (row,) = await owner.store.load([("shipments", "k")])
        assert row is not None and row.state == b"old"

    async def test_destroy_keeps_a_row_without_state_and_takes_every_reminder(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0), reminders=(PutReminder(a_reminder()),))
        await owner.committed("neighbour", reminders=(PutReminder(a_reminder("neighbour")),))
        verdict = await owner.committed(grain=GrainWrite(1, destroy=True))
        (row,) = await owner.store.load([("shipments", "k")])
        assert row is not None
        assert (verdict.version, row.version, row.incarnation, row.state) == (2, 2, 2, None)
        assert await owner.store.reminders_of("shipments", "k") == []
        assert await owner.store.reminders_of("shipments", "neighbour") == [a_reminder("neighbour")]

    async def test_a_destroyed_grain_starts_again_in_the_next_incarnation(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0))
        await owner.committed(grain=GrainWrite(1, destroy=True))
        (straggler,) = await owner.commit(owner.member(grain=writing(1, b"old")))
        await owner.committed(grain=writing(2, b"born again"))
        (row,) = await owner.store.load([("shipments", "k")])
        assert straggler.outcome is Outcome.CONFLICT
        assert row is not None and (row.version, row.incarnation, row.state) == (3, 2, b"born again")

    async def test_a_grain_that_was_never_stored_can_be_destroyed(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        verdict = await owner.committed(grain=writing(0, b"unwanted", destroy=True))
        (row,) = await owner.store.load([("shipments", "k")])
        assert row is not None
        assert (verdict.version, row.version, row.incarnation, row.state) == (1, 1, 2, None)
        assert await owner.store.reminders_of("shipments", "k") == []

    async def test_a_tick_may_destroy_its_grain(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        verdict = await owner.committed(grain=GrainWrite(0, destroy=True), settle=Settle("chase", 1, 1, None))
        assert verdict.settled
        assert await owner.store.reminders_of("shipments", "k") == []

    async def test_destroy_with_changes_of_reminders_is_rejected(self, owner: Owner) -> None:
        (verdict,) = await owner.commit(
            owner.member(grain=GrainWrite(0, destroy=True), reminders=(PutReminder(a_reminder()),))
        )
        assert verdict.outcome is Outcome.REJECTED and "destroy" in verdict.reason

    async def test_what_was_acknowledged_is_there_after_close_and_open(
        self, owner: Owner, make_provider: MakeProvider
    ) -> None:
        await owner.committed(grain=writing(state=bytes(range(256))), reminders=(PutReminder(a_reminder()),))
        again = await reopened(owner.store, make_provider)
        (row,) = await again.load([("shipments", "k")])
        reminders = await again.reminders_of("shipments", "k")
        (taken,) = await again.take((await again.join("b", NOW)).number, [PARTITION], NOW)
        await again.close()
        assert row is not None and row.state == bytes(range(256))
        assert reminders == [a_reminder()]
        assert taken.epoch == owner.epochs[PARTITION] + 1

    async def test_a_message_takes_effect_once(self, owner: Owner) -> None:
        first = await owner.committed(grain=writing(0, b"1"), watermarks=(Watermark("sender", 4),))
        verdicts = await owner.commit(
            owner.member(
                grain=writing(1, b"again"),
                watermarks=(Watermark("other", 1), Watermark("sender", 4)),
                reminders=(PutReminder(a_reminder()),),
            ),
            owner.member(grain=writing(1, b"older"), watermarks=(Watermark("sender", 3),)),
            owner.member(grain=writing(1, b"2"), watermarks=(Watermark("sender", 5),)),
        )
        (row,) = await owner.store.load([("shipments", "k")])
        assert [verdict.outcome for verdict in (first, *verdicts)] == [
            Outcome.COMMITTED,
            Outcome.DUPLICATE,
            Outcome.DUPLICATE,
            Outcome.COMMITTED,
        ]
        assert row is not None and (row.version, row.state) == (2, b"2")
        assert await owner.store.watermarks("shipments", "k") == {"sender": 5}
        assert await owner.store.reminders_of("shipments", "k") == []

    async def test_a_conflict_is_told_before_a_duplicate_and_a_fence_before_both(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0), watermarks=(Watermark("s", 1),))
        stale = owner.member(grain=writing(7), watermarks=(Watermark("s", 1),))
        (conflict,) = await owner.commit(stale)
        (fenced,) = await owner.commit(replace(stale, epoch=99))
        assert (conflict.outcome, fenced.outcome) == (Outcome.CONFLICT, Outcome.FENCED)

    async def test_watermarks_are_per_grain_and_source_and_survive_destroy(
        self, owner: Owner, make_provider: MakeProvider
    ) -> None:
        marks = (Watermark("a", -3), Watermark("b", 7), Watermark("a", 2))
        await owner.committed(watermarks=marks, grain=writing(0))
        await owner.committed("neighbour", watermarks=(Watermark("a", 1),))
        await owner.committed(grain=GrainWrite(1, destroy=True))
        again = await reopened(owner.store, make_provider)
        found = [await again.watermarks("shipments", key) for key in ("k", "neighbour", "nobody")]
        await again.close()
        assert found == [{"a": 2, "b": 7}, {"a": 1}, {}]
