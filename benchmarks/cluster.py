"""P9 and the bounds of a cluster: what a second silo process adds, a take-over, what grain ids cost.

* Calls: each silo runs its own callers on grains that live in it, so that no client takes part of a core; the
  probe is one silo that does the same alone.  Beside it: grains anywhere in the cluster, half of them remote.
* Take-over: a silo with half of 1,024 partitions is killed; until every partition has an owner again.
* Directory: finding the owner of each of ten million grain ids leaves nothing behind.

    python -m benchmarks.cluster [--seconds 2] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psutil

from benchmarks import measuring
from benchmarks.measuring import Goal, Measure, Plan, Result, in_turns
from farro.client.client import Client
from farro.client.cluster_map import ClusterMap
from farro.client.identity import partition_of
from tests.cluster.chaos_grains import Hammer
from tests.cluster.evidence import create_store
from tests.cluster.stage import Place, Stage, stage
from tests.support import servers

PARTITIONS = 1_024
CALLERS = 16  # grains that call, on each silo
ASIDE = 64  # grains that are called, on each silo
SPREAD_MAX_S = 60.0
TAKEN_MAX_S = 30.0
DIRECTORY_BYTES_MAX = 1_000_000  # of ten million ids: far below one byte each


@asynccontextmanager
async def two_places(folder: Path) -> AsyncGenerator[tuple[Stage, str]]:
    """Two places of a direct stage, no silo in them yet, and the store's address."""
    with servers.postgres(fsync="on") as server:
        url = f"postgresql://farro@127.0.0.1:{server.port}/postgres"
        await create_store(url)
        async with stage(folder, 2, lambda place, process: url, direct=True) as built:
            yield built, url


async def run(plan: Plan) -> Result:
    with tempfile.TemporaryDirectory(prefix="farro-cluster-", dir=os.environ.get("FARRO_TEST_TMP")) as folder:
        async with two_places(Path(folder)) as (built, url):
            first, second = built.places
            one = await _started(built, first)
            async with Client(f"http://{first.address}") as client:
                alone = await _homes(client, {one})
                rate = await _calls(client, alone, plan.seconds)  # everybody is awake
                two = await _started(built, second)
                both = await _homes(client, {one, two})
                near = await in_turns(
                    plan,
                    lambda: _calls(client, both, plan.seconds),
                    lambda: _calls(client, {one: both[one]}, plan.seconds),
                    part=(0, 0.4),
                )
                far = await in_turns(
                    plan,
                    lambda: _calls(client, both, plan.seconds, anywhere=True),
                    lambda: _calls(client, {one: both[one]}, plan.seconds),
                    part=(0.4, 0.7),
                )
                plan.report(0.7)
            taken_s, partitions = await _take_over(built, second, url)
            plan.report(0.9)
    ids = plan.size(10_000_000, 10_000)
    grown = _directory_bytes(ids)
    return Result(
        "cluster",
        "two silo processes, a take-over, the directory",
        (
            near.measure("calls, two silos, each its own grains", "calls/s", "one silo", Goal(1.7)),
            far.measure("calls, two silos, grains anywhere", "calls/s", "one silo"),
            Measure(
                f"take-over of {partitions} partitions",
                taken_s,
                "s",
                goal=Goal(2.0, at_most=True, of_value=True),
            ),
            Measure(
                f"memory for {ids:,} grain ids",
                grown / 1e6,
                "MB",
                goal=Goal(DIRECTORY_BYTES_MAX / 1e6, at_most=True, of_value=True),
            ),
        ),
        {"calls/s of the first silo before the second came": rate},
    )


async def _started(built: Stage, place: Place) -> int:
    async with place.lock:
        return (await built.start(place)).pid


async def _homes(client: Client, processes: set[int]) -> dict[int, list[str]]:
    """Callers and callees by the process they live in, ``CALLERS + ASIDE`` of each.

    Waits until the partitions have spread evenly enough, so that none moves while calls are counted.
    """
    keys = [f"h{number}" for number in range(4 * (CALLERS + ASIDE))]
    before: dict[int, list[str]] = {}
    async with asyncio.timeout(SPREAD_MAX_S):
        while True:
            pids = await asyncio.gather(*(client.grain(Hammer, key).process() for key in keys))
            homes: dict[int, list[str]] = {}
            for key, pid in zip(keys, pids, strict=True):
                homes.setdefault(pid, []).append(key)
            enough = all(len(homes.get(pid, ())) >= CALLERS + ASIDE for pid in processes)
            if enough and homes == before:
                return {pid: homes[pid][: CALLERS + ASIDE] for pid in processes}
            before = homes
            await asyncio.sleep(1.0)  # longer than a round of moves takes


async def _calls(
    client: Client, homes: dict[int, list[str]], seconds: float, *, anywhere: bool = False
) -> float:
    """Calls per second of all callers together; each calls one grain after the other."""
    everywhere = [key for keys in homes.values() for key in keys[CALLERS:]]

    async def hammer(caller: str, callees: list[str]) -> int:
        return await client.grain(Hammer, caller, timeout=seconds + 30.0).hammer(callees, seconds)

    counts = await asyncio.gather(
        *(
            hammer(caller, everywhere if anywhere else keys[CALLERS:])
            for keys in homes.values()
            for caller in keys[:CALLERS]
        )
    )
    return sum(counts) / seconds


async def _take_over(built: Stage, place: Place, url: str) -> tuple[float, int]:
    """Seconds from SIGKILL until the survivor owns everything, and how many partitions changed hands."""
    connection = await asyncpg.connect(url)
    try:
        dying = place.serving
        before = await connection.fetchval(
            "SELECT count(*) FROM farro.partitions WHERE owner = $1", dying.number
        )
        begun = asyncio.get_running_loop().time()
        await dying.kill()
        async with asyncio.timeout(TAKEN_MAX_S):
            while await connection.fetchval(  # noqa: ASYNC110 - another process takes them
                "SELECT count(*) FROM farro.partitions WHERE owner IS NULL OR owner = $1", dying.number
            ):
                await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - begun, int(before)
    finally:
        await connection.close()


def _directory_bytes(ids: int) -> int:
    """How much the process grows while the owner of each id is found, as the router and clients find it."""
    map_ = ClusterMap(
        view=1,
        partitions=PARTITIONS,
        addresses={1: "http://127.0.0.1:1", 2: "http://127.0.0.1:2"},
        owners=tuple(1 + number % 2 for number in range(PARTITIONS)),
    )
    process = psutil.Process()
    growths: list[int] = []
    found = [0, 0, 0]
    for part in range(2):  # what the first half makes the interpreter keep for itself is not the directory
        before = process.memory_info().rss
        for number in range(part * ids // 2, (part + 1) * ids // 2):
            found[map_.owner_of(partition_of("bench.echo", f"e-{number}", PARTITIONS))] += 1
        growths.append(process.memory_info().rss - before)
    if sum(found) != ids or not found[1] or not found[2]:
        raise AssertionError(f"{found} of {ids} ids have an owner")
    return max(0, min(growths))


if __name__ == "__main__":
    measuring.main(run, __doc__)
