"""Readers interleave with each other and exclude writers; they leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from farro.client.errors import GrainCallFailed
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import World, s


@dataclass
class PageState:
    text: str = "blank"
    lines: list[str] = field(default_factory=list)


class Page(Grain[PageState], name="page"):
    """``inside``: which turns run right now; ``seen``: every set of turns that ever ran together."""

    inside: list[str]
    seen: list[tuple[str, ...]]

    async def on_activate(self) -> None:
        self.inside, self.seen = [], []

    async def _stay(self, who: str, seconds: float) -> None:
        self.inside.append(who)
        self.seen.append(tuple(sorted(self.inside)))
        await asyncio.sleep(seconds)
        self.inside.remove(who)

    @readonly
    async def read(self, seconds: float) -> str:
        await self._stay("reader", seconds)
        return self.state.text

    async def write(self, text: str, seconds: float) -> None:
        await self._stay("writer", seconds)
        self.state.text = text

    async def together(self) -> list[tuple[str, ...]]:
        return self.seen

    @readonly
    async def read_through_another(self, other: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return await self.grain(Page, other).ask_back(self.key)

    @readonly
    async def ask_back(self, other: str) -> str:
        return await self.grain(Page, other).read(0.0)

    @readonly
    async def scribble(self, seconds: float) -> str:
        self.state.lines.append("never")
        await asyncio.sleep(seconds)
        return self.state.text

    @readonly
    async def misuse(self, what: str) -> None:
        match what:
            case "schedule":
                self.schedule(self.write, "x", 0.0, after=s(10))
            case "unschedule":
                self.unschedule("write")
            case "unschedule_all":
                self.unschedule_all("write")
            case "destroy":
                self.destroy()
            case _:
                await self.unregister_reminder("x")

    async def lines(self) -> list[str]:
        return self.state.lines


@pytest.fixture
async def silo(virtual: VirtualClock) -> AsyncGenerator[Silo]:
    async with World(virtual, grains=(Page,)).up() as silo:
        yield silo


async def test_readers_run_together_and_a_writer_runs_alone(silo: Silo) -> None:
    page = silo.grain(Page, "p")
    await page.write("first", 0.0)
    began = asyncio.get_running_loop().time()
    calls = [page.read(5.0), page.read(5.0), page.read(5.0), page.write("second", 5.0), page.read(5.0)]
    results = await asyncio.gather(*calls)
    assert results == ["first", "first", "first", None, "second"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(15)
    assert all("writer" not in turns or turns == ("writer",) for turns in await page.together())


async def test_a_reader_waits_for_the_commit_of_the_writer_before_it(silo: Silo) -> None:
    store = silo.provider
    page = silo.grain(Page, "p")
    await page.write("first", 0.0)
    store.freeze("commit")  # type: ignore[attr-defined]
    writing = asyncio.ensure_future(page.write("second", 0.0))
    await store.until_frozen("commit")  # type: ignore[attr-defined]
    reading = asyncio.ensure_future(page.read(0.0))
    await asyncio.sleep(1)
    assert not reading.done()
    store.thaw()  # type: ignore[attr-defined]
    await writing
    assert await reading == "second"


async def test_a_waiting_writer_is_not_overtaken_by_later_readers(silo: Silo) -> None:
    page = silo.grain(Page, "p")
    await page.write("first", 0.0)
    order = [page.read(5.0), page.write("second", 0.0), *(page.read(5.0) for _ in range(5))]
    assert await asyncio.gather(*order) == ["first", None, *["second"] * 5]


async def test_a_reader_called_back_through_another_grain_joins_although_a_writer_waits(silo: Silo) -> None:
    page = silo.grain(Page, "p")
    await page.write("first", 0.0)
    reading = asyncio.ensure_future(page.read_through_another("q", 2.0))
    await asyncio.sleep(1)
    writing = asyncio.ensure_future(page.write("second", 0.0))
    assert await reading == "first"
    await writing


@pytest.mark.parametrize("what", ["schedule", "unschedule", "unschedule_all", "destroy", "unregister"])
async def test_a_reader_that_asks_for_an_effect_is_told_at_once(silo: Silo, what: str) -> None:
    page = silo.grain(Page, "p")
    await page.write("first", 0.0)
    with pytest.raises(GrainCallFailed, match="readonly"):
        await page.misuse(what)
    assert await page.read(0.0) == "first"


async def test_a_reader_that_changes_the_state_is_logged_and_the_change_never_persists(
    silo: Silo, caplog: pytest.LogCaptureFixture
) -> None:
    page = silo.grain(Page, "p")
    await page.write("first", 0.0)
    commits = silo.provider.calls["commit"]  # type: ignore[attr-defined]
    with caplog.at_level(logging.ERROR, "farro.turns"):
        assert list(await asyncio.gather(page.scribble(1.0), page.read(3.0))) == ["first", "first"]
    assert ["page/p" in record.getMessage() for record in caplog.records] == [True]
    assert await page.lines() == []
    await page.write("second", 0.0)
    assert await page.lines() == []
    assert silo.provider.calls["commit"] == commits + 1  # type: ignore[attr-defined]
