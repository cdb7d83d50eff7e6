"""P10: what a silo costs that does nothing: CPU, wake-ups, and memory per idle activation.

Measured from outside, on a silo in a process of its own.  The probe of the memory is the same number of bare
objects with a dict, by key.

    python -m benchmarks.idle [--seconds 1] [--smoke]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import psutil

from benchmarks import measuring
from benchmarks.grains import Echo, Shipment
from benchmarks.measuring import Goal, Measure, Plan, Result
from benchmarks.serving import serving
from farro.client import Client

SLICE_PARTS = 10  # CPU of an idle process is counted in ticks of 10 ms
IN_FLIGHT = 500
WARM = 1_000  # the first activations pay for pools and caches
BYTES_MAX = 1_024
CPU_PERCENT_MAX = 0.3


async def run(plan: Plan) -> Result:
    grains = plan.size(50_000, 500)
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        async with serving(f"sqlite:///{Path(name) / 'idle.db'}") as served:
            process = psutil.Process(served.pid)
            await asyncio.sleep(plan.seconds)
            plan.report(0.1)
            cpu, wakes = await idle_cost(process, plan.seconds * SLICE_PARTS)
            plan.report(0.6)
            async with Client(served.address) as client:
                plain = await bytes_each(client, process, "echo", grains)
                plan.report(0.8)
                stateful = await bytes_each(client, process, "moves", grains)
                plan.report(1)
    bare = sys.getsizeof(_Bare("b-10000").__dict__) + sys.getsizeof(_Bare("")) + sys.getsizeof("b-10000")
    goal = Goal(BYTES_MAX, True, of_value=True)
    return Result(
        "idle",
        f"an idle silo, SQLite, {grains:,} activations",
        (
            Measure("CPU", cpu, "% of a core", goal=Goal(CPU_PERCENT_MAX, True, of_value=True)),
            Measure("wake-ups", wakes, "a second"),
            _beside(Measure("activation without state", plain, "bytes", goal=goal), bare),
            _beside(Measure("activation with state", stateful, "bytes", goal=goal), bare),
        ),
    )


class _Bare:
    """An object with a dict."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.busy = False
        self.mailbox = None
        self.target = None


def _beside(measure: Measure, bare: float) -> Measure:
    return Measure(
        name=measure.name,
        value=measure.value,
        unit=measure.unit,
        probe=bare,
        probe_name="bare object",
        ratio=measure.value / bare,
        goal=measure.goal,
    )


async def idle_cost(process: psutil.Process, seconds: float) -> tuple[float, float]:
    """Percent of a core, and how often its event loop woke up a second."""
    before, switched = process.cpu_times(), process.num_ctx_switches().voluntary
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    busy = after.user - before.user + after.system - before.system
    return busy / seconds * 100, (process.num_ctx_switches().voluntary - switched) / seconds


async def bytes_each(client: Client, process: psutil.Process, method: str, grains: int) -> float:
    """Resident bytes that one more idle activation costs, its grain object and state included."""

    async def wake(begin: int, end: int) -> None:
        for first in range(begin, end, IN_FLIGHT):
            keys = range(first, min(first + IN_FLIGHT, end))
            if method == "echo":
                await asyncio.gather(*(client.grain(Echo, f"b-{key}").echo(key) for key in keys))
            else:
                await asyncio.gather(*(client.grain(Shipment, f"b-{key}").moves() for key in keys))

    await wake(0, WARM)
    before = process.memory_info().rss
    await wake(WARM, WARM + grains)
    return (process.memory_info().rss - before) / grains


if __name__ == "__main__":
    measuring.main(run, __doc__)
