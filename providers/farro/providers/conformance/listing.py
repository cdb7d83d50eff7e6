"""Listings and counts: filters, pages, groups."""

from __future__ import annotations

import pytest

from farro.providers.conformance.made import NOW, Owner, a_reminder
from farro.providers.conformance.stores import StoreKit
from farro.providers.rows import FAILED, PAUSED, ReminderCount, ReminderFilter

ROWS = [
    a_reminder("k1", "a", operation="a"),
    a_reminder("k1", "b", operation="b", priority=0, next_due_at=NOW + 1),
    a_reminder("k2", "a", operation="a", status=PAUSED, action=1),
    a_reminder("k2", "c", operation="c", status=FAILED, next_due_at=None, wake_at=None),
    a_reminder("k1", "a", operation="a", grain_type="trucks", priority=2, next_due_at=NOW - 1),
]
FILTERS: list[tuple[ReminderFilter, list[int]]] = [
    (ReminderFilter(), [0, 1, 2, 3, 4]),
    (ReminderFilter(grain_type="shipments"), [0, 1, 2, 3]),
    (ReminderFilter(grain_key="k1"), [0, 1, 4]),
    (ReminderFilter(grain_type="shipments", grain_key="k1"), [0, 1]),
    (ReminderFilter(operation="a"), [0, 2, 4]),
    (ReminderFilter(priority=0), [1]),
    (ReminderFilter(action=1), [2]),
    (ReminderFilter(status=FAILED), [3]),
    (ReminderFilter(due_until=NOW), [0, 2, 4]),
    (ReminderFilter(operation="a", status=PAUSED, due_until=NOW), [2]),
    (ReminderFilter(grain_type="nobody"), []),
]


class ListingKit(StoreKit):
    @pytest.mark.parametrize(("where", "expected"), FILTERS)
    async def test_a_listing_answers_what_its_filter_names_in_key_order(
        self, owner: Owner, where: ReminderFilter, expected: list[int]
    ) -> None:
        await owner.put(*reversed(ROWS))
        assert await owner.store.list_reminders(where, 10) == [ROWS[index] for index in expected]

    @pytest.mark.parametrize(("where", "expected"), FILTERS)
    async def test_pages_of_a_listing_miss_nothing_and_repeat_nothing(
        self, owner: Owner, where: ReminderFilter, expected: list[int]
    ) -> None:
        await owner.put(*ROWS)
        seen = []
        after = None
        while page := await owner.store.list_reminders(where, 2, after):
            assert len(page) <= 2
            seen += page
            after = (page[-1].grain_type, page[-1].grain_key, page[-1].name)
        assert seen == [ROWS[index] for index in expected]

    @pytest.mark.parametrize(
        ("after", "expected"),
        [
            (("a", "z", "z"), [0, 1, 2, 3]),
            (("shipments", "k1", "aa"), [1, 2, 3]),
            (("shipments", "k1", "z"), [2, 3]),
            (("z", "a", "a"), []),
        ],
    )
    async def test_a_page_within_a_type_may_start_anywhere(
        self, owner: Owner, after: tuple[str, str, str], expected: list[int]
    ) -> None:
        await owner.put(*ROWS)
        found = await owner.store.list_reminders(ReminderFilter(grain_type="shipments"), 10, after)
        assert found == [ROWS[index] for index in expected]

    async def test_a_page_of_nothing_is_empty(self, owner: Owner) -> None:
        await owner.put(*ROWS)
        assert await owner.store.list_reminders(ReminderFilter(), 0) == []
        assert await owner.store.list_reminders(ReminderFilter(), -1) == []

    async def test_counts_come_by_priority_and_status_without_empty_groups(self, owner: Owner) -> None:
        assert await owner.store.count_reminders(ReminderFilter()) == []
        await owner.put(*ROWS)
        assert await owner.store.count_reminders(ReminderFilter()) == [
            ReminderCount(0, "scheduled", 1),
            ReminderCount(1, FAILED, 1),
            ReminderCount(1, PAUSED, 1),
            ReminderCount(1, "scheduled", 1),
            ReminderCount(2, "scheduled", 1),
        ]
        assert await owner.store.count_reminders(ReminderFilter(grain_key="k1", due_until=NOW)) == [
            ReminderCount(1, "scheduled", 1),
            ReminderCount(2, "scheduled", 1),
        ]
