"""Batches: one verdict each, in order, and one member's trouble is its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder, writing
from farro.providers.conformance.stores import StoreKit
from farro.providers.rows import (
    Commit,
    DeleteReminder,
    EventRow,
    GrainWrite,
    Outcome,
    PutMode,
    PutReminder,
    Settle,
)

ODD_TEXTS = [
    "x'; DROP TABLE reminders; --",
    "a*b?[c]%_",
    "key:with:colons/and/slashes {}",
    'line\nbreak\ttab "quotes" \\',
    "",
    " ",
    "日本語",
    "👩‍🚀",
    "e\u0301 is not \u00e9",
    "\x01\x7f\u2028\ufeff\uffff",
    "NULL",
    "0012",
    "x" * 512,
]
BAD_TEXTS = ["a\x00b", "\x00", "\ud800", "ok \udfff"]


def _bad(owner: Owner, kind: str) -> Commit:
    """A member that no store can hold, with good writes around the bad one."""
    row = a_reminder("bad")
    wrong: Any = {"number": 2**63, "type": "text", "missing": None, "event": 7}.get(kind)
    by_kind: dict[str, dict[str, Any]] = {
        "number": {"reminders": (PutReminder(a_reminder("bad", start_at=wrong)),)},
        "type": {"reminders": (PutReminder(a_reminder("bad", args=wrong)),)},
        "missing": {"reminders": (PutReminder(a_reminder("bad", operation=wrong)),)},
        "change": {"reminders": (PutReminder(row), "no change")},
        "text": {"reminders": (PutReminder(row), DeleteReminder("\ud800"))},
        "event": {"events": (EventRow("s", b"x", NOW), EventRow("s", wrong, NOW))},
        "state": {"grain": GrainWrite(0, True, state=7)},  # type: ignore[arg-type]
    }
    fields = by_kind[kind]
    return owner.member("bad", **({"grain": writing(0)} | fields))


class BatchKit(StoreKit):
    @pytest.mark.parametrize("kind", ["number", "type", "missing", "change", "text", "event", "state"])
    async def test_bad_data_rejects_its_member_alone(self, owner: Owner, kind: str) -> None:
        events = (EventRow("s", b"1", NOW),)
        verdicts = await owner.commit(
            owner.member("a", grain=writing(0), events=events),
            _bad(owner, kind),
            owner.member("b", grain=writing(0), reminders=(PutReminder(a_reminder("b")),), events=events),
            now=NOW + 5,
        )
        assert [verdict.outcome for verdict in verdicts] == [
            Outcome.COMMITTED,
            Outcome.REJECTED,
            Outcome.COMMITTED,
        ]
        assert verdicts[1].reason
        rows = await owner.store.load([("shipments", key) for key in ("a", "bad", "b")])
        assert [row and row.version for row in rows] == [1, None, 1]
        assert await owner.store.reminders_of("shipments", "bad") == []
        assert await owner.store.reminders_of("shipments", "b") == [a_reminder("b")]
        assert len(await owner.store.events(PARTITION, "s", 0, 10)) == 2
        assert [row.renewed_at for row in await owner.store.silos()] == [NOW + 5]

    async def test_each_member_gets_its_own_verdict_in_order(self, owner: Owner) -> None:
        await owner.committed("old", grain=writing(0))
        verdicts = await owner.commit(
            owner.member("new", grain=writing(0)),
            owner.member("old", grain=writing(0)),
            owner.member("stale", epoch=owner.epochs[PARTITION] + 1),
            _bad(owner, "number"),
            owner.member("old", grain=writing(1)),
            owner.member("rows", settle=Settle("none", 1, 1, None)),
        )
        assert [(int(verdict.outcome), verdict.version) for verdict in verdicts] == [
            (Outcome.COMMITTED, 1),
            (Outcome.CONFLICT, 0),
            (Outcome.FENCED, 0),
            (Outcome.REJECTED, 0),
            (Outcome.COMMITTED, 2),
            (Outcome.COMMITTED, 0),
        ]

    async def test_members_of_one_grain_see_each_other_in_order(self, owner: Owner) -> None:
        first, second = a_reminder(), a_reminder(occurrence=2)
        verdicts = await owner.commit(
            owner.member(grain=writing(0, b"1"), reminders=(PutReminder(first),)),
            owner.member(grain=writing(0, b"lost")),
            owner.member(settle=Settle("chase", 1, 1, None), grain=writing(1, b"2")),
            owner.member(reminders=(PutReminder(second, PutMode.IF_MISSING),)),
            owner.member(settle=Settle("chase", 1, 1, None)),
            owner.member(grain=GrainWrite(2)),
        )
        assert [(v.outcome, v.version, v.settled) for v in verdicts] == [
            (Outcome.COMMITTED, 1, False),
            (Outcome.CONFLICT, 0, False),
            (Outcome.COMMITTED, 2, True),
            (Outcome.COMMITTED, 0, False),
            (Outcome.COMMITTED, 0, False),
            (Outcome.COMMITTED, 3, False),
        ]
        (row,) = await owner.store.load([("shipments", "k")])
        assert row is not None and (row.version, row.state) == (3, b"2")
        assert await owner.store.reminders_of("shipments", "k") == [second]

    async def test_a_thousand_members_commit_at_once(self, owner: Owner) -> None:
        keys = [f"k{number}" for number in range(1_000)]
        for version in (0, 1):
            verdicts = await owner.commit(
                *(
                    owner.member(
                        key,
                        grain=writing(version, key.encode()),
                        settle=Settle("chase", 1, 1, None) if version else None,
                        reminders=(PutReminder(a_reminder(key, registration=version + 1)),),
                        events=(EventRow("s", key.encode(), NOW),),
                    )
                    for key in keys
                )
            )
            assert {(v.outcome, v.version, v.settled) for v in verdicts} == {
                (Outcome.COMMITTED, version + 1, version == 1)
            }
        rows = await owner.store.load([("shipments", key) for key in keys])
        assert [row and row.state for row in rows] == [key.encode() for key in keys]
        assert len(await owner.store.events(PARTITION, "s", 0, 5_000)) == 2_000

    async def test_loads_see_every_commit_begun_before_them(self, owner: Owner) -> None:
        commits = [asyncio.ensure_future(owner.commit(owner.member(grain=writing(n)))) for n in range(5)]
        await asyncio.sleep(0)  # all are begun, in order; none need be acknowledged
        (row,) = await owner.store.load([("shipments", "k")])
        assert row is not None and row.version == 5
        await asyncio.gather(*commits)

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
    async def test_odd_names_are_plain_data(self, owner: Owner, text: str) -> None:
        row = a_reminder(text, text, grain_type=text, operation=text, key=text, note=text, cron=text)
        await owner.committed(text, grain_type=text, grain=writing(0), reminders=(PutReminder(row),))
        await owner.committed("neighbour", grain=writing(0))
        await owner.committed(events=(EventRow(text, b"x", NOW),))
        (grain,) = await owner.store.load([(text, text)])
        assert grain is not None and (grain.grain_type, grain.grain_key) == (text, text)
        assert await owner.store.reminder(text, text, text) == row
        assert await owner.store.events(PARTITION, text, 0, 5) != []
        await owner.committed(text, grain_type=text, reminders=(DeleteReminder(text),))
        assert await owner.store.reminders_of(text, text) == []

    @pytest.mark.parametrize("text", BAD_TEXTS, ids=range(len(BAD_TEXTS)))
    async def test_text_that_no_store_can_hold_is_refused_and_found_nowhere(
        self, owner: Owner, text: str
    ) -> None:
        verdicts = await owner.commit(
            owner.member(text, grain=writing(0)),
            owner.member(grain_type=text, grain=writing(0)),
            owner.member(reminders=(PutReminder(a_reminder(name=text)),)),
            owner.member(events=(EventRow(text, b"", NOW),)),
        )
        assert {verdict.outcome for verdict in verdicts} == {Outcome.REJECTED}
        assert all("NUL" in verdict.reason for verdict in verdicts)
        assert await owner.store.load([(text, "k"), ("shipments", text)]) == [None, None]
        assert await owner.store.reminder("shipments", "k", text) is None
        assert await owner.store.reminders_of("shipments", text) == []
        assert await owner.store.events(PARTITION, text, 0, 5) == []
