"""Answered requests in a batch: what memory says of each member, the server says too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest

from farro.providers.conformance.made import NOW, PARTITION, Owner, a_reminder, an_owner, writing
from farro.providers.contracts import Provider
from farro.providers.memory import MemoryProvider
from farro.providers.postgres.store import PostgresProvider
from farro.providers.rows import Commit, EventRow, Outcome, PutReminder, RequestRow, Verdict
from tests.support.servers import Server

pytestmark = pytest.mark.service

SERVICES = count(1)


@pytest.fixture
async def owners(postgres_server: Server) -> AsyncIterator[tuple[Owner, Owner]]:
    """The same silo on a server and in memory."""
    url = f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres?schema=requests&partitions=64"
    stores: tuple[Provider, Provider] = (
        PostgresProvider(url, service_id=f"s{next(SERVICES)}"),
        MemoryProvider(),
    )
    for store in stores:
        await store.open(NOW)
    yield (await an_owner(stores[0]), await an_owner(stores[1]))
    for store in stores:
        await store.close()


async def both(owners: tuple[Owner, Owner], *members: Commit) -> list[Verdict]:
    on_server, in_memory = [await owner.commit(*members) for owner in owners]
    assert on_server == in_memory
    return on_server


def asked(request_id: str, answer: bytes = b"\x01", at: int = NOW) -> RequestRow:
    return RequestRow(request_id, answer, at)


async def test_a_repeated_member_gets_the_first_answer_and_the_others_of_its_batch_go_on(
    owners: tuple[Owner, Owner],
) -> None:
    member = owners[0].member
    (first,) = await both(owners, member(grain=writing(0), request=asked("r", b"first")))
    assert (first.outcome, first.version) == (Outcome.COMMITTED, 1)
    verdicts = await both(
        owners,
        member("a", grain=writing(0), request=asked("r", b"of another grain")),
        member(grain=writing(1), request=asked("r", b"second"), events=(EventRow("s", b"x", NOW),)),
        member("b", grain=writing(0), events=(EventRow("s", b"y", NOW),)),
        member("c", epoch=99, grain=writing(0), request=asked("c")),
        member("d", grain=writing(5), request=asked("d")),
    )
    assert [verdict.outcome for verdict in verdicts] == [
        Outcome.COMMITTED,
        Outcome.REPEATED,
        Outcome.COMMITTED,
        Outcome.FENCED,
        Outcome.CONFLICT,
    ]
    assert verdicts[1].answer == b"first"
    for owner in owners:
        store = owner.store
        assert await store.answer_to("shipments", "k", "r") == b"first"
        assert await store.answer_to("shipments", "a", "r") == b"of another grain"
        assert await store.answer_to("shipments", "c", "c") is None
        assert await store.answer_to("shipments", "d", "d") is None
        assert [row.payload for _, row in await store.events(PARTITION, "s", 0, 10)] == [b"y"]


async def test_the_fence_comes_before_the_answer_and_the_answer_before_the_version(
    owners: tuple[Owner, Owner],
) -> None:
    member = owners[0].member
    await both(owners, member(grain=writing(0), request=asked("r", b"first")))
    (fenced,) = await both(owners, member(epoch=99, grain=writing(1), request=asked("r")))
    (unowned,) = await both(owners, member(epoch=0, grain=writing(1), request=asked("r")))
    (stale,) = await both(owners, member(grain=writing(0), request=asked("r")))
    assert [fenced.outcome, unowned.outcome, stale.outcome] == [
        Outcome.FENCED,
        Outcome.FENCED,
        Outcome.REPEATED,
    ]


async def test_a_request_twice_in_one_batch_is_answered_once(owners: tuple[Owner, Owner]) -> None:
    member = owners[0].member
    verdicts = await both(
        owners,
        member(grain=writing(0), request=asked("r", b"first")),
        member(grain=writing(1), request=asked("r", b"second")),
    )
    assert [(verdict.outcome, verdict.answer) for verdict in verdicts] == [
        (Outcome.COMMITTED, None),
        (Outcome.REPEATED, b"first"),
    ]


async def test_a_request_beside_more_reminders_than_allowed_is_not_answered(
    owners: tuple[Owner, Owner],
) -> None:
    member = owners[0].member
    await both(
        owners, member("full", reminders=tuple(PutReminder(a_reminder("full", f"n{n}")) for n in "ab"))
    )
    more = (PutReminder(a_reminder("full", "c")),)
    verdicts = await both(
        owners,
        member("full", reminders=more, reminders_max=2, request=asked("r")),
        member("other", grain=writing(0), request=asked("r", b"yes")),
    )
    assert [verdict.outcome for verdict in verdicts] == [Outcome.REJECTED, Outcome.COMMITTED]
    for owner in owners:
        assert await owner.store.answer_to("shipments", "full", "r") is None
        assert await owner.store.answer_to("shipments", "other", "r") == b"yes"


async def test_old_answers_are_forgotten_the_oldest_first_and_as_many_as_allowed(
    owners: tuple[Owner, Owner],
) -> None:
    member = owners[0].member
    for number in range(6):
        request = asked(f"r{number}", at=NOW + number)
        await both(owners, member(grain=writing(number), request=request))
    for owner in owners:
        forgotten = [await owner.store.forget_requests(NOW + 4, limit) for limit in (0, 3, 3, 3)]
        assert forgotten == [0, 3, 1, 0]
        kept = [await owner.store.answer_to("shipments", "k", f"r{number}") for number in range(6)]
        assert kept == [None] * 4 + [b"\x01"] * 2
