"""Real silos on a real store, everything going wrong by a seeded plan, and the proof that nothing was lost.

    python -m tests.cluster.chaos --minutes 10 --seed 1                       PostgreSQL, three silos
    python -m tests.cluster.chaos --minutes 10 --seed 1 --store sqlite        one file, several processes

Runs in episodes of at most five minutes, each on a fresh store with the next seed; ``--seed`` and the same
length draw an episode's plan again.  The plan replays, the operating system's scheduling does not.

Each chime ticks once a second: a hundred thousand ticks are ``--chimes 200 --minutes 10`` (``make chaos
MINUTES=10 ARGS="--chimes 200"``), about twelve minutes with what comes before and after the faults.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.cluster.checker import Findings, check
from tests.cluster.evidence import commits_noted, create_store, read_stored, take_notes
from tests.cluster.faults import NEEDS_SERVER, Fault, Kind, draw
from tests.cluster.history import History, Stored
from tests.cluster.inflicting import Faulty
from tests.cluster.stage import PROCESSES_MAX, stage
from tests.cluster.workload import MARGIN_S, Load, Workload, silent_grains
from tests.support import servers

EPISODE_MAX_S = 300.0
SERVED_AGAIN_MAX_S = 30.0
CALM_S = 3.0  # after the last fault, before everything is asked
OVERDUE_MAX_S = 5.0  # of a reminder, once all is well
STANDS_MAX_S = 60.0  # of one that is overdue then, on the same occurrence

Say = Callable[[str], None]


def silence(text: str) -> None:
    """Says nothing."""


@dataclass(slots=True)
class Report:
    """What one episode did and found.  ``silent``: grains and chimes that were not served afterwards."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    history: History = field(default_factory=History)
    stored: Stored | None = None
    findings: Findings = field(default_factory=Findings)
    silent: list[str] = field(default_factory=list)
    unasked_ends: list[str] = field(default_factory=list)
    starts_failed: list[str] = field(default_factory=list)

    @property
    def ticks(self) -> int:
        return 0 if self.stored is None else sum(len(chime.ticks) for chime in self.stored.chimes)

    @property
    def proven(self) -> bool:
        return self.findings.none and not self.silent

    def __str__(self) -> str:
        made = self.history.made
        ok = sum(each.ok for each in made)
        errors = Counter(f"{each.error} ({each.turn_ran})" for each in made if not each.ok)
        commits = None if self.stored is None or self.stored.commits is None else len(self.stored.commits)
        lines = [
            f"seed {self.seed}: faults {_counts(self.faults)}",
            f"  {len(made)} calls, {ok} ok; failed: {_counts(errors)}; {len(self.history.reads)} reads;"
            f" {self.ticks} ticks; {commits if commits is not None else 'no'} commits noted",
            str(self.findings),
            *(f"  silent afterwards: {each}" for each in self.silent[:10]),
            *(f"  ended by itself: {each}" for each in self.unasked_ends[:10]),
            *(f"  did not start: {each}" for each in self.starts_failed[:3]),
            f"  {'PROVEN' if self.proven else 'VIOLATED'}",
        ]
        return "\n".join(lines)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common()) or "none"


@dataclass(frozen=True, slots=True)
class Setting:
    """One episode.  ``kinds`` None: all that the store allows."""

    seed: int
    seconds: float
    places: int = 3
    store: str = "postgres"
    load: Load = field(default_factory=Load)
    kinds: frozenset[Kind] | None = None

    def plan(self) -> tuple[Fault, ...]:
        kinds = frozenset(Kind) if self.kinds is None else self.kinds
        if self.store == "sqlite":
            # a process that is frozen inside its write holds the others up: that is its supervisor's to end
            kinds = kinds - NEEDS_SERVER - {Kind.FREEZE}
        return draw(Random(self.seed), self.seconds, self.places, kinds)


async def episode(setting: Setting, folder: Path, say: Say = silence) -> Report:
    """Raises what no plan foresees: a silo that never starts, a harness that is wrong."""
    report = Report(setting.seed)
    plan = setting.plan()
    async with _faulty(setting, folder) as (faulty, store_url):
        await faulty.stage.start_all()
        workload = Workload(faulty.stage.addresses, setting.load, setting.seed)
        report.history = workload.history
        working = asyncio.create_task(workload.run(), name="workload")
        try:
            await _carry_out(plan, faulty, report, say)
            say("all is well again: does everything serve?")
            await asyncio.sleep(CALM_S)
            report.silent += await silent_grains(faulty.stage.addresses, workload, SERVED_AGAIN_MAX_S)
        finally:
            workload.stop()
            await working
        report.silent += [f"chime {key} was never started" for key in workload.not_started]
        await _caught_up(workload, store_url)
        await faulty.stage.close()  # what is read must not move meanwhile: it is read in pages
        commits = await commits_noted(store_url) if faulty.server is not None else None
        report.stored = await read_stored(store_url, workload.ledgers, workload.chimes, commits)
        report.findings = check(report.history, report.stored, margin_s=MARGIN_S)
        report.unasked_ends = faulty.stage.unasked_ends
        report.starts_failed = faulty.stage.starts_failed
    return report


