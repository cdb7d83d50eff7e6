"""What an event stream does with the answers it gets; the silo is a script."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from farro.client.clock import from_us
from farro.client.codec import Codec
from farro.client.errors import FarroError, InvalidPayload, NoSuchMethod, SiloUnavailable
from farro.client.identity import GrainId
from farro.client.interface import MethodSpec
from farro.client.streams import (
    EventPage,
    EventStream,
    StoredEvent,
    StreamEvent,
    checked_stream,
    pack_event,
    unpack_event,
)

pytestmark = pytest.mark.virtual

PUBLISHER = GrainId("shop", "a")


def stored(partition: int, sequence: int, value: Any = None) -> StoredEvent:
    return StoredEvent(partition, sequence, 1_000_000, pack_event(Codec(), PUBLISHER, value))


class Script:
    """A caller that writes down what it is asked and answers, or raises, what it was given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.asked: list[tuple[str, str, str, tuple[Any, ...]]] = []

    async def invoke(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,  # noqa: ASYNC109 - the signature of callers
        request_id: str | None = None,
    ) -> Any:
        wire, _ = spec.encode_call(args, kwargs)
        self.asked.append((grain_type, grain_key, spec.name, tuple(wire)))
        if not self.answers:
            raise NoSuchMethod("the script is over")
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return spec.decode_result(spec.encode_result(answer))


async def drained(events: EventStream) -> list[Any]:
    found: list[Any] = []
    with pytest.raises(NoSuchMethod):
        async for event in events:
            found.append(event.value)
    return found


async def test_reads_go_on_behind_the_last_event_of_each_partition() -> None:
    page = EventPage([stored(1, 6, "a"), stored(2, 3, "b"), stored(1, 9, "c")], {})
    script = Script({1: 5}, page)
    assert await drained(EventStream(script, "orders")) == ["a", "b", "c"]
    reads = [args for _, _, method, args in script.asked if method == "read"]
    assert [args[1] for args in reads] == [{1: 5}, {1: 9, 2: 3}]
    assert script.asked[0] == ("farro.streams", "orders", "positions", ("orders", "now"))


async def test_an_event_of_a_named_consumer_is_consumed_when_the_next_one_is_asked_for() -> None:
    script = Script({}, EventPage([stored(1, 1, "a"), stored(2, 1, "b")], {}), None, None)
    events = EventStream(script, "orders", consumer="audit", after="start")
    assert (await anext(events)).value == "a"
    assert [method for _, _, method, _ in script.asked] == ["begin", "read"]
    assert (await anext(events)).value == "b"
    assert script.asked[-1] == ("farro.consumers", "audit", "acknowledge", ("orders", 1, 1))
    await events.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    assert len(script.asked) == 3


async def test_trimmed_events_are_counted_as_a_gap_and_reading_goes_on_behind_them() -> None:
    script = Script({1: 2}, EventPage([], {1: 7}), EventPage([stored(1, 8, "x")], {}))
    events = EventStream(script, "orders")
    assert await drained(events) == ["x"]
    assert events.gaps == 1
    assert script.asked[2][3][1] == {1: 7}


async def test_what_may_pass_is_tried_again_and_what_will_not_is_raised() -> None:
    script = Script({}, SiloUnavailable("gone"), SiloUnavailable("gone"), EventPage([stored(1, 1, "x")], {}))
    assert await drained(EventStream(script, "orders")) == ["x"]
    assert [method for _, _, method, _ in script.asked] == ["positions", "read", "read", "read", "read"]


async def test_trouble_that_does_not_end_is_raised_after_a_minute_and_iterating_again_goes_on() -> None:
    loop = asyncio.get_running_loop()
    script = Script({}, EventPage([stored(1, 1, "x")], {}), *[SiloUnavailable("gone")] * 1_000)
    events = EventStream(script, "orders")
    assert (await anext(events)).value == "x"
    began = loop.time()
    with pytest.raises(SiloUnavailable):
        await anext(events)
    assert 50 <= loop.time() - began <= 60
    assert len(script.asked) < 60
    script.answers.clear()
    script.answers.append(EventPage([stored(1, 2, "y")], {}))
    assert (await anext(events)).value == "y"
    assert script.asked[-1][3][1] == {1: 1}


async def test_a_closed_client_is_not_asked_again() -> None:
    script = Script(*[SiloUnavailable("closed")] * 5)
    with pytest.raises(SiloUnavailable):
        await anext(EventStream(script, "orders", is_open=lambda: False))
    assert len(script.asked) == 1


async def test_two_tasks_cannot_read_one_stream_at_a_time() -> None:
    class Hanging(Script):
        async def invoke(self, *args: Any) -> Any:
            await asyncio.Event().wait()

    events = EventStream(Hanging(), "orders")
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one task at a time"):
        await anext(events)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_an_envelope_gives_back_what_was_put_in() -> None:
    event = unpack_event(Codec(), "orders", stored(3, 7, {"n": (1, 2)}))
    assert event == StreamEvent("orders", {"n": (1, 2)}, from_us(1_000_000), PUBLISHER, "orders/3-7")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        Codec().pack(None),
        Codec().pack({"value": 1}),
        Codec().pack({"from": ["a"], "value": 1}),
        Codec().pack({"from": ["a", 1], "value": 1}),
        Codec().pack({"from": ["", "k"], "value": 1}),
    ],
)
async def test_bytes_that_are_no_event_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidPayload):
        unpack_event(Codec(), "orders", StoredEvent(1, 1, 0, payload))


@pytest.mark.parametrize("name", ["", "a\0", "x" * 201, "\udc80", 1, None])
async def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(InvalidPayload, match="stream name"):
        checked_stream(name)
    with pytest.raises(FarroError):
        EventStream(Script(), name)


async def test_a_bad_consumer_or_after_is_refused_at_once() -> None:
    with pytest.raises(InvalidPayload, match="consumer name"):
        EventStream(Script(), "orders", consumer="")
    with pytest.raises(ValueError, match="'now' or 'start'"):
        EventStream(Script(), "orders", after="soon")  # type: ignore[arg-type]
