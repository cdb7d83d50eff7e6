"""Failover: how long calls fail when a silo is killed, frozen, cut off or restarted, and the database too.

Three silo processes on one PostgreSQL (from a wheel), nothing between clients and silos.  Every figure is
taken by calls that commit: from the fault to the first answer of a grain's new owner.

    python -m benchmarks.failover [--what kill ...] [--rounds 100] [--smoke]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import asyncpg

from benchmarks.measuring import Goal, Measure, Plan, Result, lines_of, percentile, smoke_plan
from benchmarks.three_silos import SILOS, TRY_S, Cluster, cluster_of_three, until_answered
from farro.client.errors import FarroError, SiloUnavailable
from tests.cluster.chaos_grains import Ledger
from tests.support.tcp_proxy import CUT

TURN_S = 0.05  # the turns that a planned restart meets
CALLED = 16  # grains that are called without a break meanwhile: more would measure the machine
CALM_S = 1.0  # of calls before and after a restart
DATABASE_AWAY_S = 8.0
ALONE_AFTER_S = 5.0
ROUNDS = {"kill": 100, "freeze": 20, "cut": 20, "restart": 20, "database": 3, "all": 5}


@dataclass
class Waits:
    """Seconds from a fault to the first answer: of one grain a fault, and of the last grain of each."""

    first: list[float] = field(default_factory=list)
    all: list[float] = field(default_factory=list)

    def measures(self, what: str, goal_s: float) -> list[Measure]:
        return [
            Measure(f"{what}: a grain, p50", percentile(self.first, 0.5), "s"),
            Measure(f"{what}: p99", percentile(self.first, 0.99), "s", goal=at_most(goal_s)),
            Measure(f"{what}: max", max(self.first), "s"),
            Measure(f"{what}: all its grains, max", max(self.all), "s"),
        ]


def at_most(bound: float) -> Goal:
    return Goal(bound, at_most=True, of_value=True)


async def waits_of(cluster: Cluster, keys: list[str], begun: float) -> list[float]:
    """Seconds from ``begun`` to the first answered call of each."""
    loop = asyncio.get_running_loop()

    async def one(key: str) -> float:
        await until_answered(lambda: cluster.add(key))
        return loop.time() - begun

    return list(await asyncio.gather(*map(one, keys)))


# ---- the faults


async def kills(cluster: Cluster, rounds: int, report: Callable[[float], None]) -> list[Measure]:
    """SIGKILL; the next round begins as soon as another process serves there."""
    waits = Waits()
    for number in range(rounds):
        place = cluster.stage.places[number % SILOS]
        keys = await cluster.victims(place)
        begun = asyncio.get_running_loop().time()
        dying = place.serving
        dying.asked_to_end = True
        dying.signal(signal.SIGKILL)
        note(waits, await waits_of(cluster, keys, begun), cluster.chance)
        async with place.lock:
            await dying.end()
            await cluster.stage.start(place)
        report((number + 1) / rounds)
    return waits.measures("killed", 1.0)


async def freezes(cluster: Cluster, rounds: int, report: Callable[[float], None]) -> list[Measure]:
    waits = Waits()
    for number in range(rounds):
        place = cluster.stage.places[number % SILOS]
        keys = await cluster.victims(place)
        begun = asyncio.get_running_loop().time()
        place.serving.signal(signal.SIGSTOP)
        try:
            note(waits, await waits_of(cluster, keys, begun), cluster.chance)
        finally:
            place.serving.signal(signal.SIGCONT)
        report((number + 1) / rounds)
    return waits.measures("frozen", 6.0)


async def cuts(cluster: Cluster, rounds: int, report: Callable[[float], None]) -> list[Measure]:
    """Nothing passes between one silo and the database."""
    waits = Waits()
    for number in range(rounds):
        place = cluster.stage.places[number % SILOS]
        assert place.store is not None
        keys = await cluster.victims(place)
        begun = asyncio.get_running_loop().time()
        place.store.become(up=CUT, down=CUT)
        try:
            note(waits, await elsewhere(cluster, keys, begun, place.serving.pid), cluster.chance)
        finally:
            place.store.heal()
        report((number + 1) / rounds)
    return waits.measures("cut off from the database", 6.0)


async def elsewhere(cluster: Cluster, keys: list[str], begun: float, not_in: int) -> list[float]:
    """As :func:`waits_of`: a grain that is asked where it is must be in another process by then."""
    loop = asyncio.get_running_loop()

    async def one(key: str) -> float:
        async def moved() -> int:
            if (pid := await cluster.client.grain(Ledger, key, timeout=TRY_S).process()) == not_in:
                raise SiloUnavailable("it is still served where it was")
            return pid

        await until_answered(moved)
        await until_answered(lambda: cluster.add(key))
        return loop.time() - begun

    return list(await asyncio.gather(*map(one, keys)))


async def restarts(cluster: Cluster, rounds: int, report: Callable[[float], None]) -> list[Measure]:
    """SIGTERM while grains are called without a break: failed calls, and the longest gap of those moved."""
    pauses: list[float] = []
    failed: list[str] = []
    answered = 0
    for number in range(rounds):
        place = cluster.stage.places[number % SILOS]
        moved = await cluster.victims(place)
        others = [key for key in cluster.keys if key not in moved]
        called = moved[: CALLED // 2] + others[: CALLED // 2]
        over = asyncio.Event()
        callers = [asyncio.create_task(call_on(cluster, key, over, failed)) for key in called]
        await asyncio.sleep(CALM_S)
        async with place.lock:
            await place.serving.stop()
            await asyncio.sleep(CALM_S)
            over.set()
            for key, (gap, calls) in zip(called, await asyncio.gather(*callers), strict=True):
                answered += calls
                if key in moved:
                    pauses.append(max(0.0, gap - TURN_S))
            await place.serving.end()
            await cluster.stage.start(place)
        report((number + 1) / rounds)
    for text in failed[:5]:
        print(f"failed: {text}", file=sys.stderr)
    return [
        Measure(f"restarted: failed calls of {answered + len(failed)}", len(failed), "", goal=at_most(0)),
        Measure("restarted: pause of a grain, p50", percentile(pauses, 0.5) * 1e3, "ms"),
        Measure("restarted: p99", percentile(pauses, 0.99) * 1e3, "ms", goal=at_most(250)),
        Measure("restarted: max", max(pauses) * 1e3, "ms"),
    ]


async def call_on(cluster: Cluster, key: str, over: asyncio.Event, failed: list[str]) -> tuple[float, int]:
    """The longest time between two answers, and how many there were."""
    loop = asyncio.get_running_loop()
    longest, answered, last = 0.0, 0, loop.time()
    grain = cluster.client.grain(Ledger, key, timeout=10.0)
    while not over.is_set():
        cluster.calls += 1
        try:
            await grain.add_slowly(cluster.calls, TURN_S)
        except FarroError as error:
            failed.append(f"{key}: {type(error).__name__}: {error}")
            continue
        now = loop.time()
        longest, answered, last = max(longest, now - last), answered + 1, now
    return longest, answered


async def database_restarts(cluster: Cluster, rounds: int, report: Callable[[float], None]) -> list[Measure]:
    """As ``pg_ctl -m immediate``, away for some seconds; service from the moment it accepts again."""
    waits: list[float] = []
    before = await ended_silos(cluster.url)
    for number in range(rounds):
        await cluster.homes()
        await asyncio.to_thread(cluster.server.stop, signal.SIGQUIT)
        waiting = asyncio.create_task(served_at(cluster))
        await asyncio.sleep(DATABASE_AWAY_S)
        # in this thread: the kernel ends the server with the thread that started it
        cluster.server.start()
        accepts = asyncio.get_running_loop().time()
        waits += [at - accepts for at in await waiting]
        report((number + 1) / rounds)
    evicted = await ended_silos(cluster.url) - before
    return [
        Measure("database away for 8 s: silos evicted", evicted, "", goal=at_most(0)),
        Measure("database: served after it accepts, p50", percentile(waits, 0.5), "s"),
        Measure("database: max", max(waits), "s", goal=at_most(2.0)),
    ]


async def served_at(cluster: Cluster) -> list[float]:
    loop = asyncio.get_running_loop()

    async def one(key: str) -> float:
        await until_answered(lambda: cluster.add(key))
        return loop.time()

    return list(await asyncio.gather(*map(one, cluster.keys)))


async def ended_silos(url: str) -> int:
    """How many were taken for dead."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM farro.silos WHERE status = 'dead'"))
    finally:
        await connection.close()