async def _carry_out(plan: tuple[Fault, ...], faulty: Faulty, report: Report, say: Say) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for fault in plan:
            await asyncio.sleep(max(0.0, begun + fault.at_s - loop.time()))
            say(f"{loop.time() - begun:6.1f} s  planned {fault}")
            report.faults[fault.kind.value] += 1
            tasks.create_task(faulty.inflict(fault), name=str(fault))
    faulty.heal()


async def _caught_up(workload: Workload, store_url: str) -> None:
    """Wait until no reminder is overdue, or until one has not moved for too long and the checker says so.

    Under FIRE_ALL a reminder that was a minute behind catches up tick by tick, on a crowded machine slowly.
    """
    loop = asyncio.get_running_loop()
    stands: dict[str, tuple[int, float]] = {}  # the occurrence it owes, and since when
    while True:
        stored = await read_stored(store_url, (), workload.chimes, None)
        now, before, stands = loop.time(), stands, {}
        for chime in stored.chimes:
            due = None if chime.row is None else chime.row.next_due_at
            if due is not None and due <= stored.read_at - OVERDUE_MAX_S * 1e6:
                since = before.get(chime.key, (due, now))
                stands[chime.key] = since if since[0] == due else (due, now)
        if not stands or min(since for _, since in stands.values()) < now - STANDS_MAX_S:
            return
        await asyncio.sleep(0.5)


@asynccontextmanager
async def _faulty(setting: Setting, folder: Path) -> AsyncGenerator[tuple[Faulty, str]]:
    """The store and its silos, not started; and the store's address for the harness itself."""
    chance = Random(f"{setting.seed}/network")
    async with AsyncExitStack() as stack:
        if setting.store == "sqlite":
            file = folder / "chaos.db"
            url = f"sqlite:///{file}"
            await create_store(url)
            built = stage(folder, setting.places, lambda place, process: url, chance=chance)
            yield Faulty(await stack.enter_async_context(built), file=file), url
            return
        # in this thread: the kernel ends the server with the thread that started it
        server = stack.enter_context(servers.postgres(wal_segment_mb=1))
        url = f"postgresql://farro@127.0.0.1:{server.port}/postgres"
        await create_store(url)
        await take_notes(url, PROCESSES_MAX)
        built = stage(
            folder,
            setting.places,
            lambda place, process: f"postgresql://silo_{process}@{place.store.address}/postgres",  # type: ignore[union-attr]
            database=("127.0.0.1", server.port),
            chance=chance,
        )
        yield Faulty(await stack.enter_async_context(built), server=server), url


async def main(given: argparse.Namespace) -> int:
    left_s, seed, ticks, violated = given.minutes * 60.0, given.seed, 0, 0
    load = Load(given.callers, given.think, given.chimes, given.ticks_each)
    kinds = frozenset(Kind(name) for name in given.kind) if given.kind else None
    while left_s > 0:
        seconds = min(left_s, EPISODE_MAX_S)
        setting = Setting(seed, seconds, given.silos, given.store, load, kinds)
        folder = Path(tempfile.mkdtemp(prefix="farro-chaos-", dir=os.environ.get("FARRO_TEST_TMP")))
        print(
            f"seed {seed}: {seconds:.0f} s on {given.store}, {given.silos} silos; logs in {folder}",
            flush=True,
        )
        report = await episode(setting, folder, lambda text: print(f"  {text}", flush=True))
        print(report, flush=True)
        ticks += report.ticks
        violated += not report.proven
        left_s, seed = left_s - seconds, seed + 1
    print(f"{seed - given.seed} episodes, {ticks} ticks in all, {violated} violated", flush=True)
    return 1 if violated else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--callers", type=int, default=Load().callers)
    parser.add_argument(
        "--think", type=float, default=Load().think_s, help="seconds between a caller's calls"
    )
    parser.add_argument("--chimes", type=int, default=Load().chimes, help="reminders of one second each")
    parser.add_argument("--ticks-each", type=int, default=Load().ticks_each)
    parser.add_argument("--kind", action="append", choices=[kind.value for kind in Kind], help="only these")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(_arguments())))
