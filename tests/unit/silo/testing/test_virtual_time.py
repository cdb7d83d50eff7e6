"""The loop on virtual time keeps the promises of its docstrings."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farro.client.clock import Clock, to_us
from farro.providers.opening import open_provider
from farro.silo.testing import virtual_time
from farro.silo.testing.virtual_time import (
    VirtualClock,
    VirtualLoop,
    VirtualTimeError,
    hold_time,
    outside,
    run_virtual,
)

START = datetime(2031, 3, 1, 12, tzinfo=UTC)
DAY_S = 86_400.0


def in_a_thread(work: threading.Event, answer: str) -> asyncio.Future[str]:
    """What aiosqlite does: a thread of the library's own answers through call_soon_threadsafe."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()

    def run() -> None:
        work.wait()
        loop.call_soon_threadsafe(future.set_result, answer)

    threading.Thread(target=run, name="library").start()
    return future


def test_thirty_days_of_polling_every_thirty_seconds_pass_in_moments() -> None:
    async def main(clock: VirtualClock) -> tuple[int, datetime]:
        polls = 0
        async with asyncio.timeout(30 * DAY_S - 1):
            while polls < 30 * 2880 - 1:
                await asyncio.sleep(30)
                polls += 1
        return polls, clock.at()

    polls, ended_at = run_virtual(main, START)
    assert (polls, ended_at) == (86_399, START + timedelta(days=30) - timedelta(seconds=30))


def test_timers_fire_in_order_of_their_time_each_at_its_own_instant() -> None:
    async def main(clock: VirtualClock) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []

        async def wake(name: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append((name, clock.steady()))

        await asyncio.gather(wake("c", 3 * DAY_S), wake("a", 0.000001), wake("b", 2), wake("b2", 2))
        return seen

    day_us = 86_400_000_000
    assert run_virtual(main) == [("a", 1), ("b", 2_000_000), ("b2", 2_000_000), ("c", 3 * day_us)]


def test_a_timer_set_for_a_microsecond_reads_that_microsecond_even_years_later() -> None:
    async def main(clock: VirtualClock) -> None:
        for due_us in (100_000_000_000_003, 1_000_000_000_000_001, 1_000_000_000_000_002):
            await asyncio.sleep(clock.loop_seconds(due_us - clock.steady()))
            assert clock.steady() == due_us

    run_virtual(main)


def test_code_that_does_not_wait_takes_no_virtual_time() -> None:
    async def main(clock: VirtualClock) -> int:
        for _ in range(1000):
            await asyncio.sleep(0)
        return clock.steady()

    assert run_virtual(main) == 0


def test_timeouts_and_wait_for_run_on_virtual_time() -> None:
    async def main(clock: VirtualClock) -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3600)
        return clock.steady()

    assert run_virtual(main) == 7_200_000_000


def test_a_jump_moves_the_wall_and_neither_steady_nor_a_timer() -> None:
    async def main(clock: VirtualClock) -> None:
        sleeper = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(10)
        clock.jump(timedelta(hours=5))
        assert clock.at() == START + timedelta(hours=5, seconds=10)
        clock.jump(timedelta(hours=-6))
        assert clock.at() == START + timedelta(hours=-1, seconds=10)
        assert clock.steady() == 10_000_000
        assert not sleeper.done()
        await sleeper
        assert clock.steady() == 60_000_000

    run_virtual(main, START)


def test_a_suspended_machine_finds_the_wall_ahead_and_its_steady_time_where_it_was() -> None:
    async def main(clock: VirtualClock) -> None:
        clock.suspend(timedelta(days=2))
        assert (clock.at(), clock.steady()) == (START + timedelta(days=2), 0)
        with pytest.raises(ValueError, match="jump"):
            clock.suspend(timedelta(seconds=-1))

    run_virtual(main, START)


def test_sleep_until_waits_for_the_wall_clock_and_follows_a_jump_back() -> None:
    async def main(clock: VirtualClock) -> int:
        sleeper = asyncio.create_task(clock.sleep_until(START + timedelta(minutes=1)))
        await asyncio.sleep(30)
        clock.jump(timedelta(minutes=-1))
        await sleeper
        assert clock.at() == START + timedelta(minutes=1)
        await clock.sleep_until(START)
        return clock.steady()

    assert run_virtual(main, START) == 120_000_000


def test_the_clock_is_a_clock_and_turns_schedule_time_into_loop_time() -> None:
    async def main(clock: VirtualClock) -> None:
        as_clock: Clock = clock
        assert as_clock.now() == to_us(START)
        assert as_clock.loop_seconds(1_500_000) == 1.5
        assert as_clock.loop_seconds(-1) == 0

    run_virtual(main, START)


def test_a_naive_start_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        VirtualLoop(datetime(2031, 3, 1))


def test_time_stands_still_while_an_executor_works() -> None:
    async def main(clock: VirtualClock) -> str:
        gate = threading.Event()
        job = asyncio.create_task(asyncio.to_thread(gate.wait))
        far = asyncio.create_task(asyncio.sleep(DAY_S))
        await asyncio.sleep(0)
        threading.Timer(0.05, gate.set).start()
        await job
        assert clock.steady() == 0
        await far
        return "done"

    assert run_virtual(main) == "done"


def test_a_cancelled_executor_job_lets_time_go_on() -> None:
    gate = threading.Event()

    async def main(clock: VirtualClock) -> int:
        job = asyncio.create_task(asyncio.to_thread(gate.wait))
        await asyncio.sleep(0)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        await asyncio.sleep(5)
        gate.set()
        return clock.steady()

    assert run_virtual(main) == 5_000_000