async def kill_all(cluster: Cluster, rounds: int, report: Callable[[float], None]) -> list[Measure]:
    """All at once; one of them is started some seconds later and serves everything."""
    waits: list[float] = []
    for number in range(rounds):
        await cluster.homes()
        begun = asyncio.get_running_loop().time()
        for place in cluster.stage.places:
            place.serving.asked_to_end = True
            place.serving.signal(signal.SIGKILL)
        for place in cluster.stage.places:
            await place.serving.end()
        await asyncio.sleep(ALONE_AFTER_S)
        first, *others = cluster.stage.places
        starting = asyncio.create_task(cluster.stage.start(first))
        waits.append(max(await waits_of(cluster, cluster.keys, begun)))
        await starting
        await asyncio.gather(*map(cluster.stage.start, others))
        report((number + 1) / rounds)
    return [
        Measure("all killed, one started 5 s later: served after, p50", percentile(waits, 0.5), "s"),
        Measure("all killed: max", max(waits), "s", goal=at_most(15.0)),
    ]


def note(waits: Waits, found: list[float], chance: Random) -> None:
    waits.first.append(chance.choice(found))
    waits.all.append(max(found))


# ---- the run

Fault = Callable[[Cluster, int, Callable[[float], None]], Awaitable[list[Measure]]]
FAULTS: dict[str, Fault] = {
    "kill": kills,
    "freeze": freezes,
    "cut": cuts,
    "restart": restarts,
    "database": database_restarts,
    "all": kill_all,
}


