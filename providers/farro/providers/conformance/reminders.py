"""Reminder rows: settle, the modes of a put, deletes, edits, and the order of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farro.providers.conformance.made import NOW, PARTITION, SECOND, Owner, a_reminder, writing
from farro.providers.conformance.stores import MakeProvider, StoreKit, reopened
from farro.providers.rows import (
    FAILED,
    PAUSED,
    DeleteOperation,
    DeleteReminder,
    EditReminder,
    GrainWrite,
    Outcome,
    Progress,
    PutMode,
    PutReminder,
    ReminderChange,
    ReminderRow,
    Settle,
    put_over,
)

PROGRESS = Progress(
    next_due_at=NOW + 60 * SECOND,
    wake_at=NOW + 61 * SECOND,
    last_fire_at=NOW + 1,
    occurrence=2,
    times_left=4,
    attempts=1,
    missed_count=3,
    first_missed_at=NOW - 5,
    catch_up_left=98,
    status=PAUSED,
    note="seen",
)
FULL = a_reminder(
    name="chase:c-7",
    key="c-7",
    args=bytes(range(256)),
    period_us=None,
    cron="0 0 9 * * MON",
    timezone="Europe/Berlin",
    day_match="or",
    until_at=NOW + 90 * SECOND,
    times_left=5,
    jitter_us=7,
    wake_at=NOW + 7,
    last_fire_at=NOW - 60 * SECOND,
    priority=2,
    action=3,
    registration=12,
    occurrence=34,
    attempts=2,
    missed_count=9,
    first_missed_at=NOW - 1,
    catch_up_left=77,
    note="a note",
)
EDGE_INSTANTS = {
    "0001": -62_135_596_800_000_000,
    "before_1970": -1,
    "1970": 0,
    "2038": 2_147_483_648_000_000,
    "9999": 253_402_300_799_999_999,
}


def after(row: ReminderRow, progress: Progress) -> ReminderRow:
    return replace(row, **{name: getattr(progress, name) for name in Progress.__dataclass_fields__})


class ReminderKit(StoreKit):
    async def test_every_field_of_a_reminder_comes_back(
        self, owner: Owner, make_provider: MakeProvider
    ) -> None:
        await owner.put(FULL)
        again = await reopened(owner.store, make_provider)
        found = await again.reminder("shipments", "k", "chase:c-7")
        await again.close()
        assert found == FULL

    @pytest.mark.parametrize("instant", EDGE_INSTANTS.values(), ids=EDGE_INSTANTS.keys())
    async def test_instants_from_year_1_to_9999_come_back_to_the_microsecond(
        self, owner: Owner, instant: int
    ) -> None:
        row = a_reminder(
            start_at=instant, until_at=instant, next_due_at=instant, wake_at=instant, last_fire_at=instant
        )
        await owner.put(row)
        assert await owner.store.reminder("shipments", "k", "chase") == row

    async def test_a_reminder_that_is_not_there_is_none(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        assert await owner.store.reminder("shipments", "k", "other") is None
        assert await owner.store.reminder("shipments", "x", "chase") is None

    async def test_the_reminders_of_a_grain_come_by_name(self, owner: Owner) -> None:
        names = ["b", "a:2", "ä", "a", "Z"]
        await owner.put(*(a_reminder(name=name) for name in names), a_reminder("k2", "c"))
        found = await owner.store.reminders_of("shipments", "k")
        assert [row.name for row in found] == sorted(names)

    async def test_row_only_commits_leave_the_version_of_the_grain(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0))
        verdict = await owner.committed(reminders=(PutReminder(a_reminder()),))
        (row,) = await owner.store.load([("shipments", "k")])
        assert row is not None and (verdict.version, row.version) == (0, 1)

    async def test_a_settle_moves_the_row_to_its_progress(self, owner: Owner) -> None:
        await owner.put(FULL)
        verdict = await owner.committed(grain=writing(0), settle=Settle(FULL.name, 12, 34, PROGRESS))
        assert verdict.settled
        assert await owner.store.reminders_of("shipments", "k") == [after(FULL, PROGRESS)]

    async def test_a_settle_without_progress_deletes_the_row(self, owner: Owner) -> None:
        await owner.put(a_reminder(), a_reminder(name="other"))
        verdict = await owner.committed(settle=Settle("chase", 1, 1, None))
        assert verdict.settled
        assert await owner.store.reminders_of("shipments", "k") == [a_reminder(name="other")]

    @pytest.mark.parametrize("progress", [None, PROGRESS], ids=["last", "moving"])
    @pytest.mark.parametrize(
        ("name", "registration", "occurrence"), [("chase", 2, 1), ("chase", 1, 2), ("gone", 1, 1)]
    )
    async def test_a_settle_that_matches_nothing_leaves_the_row_and_commits_the_rest(
        self, owner: Owner, name: str, registration: int, occurrence: int, progress: Progress | None
    ) -> None:
        await owner.put(a_reminder())
        verdict = await owner.committed(
            grain=writing(0, b"kept"), settle=Settle(name, registration, occurrence, progress)
        )
        (row,) = await owner.store.load([("shipments", "k")])
        assert not verdict.settled
        assert row is not None and row.state == b"kept"
        assert await owner.store.reminders_of("shipments", "k") == [a_reminder()]

    async def test_an_occurrence_is_consumed_once(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        settle = Settle("chase", 1, 1, replace(PROGRESS, occurrence=2))
        assert (await owner.committed(settle=settle)).settled
        assert not (await owner.committed(settle=settle)).settled

    async def test_a_one_shot_may_re_arm_itself_in_the_turn_of_its_tick(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        new = a_reminder(registration=2, next_due_at=NOW + 5, wake_at=NOW + 5)
        verdict = await owner.committed(
            grain=writing(0), settle=Settle("chase", 1, 1, None), reminders=(PutReminder(new),)
        )
        assert verdict.settled
        assert await owner.store.reminders_of("shipments", "k") == [new]

    async def test_a_put_over_a_settled_row_wins_in_each_mode(self, owner: Owner) -> None:
        for mode in PutMode:
            name = mode.value
            old = a_reminder(name=name, cron="0 * * * * *")
            new = replace(old, args=b"new", registration=2)
            await owner.put(old)
            verdict = await owner.committed(
                settle=Settle(name, 1, 1, None), reminders=(PutReminder(new, mode),)
            )
            assert (verdict.settled, verdict.kept) == (True, ())
            assert await owner.store.reminder("shipments", "k", name) == new

    async def test_changes_apply_in_the_order_asked(self, owner: Owner) -> None:
        first, second = a_reminder(registration=2), a_reminder(registration=3)
        await owner.put(a_reminder())
        await owner.committed(
            reminders=(
                PutReminder(first),
                DeleteReminder("chase"),
                PutReminder(second),
                PutReminder(a_reminder(name="b")),
                DeleteReminder("b"),
            )
        )
        assert await owner.store.reminders_of("shipments", "k") == [second]

    @pytest.mark.parametrize("mode", list(PutMode), ids=[mode.value for mode in PutMode])
    async def test_a_put_of_a_missing_row_inserts_it(self, owner: Owner, mode: PutMode) -> None:
        verdict = await owner.committed(reminders=(PutReminder(FULL, mode),))
        assert verdict.kept == ()
        assert await owner.store.reminders_of("shipments", "k") == [FULL]

    @pytest.mark.parametrize("mode", list(PutMode), ids=[mode.value for mode in PutMode])
    @pytest.mark.parametrize(
        "other",
        [{}, {"cron": None}, {"cron": "0 0 8 * * *"}, {"timezone": "UTC"}, {"day_match": "and"}],
        ids=["same", "interval", "cron", "zone", "day_match"],
    )
    @pytest.mark.parametrize("status", ["scheduled", PAUSED, FAILED])
    async def test_a_put_over_a_row_leaves_what_its_mode_says(
        self, owner: Owner, mode: PutMode, other: dict[str, Any], status: str
    ) -> None:
        existing = replace(FULL, status=status)
        new = a_reminder(
            name=FULL.name,
            **({"cron": FULL.cron, "timezone": FULL.timezone, "day_match": FULL.day_match} | other),
            args=b"new",
            priority=0,
            registration=99,
            next_due_at=NOW + 1,
            wake_at=NOW + 2,
            times_left=8,
        )
        await owner.put(existing)
        verdict = await owner.committed(reminders=(PutReminder(new, mode),))
        standing = put_over(existing, new, mode)
        assert await owner.store.reminders_of("shipments", "k") == [standing]
        assert verdict.kept == (() if standing == new else (FULL.name,))

    async def test_an_interval_has_no_cron_text_and_keeps_no_progress(self, owner: Owner) -> None:
        await owner.put(a_reminder(occurrence=7))
        verdict = await owner.committed(
            reminders=(PutReminder(a_reminder(registration=2), PutMode.KEEP_PROGRESS),)
        )
        assert verdict.kept == ()
        assert await owner.store.reminders_of("shipments", "k") == [a_reminder(registration=2)]

    async def test_several_puts_name_each_row_they_left(self, owner: Owner) -> None:
        await owner.put(a_reminder(name="a"), a_reminder(name="b"))
        rows = [a_reminder(name=name, registration=5) for name in "abc"]
        modes = [PutMode.IF_MISSING, PutMode.REPLACE, PutMode.IF_MISSING]
        verdict = await owner.committed(
            reminders=tuple(PutReminder(row, mode) for row, mode in zip(rows, modes, strict=True))
        )
        assert verdict.kept == ("a",)
        assert await owner.store.reminders_of("shipments", "k") == [a_reminder(name="a"), *rows[1:]]

    async def test_deleting_what_is_absent_is_no_error(self, owner: Owner) -> None:
        await owner.committed(reminders=(DeleteReminder("gone"), DeleteOperation("gone")))
        assert await owner.store.reminders_of("shipments", "k") == []

    async def test_deleting_an_operation_takes_all_its_keys_and_no_other(self, owner: Owner) -> None:
        other = a_reminder(name="chased", operation="chased")
        elsewhere = a_reminder("k2", "chase")
        await owner.put(*(a_reminder(name=n) for n in ("chase", "chase:1", "chase:2")), other, elsewhere)
        await owner.committed(reminders=(DeleteOperation("chase"),))
        assert await owner.store.reminders_of("shipments", "k") == [other]
        assert await owner.store.reminders_of("shipments", "k2") == [elsewhere]

    async def test_an_edit_changes_only_what_it_names(self, owner: Owner) -> None:
        await owner.put(FULL)
        await owner.committed(reminders=(EditReminder(FULL.name, priority=0),))
        assert await owner.store.reminders_of("shipments", "k") == [replace(FULL, priority=0)]
        await owner.committed(reminders=(EditReminder(FULL.name, action=1),))
        edited = replace(FULL, priority=0, action=1)
        assert await owner.store.reminders_of("shipments", "k") == [edited]
        await owner.committed(reminders=(EditReminder(FULL.name), EditReminder("gone", priority=1)))
        assert await owner.store.reminders_of("shipments", "k") == [edited]

    async def test_a_put_for_another_grain_or_partition_is_rejected(self, owner: Owner) -> None:
        rows = (
            a_reminder("another"),
            a_reminder(grain_type="other"),
            a_reminder(partition=PARTITION + 1),
        )
        for row in rows:
            (verdict,) = await owner.commit(owner.member(grain=GrainWrite(0), reminders=(PutReminder(row),)))
            assert verdict.outcome is Outcome.REJECTED and "belongs to" in verdict.reason
        assert await owner.store.load([("shipments", "k")]) == [None]

    async def test_a_paused_row_moves_with_its_settle_and_stays_paused(self, owner: Owner) -> None:
        row = a_reminder(status=PAUSED, wake_at=None, note="on holiday")
        await owner.put(row)
        moving = replace(PROGRESS, status="scheduled", note=None)
        verdict = await owner.committed(settle=Settle("chase", 1, 1, moving))
        expected = replace(after(row, moving), status=PAUSED, wake_at=None, note="on holiday")
        assert verdict.settled
        assert await owner.store.reminders_of("shipments", "k") == [expected]

    async def test_an_operators_settle_wakes_a_paused_row(self, owner: Owner) -> None:
        await owner.put(a_reminder(status=PAUSED, wake_at=None))
        awake = replace(PROGRESS, status="scheduled", note=None)
        verdict = await owner.committed(settle=Settle("chase", 1, 1, awake, by_operator=True))
        assert verdict.settled
        assert await owner.store.reminders_of("shipments", "k") == [after(a_reminder(), awake)]

    @pytest.mark.parametrize(
        ("changes", "allowed"),
        [
            ((PutReminder(a_reminder(name="c")),), False),
            ((PutReminder(a_reminder(name="a", registration=2)),), True),
            ((PutReminder(a_reminder(name="a"), PutMode.IF_MISSING),), True),
            ((DeleteReminder("a"), PutReminder(a_reminder(name="c"))), True),
            ((PutReminder(a_reminder(name="c")), DeleteReminder("c")), True),
            ((PutReminder(a_reminder(name="c")), DeleteReminder("gone")), False),
            ((DeleteOperation("chase"), PutReminder(a_reminder(name="c"))), True),
            ((PutReminder(a_reminder(name="c", operation="x")), DeleteOperation("x")), True),
        ],
    )
    async def test_puts_beyond_the_bound_of_the_grain_are_rejected(
        self, owner: Owner, changes: tuple[ReminderChange, ...], allowed: bool
    ) -> None:
        await owner.put(a_reminder(name="a"), a_reminder(name="b"), a_reminder("neighbour"))
        before = await owner.store.reminders_of("shipments", "k")
        (verdict,) = await owner.commit(owner.member(grain=writing(0), reminders=changes, reminders_max=2))
        found = await owner.store.reminders_of("shipments", "k")
        assert verdict.outcome is (Outcome.COMMITTED if allowed else Outcome.REJECTED)
        assert len(found) <= 2
        if not allowed:
            assert "at most 2" in verdict.reason
            assert found == before
            assert await owner.store.load([("shipments", "k")]) == [None]

    async def test_a_grain_beyond_a_lowered_bound_may_keep_and_move_what_it_has(self, owner: Owner) -> None:
        await owner.put(*(a_reminder(name=name) for name in "abc"))
        moved = PutReminder(a_reminder(name="b", registration=2))
        await owner.committed(reminders=(moved,), reminders_max=1)
        added = PutReminder(a_reminder(name="d"))
        (verdict,) = await owner.commit(owner.member(reminders=(added,), reminders_max=1))
        assert verdict.outcome is Outcome.REJECTED

    async def test_the_tick_that_ends_makes_room_for_a_new_reminder(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        new = PutReminder(a_reminder(name="next"))
        await owner.committed(settle=Settle("chase", 1, 1, None), reminders=(new,), reminders_max=1)
        assert await owner.store.reminders_of("shipments", "k") == [new.row]

    @pytest.mark.parametrize("bound", [1, 2])
    async def test_a_tick_that_was_ended_before_makes_no_room(self, owner: Owner, bound: int) -> None:
        await owner.put(a_reminder())
        gone, new = Settle("gone", 1, 1, None), PutReminder(a_reminder(name="next"))
        (verdict,) = await owner.commit(owner.member(settle=gone, reminders=(new,), reminders_max=bound))
        assert verdict.outcome is (Outcome.COMMITTED if bound == 2 else Outcome.REJECTED)
        assert not verdict.settled
        assert len(await owner.store.reminders_of("shipments", "k")) == bound
