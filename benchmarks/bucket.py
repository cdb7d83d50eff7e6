"""The constants of the bucket: base_bucket_size from 256 to 16,384, permits from 1 to 16 for each CPU.

A backlog of Background reminders is worked off, a hundred Critical ones fall due each second, and two callers
call a grain without state, as in ``priority``.  Ticks take no time of their own here, and one line is for
handlers that wait for ten milliseconds: permits matter to those.

    python -m benchmarks.bucket [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import ClassVar

import psutil

from benchmarks import measuring
from benchmarks.grains import Echo, Ticking
from benchmarks.measuring import Measure, Plan, Result, percentile
from benchmarks.priority import BACKGROUND, CALLERS, CRITICAL, CRITICALS, criticals
from benchmarks.stores import backlog, store_with
from farro.silo import ReminderOptions, Silo, SiloOptions

SIZES = (256, 1_024, 4_096, 16_384)
PERMITS = (1, 4, 16)
HANDLER_S = (0.0, 0.01)
SLICE_PARTS = 2
MEGABYTE = 1e6


class Waiting(Ticking, name=Ticking.__farro_type__):
    """Its Background ticks wait for something else before they are done."""

    handler_s: ClassVar[float] = 0.0

    async def background(self) -> None:
        await super().background()
        if self.handler_s:
            await asyncio.sleep(self.handler_s)


@dataclass(frozen=True, slots=True)
class Setting:
    size: int
    permits: int
    handler_s: float

    def __str__(self) -> str:
        handlers = f", handlers of {self.handler_s * 1e3:g} ms" if self.handler_s else ""
        return f"{self.size:,} entries, {self.permits} permits/CPU{handlers}"


@dataclass(frozen=True, slots=True)
class Figures:
    rate: float
    critical_ms: float
    call_ms: float
    megabytes: float


def settings(smoke: bool) -> list[Setting]:
    """Every size with the default permits, every number of permits with the default size."""
    if smoke:
        return [Setting(256, 1, 0.0), Setting(1_024, 4, 0.01)]
    sizes = [Setting(size, 4, 0.0) for size in SIZES]
    permits = [Setting(1_024, permits, wait) for wait in HANDLER_S for permits in PERMITS]
    return list(dict.fromkeys([*sizes, *permits]))


async def run(plan: Plan) -> Result:
    size = plan.size(100_000, 300)
    seconds = max(plan.seconds * SLICE_PARTS, 1.2)
    wanted = settings(plan.smoke)
    found: dict[Setting, list[Figures]] = {each: [] for each in wanted}
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        for number in range(plan.rounds):
            # every other round backwards: what grows warm or full in between favours nobody
            for done, each in enumerate(wanted if number % 2 == 0 else reversed(wanted), 1):
                found[each].append(await one_slice(Path(name), size, each, seconds))
                plan.report((number + done / len(wanted)) / plan.rounds)
    measures = [measure for each in wanted for measure in measures_of(each, found[each])]
    return Result("bucket", f"bucket and permits under {size:,} overdue reminders", tuple(measures))


def measures_of(setting: Setting, figures: list[Figures]) -> list[Measure]:
    return [
        Measure(f"{setting}: backlog", median(each.rate for each in figures), "ticks/s"),
        Measure("  Critical, lateness p99", median(each.critical_ms for each in figures), "ms"),
        Measure("  call, p99", median(each.call_ms for each in figures), "ms"),
        Measure("  resident memory, grown by", median(each.megabytes for each in figures), "MB"),
    ]


async def one_slice(folder: Path, size: int, setting: Setting, seconds: float) -> Figures:
    filled = without(folder / "filled.db")
    overdue = backlog(size, BACKGROUND, first=CRITICALS)
    await store_with(filled, chain(overdue, criticals()))
    Ticking.begin()
    Waiting.handler_s = setting.handler_s
    options = SiloOptions(
        reminders=ReminderOptions(base_bucket_size=setting.size, permits_per_cpu=setting.permits)
    )
    took: list[float] = []
    process = psutil.Process()
    before = process.memory_info().rss
    begun = perf_counter()
    async with Silo(
        grains=(Echo, Waiting), store=f"sqlite:///{filled}", listen=None, options=options
    ) as silo:
        await asyncio.gather(*(caller(silo, number, begun + seconds, took) for number in range(CALLERS)))
        grown = process.memory_info().rss - before
        served, late = len(Ticking.noted(BACKGROUND)), list(Ticking.noted(CRITICAL))
    if not late or not served:
        raise AssertionError(f"{setting}: {len(late)} Critical and {served} Background ticks")
    return Figures(served / seconds, percentile(late, 0.99) / 1e3, percentile(took, 0.99), grown / MEGABYTE)


def without(path: Path) -> Path:
    """The path, of which nothing is there any more."""
    for side in ("", "-wal", "-shm", ".lock"):
        Path(f"{path}{side}").unlink(missing_ok=True)
    return path


async def caller(silo: Silo, number: int, until: float, took: list[float]) -> None:
    """A thousand calls a second at most: latency is asked for, not throughput."""
    grain = silo.grain(Echo, f"e-{number}")
    while (begun := perf_counter()) < until:
        await grain.echo(number)
        took.append((perf_counter() - begun) * 1e3)
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    measuring.main(run, __doc__)