async def run(plan: Plan, what: tuple[str, ...] = tuple(FAULTS), rounds: int | None = None) -> Result:
    """Every kind of fault in turn on one cluster; ``rounds`` None: as many as each kind needs."""
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(
        prefix="farro-failover-", dir=os.environ.get("FARRO_TEST_TMP")
    ) as folder:
        async with cluster_of_three(Path(folder)) as cluster:
            for number, name in enumerate(what):
                begin = number / len(what)
                times = plan.size(rounds or ROUNDS[name], 1)
                report = _part(plan.report, begin, 1 / len(what))
                measures += await FAULTS[name](cluster, times, report)
            ends = list(cluster.stage.unasked_ends)
    if ends:
        raise AssertionError(f"silos ended by themselves: {'; '.join(ends)}")
    return Result("failover", "three silos on PostgreSQL, faults of every kind", tuple(measures))


def _part(report: Callable[[float], None], begin: float, length: float) -> Callable[[float], None]:
    return lambda done: report(begin + length * done)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", nargs="+", choices=sorted(FAULTS), default=list(FAULTS))
    parser.add_argument("--rounds", type=int, help="of each kind")
    parser.add_argument("--smoke", action="store_true", help="only prove that it runs")
    given = parser.parse_args()
    result = asyncio.run(run(smoke_plan() if given.smoke else Plan(), tuple(given.what), given.rounds))
    sys.stdout.write("\n".join(lines_of(result, smoke=given.smoke)) + "\n")


if __name__ == "__main__":
    main()
