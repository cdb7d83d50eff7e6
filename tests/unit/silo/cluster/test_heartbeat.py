"""The heartbeat's thread: it renews beside a busy loop, and not for one that stands still."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

from farro.client.clock import SystemClock
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.silo.cluster.heartbeat import Beat, Heartbeat
from farro.silo.host import Silo
from farro.silo.store_clock import StoreClock
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.cluster.cluster_kit import QUICK, Count, until

INTERVAL_S, LEASE_S = 0.05, 0.4

STOPPED = """
import asyncio, sys
from farro.client.clock import SystemClock
from farro.providers.memory import MemoryProvider
from farro.silo.cluster.heartbeat import Heartbeat

async def main():
    provider = MemoryProvider()
    await provider.open(0)
    beats = 0
    def hear(beat):
        nonlocal beats
        beats += beat.view is not None
        print("beat" if beats % 20 else "twenty", flush=True)
    heart = Heartbeat(provider.members(), SystemClock(), interval_s=0.05, lease_s=0.4, hear=hear,
                      load=lambda: 0, on_stuck=lambda: print("stuck", flush=True))
    await heart.start()
    await heart.join("127.0.0.1:1")
    await asyncio.sleep(3600)

asyncio.run(main())
"""


class Heard:
    def __init__(self) -> None:
        self.beats: list[Beat] = []
        self.stuck = threading.Event()


@asynccontextmanager
async def beating() -> AsyncGenerator[tuple[Heartbeat, Heard, MemoryProvider]]:
    provider, heard = MemoryProvider(MemoryStore()), Heard()
    await provider.open(0)
    heart = Heartbeat(
        provider.members(),
        SystemClock(),
        interval_s=INTERVAL_S,
        lease_s=LEASE_S,
        hear=heard.beats.append,
        load=lambda: 7,
        on_stuck=heard.stuck.set,
    )
    await heart.start()
    try:
        yield heart, heard, provider
    finally:
        await heart.stop()


async def test_it_renews_and_tells_the_view_and_the_load() -> None:
    async with beating() as (heart, heard, provider):
        row = await heart.join("127.0.0.1:1")
        await until(lambda: len(heard.beats) >= 3, "three beats")
        (silo,) = await provider.silos()
        assert silo.number == row.number and silo.renewals >= 2 and silo.load == 7
        assert {beat.view for beat in heard.beats} == {1}


async def test_a_loop_that_stands_still_is_renewed_no_longer_and_said_to_be_stuck() -> None:
    async with beating() as (heart, heard, provider):
        await heart.join("127.0.0.1:1")
        await until(lambda: heard.beats, "a beat")
        assert heard.stuck.wait(timeout=20 * LEASE_S) is True  # blocks the loop, which is the point
        (before,) = await provider.silos()
        time.sleep(4 * INTERVAL_S)  # noqa: ASYNC251 - likewise
        (after,) = await provider.silos()
        assert after.renewals == before.renewals
        heard.beats.clear()
        await until(lambda: [beat for beat in heard.beats if beat.view], "it renews again")


async def test_a_silo_that_is_no_member_any_more_hears_so_and_may_join_again() -> None:
    async with beating() as (heart, heard, provider):
        row = await heart.join("127.0.0.1:1")
        await provider.leave(row.number, 1)
        await until(lambda: [beat for beat in heard.beats if beat.view is None and not beat.error], "told")
        again = await heart.join("127.0.0.1:1")
        await until(lambda: [beat for beat in heard.beats if beat.number == again.number], "beats again")


async def test_the_lock_goes_with_the_heartbeat() -> None:
    async with beating() as (heart, _, provider):
        row = await heart.join("127.0.0.1:1")
        assert await provider.is_held(row.number)
        await heart.stop()
        assert not await provider.is_held(row.number)
        await heart.stop()


def test_a_process_that_was_stopped_as_a_whole_is_not_stuck() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4]
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "beat\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4 * LEASE_S)  # how long it is stopped is what is tested
        process.send_signal(signal.SIGCONT)
        said = [process.stdout.readline() for _ in range(25)]
        assert "stuck\n" not in said and "twenty\n" in said
    finally:
        process.kill()
        process.communicate()


class SlowToSayTheTime(MemoryProvider):
    """Its next question for the time hangs."""

    async def store_time(self) -> int:
        await asyncio.sleep(3600)
        return 0


async def test_no_renewal_waits_for_what_time_it_is(virtual: VirtualClock) -> None:
    provider, heard = SlowToSayTheTime(MemoryStore()), Heard()
    await provider.open(0)
    at: list[float] = []

    def hear(beat: Beat) -> None:
        heard.beats.append(beat)
        at.append(loop.time() - beat.sent_at)

    loop = asyncio.get_running_loop()
    heart = Heartbeat(
        provider,
        StoreClock(virtual),
        interval_s=1.0,
        lease_s=4.0,
        hear=hear,
        load=lambda: 0,
        on_stuck=heard.stuck.set,
    )
    await heart.start()
    await heart.join("127.0.0.1:1")
    await asyncio.sleep(20)
    await heart.stop()
    sent = [beat.sent_at for beat in heard.beats]
    assert all(round(later - earlier, 3) == 1.0 for earlier, later in pairwise(sent))
    assert max(at) == 0.0, "told before anything else is asked"


async def test_a_store_that_is_another_one_now_ends_the_silo_although_nobody_writes(tmp_path: Path) -> None:
    """The file goes away beneath an idle silo: what it would read is the old file, and looks well."""
    file = tmp_path / "farro.db"
    told = asyncio.get_running_loop().create_future()
    silo = Silo([Count], f"sqlite:///{file}", "127.0.0.1:0", options=QUICK)
    await silo.start()
    silo.on_failure(told.set_result)
    for name in ("farro.db", "farro.db-wal", "farro.db-shm"):
        (tmp_path / name).unlink()
    assert "farro.db" in await asyncio.wait_for(told, 15)
    await silo.stop()
