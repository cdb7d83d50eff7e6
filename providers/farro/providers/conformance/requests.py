"""Requests that are answered once: the commit that answers one stores the answer for those who ask again."""

from __future__ import annotations

from dataclasses import replace

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder, an_owner, writing
from farro.providers.conformance.stores import MakeProvider, StoreKit, reopened
from farro.providers.contracts import Provider
from farro.providers.rows import (
    EventRow,
    GrainWrite,
    Outcome,
    PutReminder,
    RequestRow,
    Watermark,
)

REQUEST = RequestRow("r-1", b"\x00first", NOW)


class RequestKit(StoreKit):
    async def test_the_first_answer_is_stored_and_given_again(self, owner: Owner) -> None:
        store = owner.store
        assert await store.answer_to("shipments", "k", "r-1") is None
        await owner.committed(grain=writing(0, b"1"), request=REQUEST)
        assert await store.answer_to("shipments", "k", "r-1") == b"\x00first"
        (again,) = await owner.commit(
            owner.member(
                grain=writing(1, b"2"),
                request=replace(REQUEST, answer=b"second", at=NOW + 9),
                reminders=(PutReminder(a_reminder()),),
                events=(EventRow("s", b"x", NOW),),
                watermarks=(Watermark("a", 1),),
            )
        )
        assert (again.outcome, again.answer) == (Outcome.REPEATED, b"\x00first")
        (row,) = await store.load([("shipments", "k")])
        assert row is not None and (row.version, row.state) == (1, b"1")
        assert await store.reminders_of("shipments", "k") == []
        assert await store.events(PARTITION, "s", 0, 10) == []
        assert await store.watermarks("shipments", "k") == {}
        assert await store.answer_to("shipments", "k", "r-1") == b"\x00first"

    async def test_a_repeated_request_leaves_the_rest_of_its_batch_alone(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0), request=REQUEST)
        await owner.committed("other", grain=writing(0))
        verdicts = await owner.commit(
            owner.member("new", grain=writing(0), request=REQUEST),
            owner.member(grain=writing(1), request=REQUEST),
            owner.member("other", grain=writing(7)),
            owner.member("new", grain=writing(1), request=replace(REQUEST, answer=b"no")),
            owner.member("new", grain=writing(1), request=replace(REQUEST, request_id="r-2", answer=b"")),
        )
        assert [verdict.outcome for verdict in verdicts] == [
            Outcome.COMMITTED,
            Outcome.REPEATED,
            Outcome.CONFLICT,
            Outcome.REPEATED,
            Outcome.COMMITTED,
        ]
        assert [verdicts[1].answer, verdicts[3].answer] == [REQUEST.answer, REQUEST.answer]
        assert await owner.store.answer_to("shipments", "new", "r-2") == b"", "an empty answer is one"
        rows = await owner.store.load([("shipments", key) for key in ("k", "other", "new")])
        assert [row and row.version for row in rows] == [1, 1, 2]

    async def test_a_repetition_is_told_after_a_fence_and_before_a_conflict(self, owner: Owner) -> None:
        await owner.committed(grain=writing(0), request=REQUEST)
        stale = owner.member(grain=writing(9), request=REQUEST)
        fenced, repeated = await owner.commit(replace(stale, epoch=99), stale)
        assert (fenced.outcome, repeated.outcome) == (Outcome.FENCED, Outcome.REPEATED)

    async def test_a_member_that_is_refused_answers_nothing(self, owner: Owner) -> None:
        (refused,) = await owner.commit(owner.member(grain=writing(9), request=REQUEST))
        assert refused.outcome is Outcome.CONFLICT
        assert await owner.store.answer_to("shipments", "k", "r-1") is None
        await owner.committed(grain=writing(0), request=REQUEST)

    async def test_a_row_only_commit_may_answer_a_request(self, owner: Owner) -> None:
        await owner.committed(request=REQUEST)
        (again,) = await owner.commit(owner.member(request=REQUEST))
        assert (again.outcome, again.answer) == (Outcome.REPEATED, REQUEST.answer)

    async def test_requests_are_per_grain_and_service_and_survive_destroy_and_reopening(
        self, owner: Owner, make_provider: MakeProvider
    ) -> None:
        await owner.committed(grain=writing(0), request=REQUEST)
        await owner.committed("neighbour", grain=writing(0), request=replace(REQUEST, answer=b"its own"))
        await owner.committed(grain=GrainWrite(1, destroy=True))
        other = await reopened(owner.store, make_provider, "other")
        stranger = await an_owner(other, PARTITION)
        assert await other.answer_to("shipments", "k", "r-1") is None
        await stranger.committed(grain=writing(0), request=replace(REQUEST, answer=b"theirs"))
        again = await reopened(other, make_provider)
        answers = [await again.answer_to("shipments", key, "r-1") for key in ("k", "neighbour", "nobody")]
        await again.close()
        assert answers == [b"\x00first", b"its own", None]

    async def test_a_request_that_no_store_can_hold_rejects_its_member(self, owner: Owner) -> None:
        bad, good = await owner.commit(
            owner.member(grain=writing(0), request=replace(REQUEST, request_id="a\x00b")),
            owner.member("other", grain=writing(0), request=REQUEST),
        )
        assert (bad.outcome, good.outcome) == (Outcome.REJECTED, Outcome.COMMITTED)
        assert await owner.store.answer_to("shipments", "k", "a\x00b") is None

    async def test_old_answers_are_forgotten_a_bounded_number_at_a_time(self, store: Provider) -> None:
        owner = await an_owner(store)
        for index in range(5):
            request = RequestRow(f"r-{index}", b"a", NOW + index)
            await owner.committed(request=request)
        assert await store.forget_requests(NOW, 10) == 0
        assert await store.forget_requests(NOW + 4, 3) == 3
        assert await store.forget_requests(NOW + 4, 0) == 0
        assert await store.forget_requests(NOW + 4, 3) == 1
        answers = [await store.answer_to("shipments", "k", f"r-{index}") for index in range(5)]
        assert answers == [None, None, None, None, b"a"]
        await owner.committed(request=RequestRow("r-0", b"anew", NOW + 9))
