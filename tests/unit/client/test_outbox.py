"""The outbox: what one tick brings goes out together, and nothing waits uncounted for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from farro.client.codec import Codec
from farro.client.errors import InvalidPayload
from farro.client.outbox import Outbox
from farro.client.protocol import FRAME_BYTES_MAX, FRAME_BYTES_TARGET, Message, messages_of

CODEC = Codec()
TOO_LARGE = bytes(FRAME_BYTES_MAX)


class Peer:
    """Takes frames; while ``slow``, only when told to."""

    def __init__(self) -> None:
        self.frames: list[list[Message]] = []
        self.slow = False
        self.lost = False
        self._go_on = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        if self.lost:
            raise ConnectionResetError("gone")
        if self.slow:
            self._go_on.clear()
            await self._go_on.wait()
        self.frames.append(messages_of(CODEC, frame))

    def take(self) -> None:
        self._go_on.set()


@asynccontextmanager
async def writing(peer: Peer, unfit: Any = None, **hooks: Any) -> AsyncIterator[Outbox]:
    outbox = Outbox(peer.send, "peer", CODEC, unfit=unfit or (lambda message, problem: None), **hooks)
    writer = asyncio.create_task(outbox.write())
    try:
        yield outbox
    finally:
        outbox.close()
        await writer


async def test_what_one_tick_brings_is_one_frame_in_order() -> None:
    peer = Peer()
    async with writing(peer) as outbox:
        for number in range(5):
            outbox.put([4, number, "x"])
        assert not outbox.empty
        await outbox.wait_until_sent()
        assert peer.frames == [[[4, number, "x"] for number in range(5)]]
        assert outbox.empty
        assert outbox.bytes == 0


async def test_more_than_fits_into_one_frame_goes_out_in_several() -> None:
    peer = Peer()
    async with writing(peer) as outbox:
        for number in range(3):
            outbox.put([4, number, bytes(FRAME_BYTES_TARGET // 2)])
        await outbox.wait_until_sent()
        assert [[message[1] for message in frame] for frame in peer.frames] == [[0], [1], [2]]


async def test_a_message_that_does_not_fit_is_replaced_or_left_out_and_the_others_go() -> None:
    peer = Peer()
    problems: list[InvalidPayload] = []

    def unfit(message: Message, problem: InvalidPayload) -> Message | None:
        problems.append(problem)
        return [5, message[1]] if message[1] == 2 else None

    async with writing(peer, unfit) as outbox:
        for number, value in enumerate(("a", TOO_LARGE, TOO_LARGE, object(), "e")):
            outbox.put([4, number, value])
        await outbox.wait_until_sent()
        assert peer.frames == [[[4, 0, "a"], [5, 2], [4, 4, "e"]]]
        assert [str(problem)[:10] for problem in problems] == ["the result", "the result", "message ca"]


async def test_put_checked_raises_for_what_does_not_fit_and_shares_the_frame() -> None:
    peer = Peer()
    async with writing(peer) as outbox:
        outbox.put([4, 1, "x"])
        with pytest.raises(InvalidPayload, match="fit into a frame"):
            outbox.put_checked([4, 2, TOO_LARGE])
        outbox.put_checked([4, 3, "x"])
        outbox.put([4, 4, "x"])
        await outbox.wait_until_sent()
        assert [[message[1] for message in frame] for frame in peer.frames] == [[1, 3, 4]]


async def test_while_the_peer_is_slow_everything_is_counted_at_once() -> None:
    peer = Peer()
    peer.slow = True
    heard: list[str] = []
    async with writing(peer, on_packed=lambda: heard.append("packed")) as outbox:
        outbox.put([4, 1, "x"])
        await asyncio.sleep(0)
        before = outbox.bytes
        assert before > 0
        outbox.put([4, 2, bytes(1000)])
        assert outbox.bytes > before + 1000
        assert heard == ["packed", "packed"]
        peer.slow = False
        peer.take()
        while not outbox.empty:
            await outbox.wait_until_sent()
        assert outbox.bytes == 0
        assert [[message[1] for message in frame] for frame in peer.frames] == [[1], [2]]


async def test_many_messages_of_one_tick_do_not_wait_uncounted() -> None:
    peer = Peer()
    async with writing(peer) as outbox:
        for number in range(1_000):
            outbox.put([4, number, bytes(100)])
        assert outbox.bytes > 900 * 100


async def test_on_sending_hears_of_all_that_was_put_before() -> None:
    peer = Peer()
    heard: list[str] = []
    async with writing(
        peer, on_sending=lambda: heard.append("sending"), on_sent=lambda: heard.append("sent")
    ) as outbox:
        outbox.put([4, 1, "x"])
        assert heard == []
        await outbox.wait_until_sent()
        await asyncio.sleep(0)
        assert heard == ["sending", "sent"]


async def test_a_lost_peer_or_a_close_frees_who_waits_and_what_is_kept() -> None:
    peer = Peer()
    peer.lost = True
    async with writing(peer) as outbox:
        outbox.put([4, 1, "x"])
        await outbox.wait_until_sent()
        outbox.put([4, 2, "x"])
        assert outbox.empty
        await outbox.wait_until_sent()
    assert peer.frames == []


async def test_what_is_urgent_goes_before_everything_that_is_not_on_its_way() -> None:
    peer = Peer()
    peer.slow = True
    async with writing(peer) as outbox:
        for number in range(6):
            outbox.put([4, number, bytes(FRAME_BYTES_TARGET - 100)])
        while not peer.frames:
            peer.take()
            await asyncio.sleep(0)
        outbox.put([4, 6, "x"])
        outbox.put_first([9, 1])
        outbox.put_first([9, 2])
        peer.slow = False
        peer.take()
        await outbox.wait_until_sent()
        kinds = [[message[:2] for message in frame] for frame in peer.frames]
        at = kinds.index([[9, 1], [9, 2]])
        assert at <= 2, "behind the frame that was being sent"
        assert [each for frame in kinds for each in frame if each[0] == 4] == [[4, n] for n in range(7)]
        assert outbox.empty and outbox.bytes == 0


async def test_what_is_urgent_alone_is_sent_too() -> None:
    peer = Peer()
    async with writing(peer) as outbox:
        outbox.put_first([9, 1])
        assert not outbox.empty
        await outbox.wait_until_sent()
        assert peer.frames == [[[9, 1]]]
