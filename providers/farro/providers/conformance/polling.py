"""The poll: index ranges in their order, with cursor, bounds and partitions."""

from __future__ import annotations

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder
from farro.providers.conformance.stores import StoreKit
from farro.providers.rows import (
    FAILED,
    PAUSED,
    EditReminder,
    PollCursor,
    PollQuery,
    Progress,
    ReminderRow,
    Settle,
)


def cursor(row: ReminderRow) -> PollCursor:
    assert row.wake_at is not None
    return PollCursor(row.wake_at, row.registration, row.grain_type, row.grain_key, row.name)


async def names(owner: Owner, query: PollQuery) -> list[str]:
    (rows,) = await owner.store.poll([query])
    return [row.name for row in rows]


class PollKit(StoreKit):
    async def test_a_poll_answers_whole_rows_up_to_and_including_its_instant(self, owner: Owner) -> None:
        due = a_reminder(name="due", wake_at=NOW)
        await owner.put(due, a_reminder(name="later", wake_at=NOW + 1))
        assert await owner.store.poll([PollQuery(1, NOW, 10)]) == [[due]]

    async def test_rows_come_by_wake_then_registration_then_name(self, owner: Owner) -> None:
        rows = [
            a_reminder("k", "e", wake_at=NOW - 1, registration=9),
            a_reminder("k", "d", wake_at=NOW, registration=1),
            a_reminder("k", "b", wake_at=NOW, registration=2),
            a_reminder("k", "c", wake_at=NOW, registration=2),
            a_reminder("l", "a", wake_at=NOW, registration=2),
            a_reminder("k", "a", wake_at=NOW, registration=2, grain_type="trucks"),
        ]
        await owner.put(*reversed(rows))
        assert await owner.store.poll([PollQuery(1, NOW, 10)]) == [rows]

    async def test_each_query_has_its_own_priority_and_answer(self, owner: Owner) -> None:
        for priority in (0, 1, 2):
            await owner.put(a_reminder(name=f"p{priority}", priority=priority))
        answers = await owner.store.poll([PollQuery(p, NOW, 10) for p in (2, 0, 5, 1)])
        assert [[row.name for row in rows] for rows in answers] == [["p2"], ["p0"], [], ["p1"]]
        assert await owner.store.poll([]) == []

    async def test_only_scheduled_rows_with_a_wake_are_polled(self, owner: Owner) -> None:
        await owner.put(
            a_reminder(name="scheduled"),
            a_reminder(name="paused", status=PAUSED),
            a_reminder(name="failed", status=FAILED),
            a_reminder(name="asleep", wake_at=None),
        )
        assert await names(owner, PollQuery(1, NOW, 10)) == ["scheduled"]

    async def test_a_limit_bounds_a_page_and_the_cursor_starts_after_it(self, owner: Owner) -> None:
        rows = [
            a_reminder(f"k{n}", f"r{n}", wake_at=NOW + n // 3, registration=n // 2 % 3) for n in range(20)
        ]
        await owner.put(*rows)
        seen: list[ReminderRow] = []
        after: PollCursor | None = None
        while True:
            (page,) = await owner.store.poll([PollQuery(1, NOW + 100, 3, after=after)])
            if not page:
                break
            assert len(page) <= 3
            seen += page
            after = cursor(page[-1])
        assert seen == sorted(
            rows, key=lambda r: (r.wake_at, r.registration, r.grain_type, r.grain_key, r.name)
        )

    async def test_a_limit_of_nothing_answers_nothing(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        assert await names(owner, PollQuery(1, NOW, 0)) == []
        assert await names(owner, PollQuery(1, NOW, -1)) == []

    async def test_a_cursor_need_not_be_a_row_that_exists(self, owner: Owner) -> None:
        await owner.put(a_reminder(name="a"), a_reminder(name="c"))
        gone = PollCursor(NOW, 1, "shipments", "k", "b")
        assert await names(owner, PollQuery(1, NOW, 10, after=gone)) == ["c"]

    async def test_partitions_filter_and_the_limit_counts_what_passes(self, owner: Owner) -> None:
        for index in range(6):
            await owner.put(a_reminder(name=f"r{index}", partition=PARTITION + index % 2, registration=index))
        mine = frozenset({PARTITION + 1, 60})
        assert await names(owner, PollQuery(1, NOW, 2, partitions=mine)) == ["r1", "r3"]
        assert await names(owner, PollQuery(1, NOW, 10, partitions=frozenset())) == []

    async def test_a_row_moves_in_the_poll_with_its_settle_and_its_edits(self, owner: Owner) -> None:
        await owner.put(a_reminder())
        await owner.committed(settle=Settle("chase", 1, 1, Progress(NOW + 9, NOW + 9, NOW, 2)))
        assert await names(owner, PollQuery(1, NOW + 8, 10)) == []
        assert await names(owner, PollQuery(1, NOW + 9, 10)) == ["chase"]
        await owner.committed(reminders=(EditReminder("chase", priority=0),))
        assert await names(owner, PollQuery(1, NOW + 9, 10)) == []
        assert await names(owner, PollQuery(0, NOW + 9, 10)) == ["chase"]
        paused = Progress(NOW + 9, None, NOW, 2, status=PAUSED)
        await owner.committed(settle=Settle("chase", 1, 2, paused, by_operator=True))
        assert await names(owner, PollQuery(0, NOW + 9, 10)) == []

    async def test_rows_nobody_understands_do_not_stop_the_others(self, owner: Owner) -> None:
        odd = a_reminder(name="odd", args=b"", cron="not cron", timezone="Nowhere/Land", action=99)
        await owner.put(odd, a_reminder(name="ok"), a_reminder(name="far", priority=99))
        assert await names(owner, PollQuery(1, NOW, 10)) == ["odd", "ok"]
        assert await names(owner, PollQuery(99, NOW, 10)) == ["far"]

    async def test_scheduled_rows_that_no_poll_sees_are_found_for_repair(self, owner: Owner) -> None:
        lost = [
            a_reminder(name="a", wake_at=None),
            a_reminder(name="b", next_due_at=None),
            a_reminder(name="c", priority=99),
            a_reminder(name="d", priority=-1, wake_at=None),
        ]
        sound = [a_reminder(name=f"p{priority}", priority=priority) for priority in (0, 1, 2)]
        asleep = a_reminder(name="z", status=PAUSED, wake_at=None, priority=99)
        await owner.put(*lost, *sound, asleep)
        assert await owner.store.unpollable(10) == lost
        assert await owner.store.unpollable(2) == lost[:2]
        assert await owner.store.unpollable(0) == []