def test_time_stands_still_while_announced_work_runs_in_a_librarys_thread() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = threading.Event()
        threading.Timer(0.05, gate.set).start()
        async with asyncio.timeout(1):
            assert await outside(in_a_thread(gate, "row")) == "row"
        assert clock.steady() == 0

    run_virtual(main)


def test_unannounced_work_in_a_thread_is_jumped_over() -> None:
    gate = threading.Event()

    async def main(_clock: VirtualClock) -> None:
        future = in_a_thread(gate, "row")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(future)
        gate.set()
        await outside(future)

    run_virtual(main)


def test_hold_time_announces_every_coroutine_method_and_passes_the_rest_through() -> None:
    class Store:
        name = "store"

        def __init__(self) -> None:
            self.gate = threading.Event()

        def size(self) -> int:
            return 7

        async def load(self, key: str, *, suffix: str) -> str:
            threading.Timer(0.05, self.gate.set).start()
            return await in_a_thread(self.gate, key + suffix)

        async def fail(self) -> None:
            raise LookupError("no such row")

    async def main(clock: VirtualClock) -> None:
        store = hold_time(Store())
        async with asyncio.timeout(0.001):
            assert await store.load("a", suffix="b") == "ab"
        with pytest.raises(LookupError, match="no such row"):
            await store.fail()
        assert (store.name, store.size(), clock.steady()) == ("store", 7, 0)
        await asyncio.sleep(1)
        assert clock.steady() == 1_000_000

    run_virtual(main)


def test_a_store_in_a_file_answers_at_the_virtual_instant_it_was_asked(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        store = hold_time(open_provider(f"sqlite:///{tmp_path / 'farro.db'}"))
        await store.open(clock.now())
        async with asyncio.timeout(0.001):
            for _ in range(20):
                silo = await store.join("127.0.0.1:1", clock.now())
                await store.leave(silo.number, clock.now())
        assert clock.steady() == 0
        await asyncio.sleep(DAY_S)
        await store.close()
        assert clock.steady() == DAY_S * 1e6

    run_virtual(main)


async def test_outside_is_a_plain_await_on_an_ordinary_loop() -> None:
    assert await outside(asyncio.sleep(0, "answer")) == "answer"


def test_outside_work_that_never_answers_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "OUTSIDE_WAIT_MAX_S", 0.01)

    async def main(_clock: VirtualClock) -> None:
        await outside(asyncio.sleep(5))

    with pytest.raises(VirtualTimeError, match="must not wait for virtual time"):
        run_virtual(main)


def test_a_deadlock_is_raised_with_the_name_and_line_of_every_task_that_waits() -> None:
    async def nobody_answers() -> None:
        await asyncio.Event().wait()

    async def main(_clock: VirtualClock) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(nobody_answers(), name="left-hand")
            group.create_task(nobody_answers(), name="right-hand")

    with pytest.raises(VirtualTimeError, match="deadlock") as caught:
        run_virtual(main)
    text = str(caught.value)
    assert "left-hand: Event.wait" in text
    assert "right-hand: Event.wait" in text


def test_a_deadlock_leaves_no_task_and_no_open_loop() -> None:
    ended: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def main(_clock: VirtualClock) -> None:
        loops.append(asyncio.get_running_loop())
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            ended.append("cleaned up")

    with pytest.raises(VirtualTimeError):
        run_virtual(main)
    assert ended == ["cleaned up"]
    assert loops[0].is_closed()


def test_a_loop_that_spins_without_waiting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "SPINS_MAX", 1000)

    async def main(_clock: VirtualClock) -> None:
        for _ in iter(int, 1):
            await asyncio.sleep(0)

    with pytest.raises(VirtualTimeError, match="spins"):
        run_virtual(main)


def test_what_main_raises_comes_out_unchanged() -> None:
    async def main(_clock: VirtualClock) -> None:
        raise KeyError("k")

    with pytest.raises(KeyError, match="k"):
        run_virtual(main)


def test_sockets_within_the_loop_carry_bytes_at_one_instant() -> None:
    async def main(clock: VirtualClock) -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(echo, "127.0.0.1", 0, family=socket.AF_INET)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await outside(asyncio.open_connection("127.0.0.1", port))
            writer.write(b"ping\n")
            answer = await outside(reader.read())
            writer.close()
            await writer.wait_closed()
        assert clock.steady() == 0
        return answer

    assert run_virtual(main) == b"ping\n"


def test_two_runs_of_one_program_take_the_same_steps() -> None:
    async def main(clock: VirtualClock) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []

        async def beat(number: int, every_s: float) -> None:
            for _ in range(20):
                await asyncio.sleep(every_s)
                seen.append((number, clock.now()))

        await asyncio.gather(*(beat(n, 0.1 * (n % 4 + 1)) for n in range(12)))
        return seen

    first = run_virtual(main)
    assert run_virtual(main) == first
    assert len(first) == 240


def test_the_loop_closes_cleanly_after_an_own_executor_was_used() -> None:
    async def main(_clock: VirtualClock) -> int:
        with ThreadPoolExecutor(1) as pool:
            return await asyncio.get_running_loop().run_in_executor(pool, pow, 2, 10)

    assert run_virtual(main) == 1024


async def test_the_virtual_fixture_runs_the_test_on_virtual_time(virtual: VirtualClock) -> None:
    before = virtual.at()
    await asyncio.sleep(30 * DAY_S)
    assert virtual.at() - before == timedelta(days=30)


@pytest.mark.virtual
async def test_the_virtual_marker_does_so_without_the_clock() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    await asyncio.sleep(DAY_S)
    assert loop.time() == DAY_S


async def test_without_marker_and_fixture_a_test_runs_on_an_ordinary_loop() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
