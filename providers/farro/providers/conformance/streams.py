"""Events and outbox rows: numbered within their partition, appended with the commit."""

from __future__ import annotations

from farro.providers.conformance.made import NOW, PARTITION, Owner, an_owner, writing
from farro.providers.conformance.stores import MakeProvider, StoreKit, reopened
from farro.providers.rows import EventRow, OutboxRow, Outcome


def _events(stream: str, *payloads: bytes) -> tuple[EventRow, ...]:
    return tuple(EventRow(stream, payload, NOW) for payload in payloads)


def _messages(*methods: str) -> tuple[OutboxRow, ...]:
    return tuple(OutboxRow("carriers", "c-7", method, b"\x90", NOW) for method in methods)


class StreamKit(StoreKit):
    async def test_events_keep_the_order_of_the_commits_and_are_numbered_ascending(
        self, owner: Owner
    ) -> None:
        await owner.commit(
            owner.member("a", events=_events("s", b"1", b"2")), owner.member("b", events=_events("s", b"3"))
        )
        await owner.committed("a", events=_events("s", b"4"))
        read = await owner.store.events(PARTITION, "s", 0, 10)
        assert [event for _, event in read] == list(_events("s", b"1", b"2", b"3", b"4"))
        numbers = [number for number, _ in read]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0

    async def test_events_are_read_after_a_number_and_in_pages(self, owner: Owner) -> None:
        await owner.committed(events=_events("s", *(bytes([n]) for n in range(7))))
        seen: list[bytes] = []
        after = 0
        while page := await owner.store.events(PARTITION, "s", after, 3):
            assert len(page) <= 3
            seen += [event.payload for _, event in page]
            after = page[-1][0]
        assert seen == [bytes([n]) for n in range(7)]

    async def test_streams_and_partitions_do_not_mix(self, owner: Owner) -> None:
        await owner.committed(events=(*_events("s", b"1"), *_events("t", b"2"), *_events("s", b"3")))
        await owner.committed(partition=PARTITION + 1, events=_events("s", b"4"))
        read = [
            [event.payload for _, event in await owner.store.events(partition, stream, 0, 10)]
            for partition, stream in [(PARTITION, "s"), (PARTITION, "t"), (PARTITION + 1, "s"), (9, "s")]
        ]
        assert read == [[b"1", b"3"], [b"2"], [b"4"], []]

    async def test_outbox_rows_come_back_in_order_with_their_numbers(self, owner: Owner) -> None:
        await owner.commit(
            owner.member("a", outbox=_messages("one", "two")), owner.member("b", outbox=_messages("three"))
        )
        read = await owner.store.outbox(PARTITION, 0, 10)
        assert [message for _, message in read] == list(_messages("one", "two", "three"))
        assert await owner.store.outbox(PARTITION, read[0][0], 1) == read[1:2]
        assert await owner.store.outbox(PARTITION, read[-1][0], 10) == []
        assert await owner.store.outbox(PARTITION + 1, 0, 10) == []

    async def test_a_refused_member_appends_nothing(self, owner: Owner) -> None:
        verdicts = await owner.commit(
            owner.member("a", epoch=77, events=_events("s", b"x"), outbox=_messages("x")),
            owner.member("b", grain=writing(5), events=_events("s", b"y"), outbox=_messages("y")),
            owner.member("c", events=_events("s", b"z")),
        )
        assert [verdict.outcome for verdict in verdicts] == [
            Outcome.FENCED,
            Outcome.CONFLICT,
            Outcome.COMMITTED,
        ]
        assert [e.payload for _, e in await owner.store.events(PARTITION, "s", 0, 10)] == [b"z"]
        assert await owner.store.outbox(PARTITION, 0, 10) == []

    async def test_numbers_go_on_after_close_and_open_and_a_take_over(
        self, owner: Owner, make_provider: MakeProvider
    ) -> None:
        await owner.committed(events=_events("s", b"1"), outbox=_messages("one"))
        again = await reopened(owner.store, make_provider)
        heir = await an_owner(again, PARTITION)
        await heir.committed(events=_events("s", b"2"), outbox=_messages("two"))
        events = await again.events(PARTITION, "s", 0, 10)
        messages = await again.outbox(PARTITION, 0, 10)
        await again.close()
        assert [event.payload for _, event in events] == [b"1", b"2"]
        assert events[0][0] < events[1][0] and messages[0][0] < messages[1][0]

    async def test_a_destroyed_grain_still_says_its_last_words(self, owner: Owner) -> None:
        await owner.committed(
            grain=writing(0, None, destroy=True), events=_events("s", b"bye"), outbox=_messages("bye")
        )
        assert [e.payload for _, e in await owner.store.events(PARTITION, "s", 0, 10)] == [b"bye"]
        assert [m.method for _, m in await owner.store.outbox(PARTITION, 0, 10)] == ["bye"]

    async def test_stream_heads_tell_the_last_number_of_each_partition(self, owner: Owner) -> None:
        assert await owner.store.stream_heads("s") == []
        await owner.committed(partition=PARTITION + 1, events=_events("s", b"1", b"2"))
        await owner.committed(events=(*_events("s", b"3"), *_events("t", b"4")))
        heads = [
            (partition, (await owner.store.events(partition, "s", 0, 10))[-1][0])
            for partition in (PARTITION, PARTITION + 1)
        ]
        assert await owner.store.stream_heads("s") == heads
        assert [partition for partition, _ in await owner.store.stream_heads("t")] == [PARTITION]

    async def test_trimmed_events_are_gone_and_their_numbers_stay_used(self, owner: Owner) -> None:
        await owner.committed(events=(*_events("s", b"1", b"2", b"3"), *_events("t", b"4")))
        numbers = [number for number, _ in await owner.store.events(PARTITION, "s", 0, 10)]
        heads = await owner.store.stream_heads("s")
        assert await owner.store.trim_events("s", PARTITION, numbers[1]) == 2
        assert await owner.store.trim_events("s", PARTITION, numbers[1]) == 0
        assert [e.payload for _, e in await owner.store.events(PARTITION, "s", 0, 10)] == [b"3"]
        assert await owner.store.trim_events("s", PARTITION, numbers[2]) == 1
        assert await owner.store.stream_heads("s") == heads
        assert [e.payload for _, e in await owner.store.events(PARTITION, "t", 0, 10)] == [b"4"]
        await owner.committed(events=_events("s", b"5"))
        assert (await owner.store.events(PARTITION, "s", 0, 10))[0][0] > numbers[2]
