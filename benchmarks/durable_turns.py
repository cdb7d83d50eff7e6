"""P3: durable turns from 64 callers on SQLite FULL, against the raw group commit of the same rows.

Every call changes its grain's state and is answered after its commit: from the same process, through a
client in another one, and with a reminder put and another deleted in the same turn.

    python -m benchmarks.durable_turns [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path

from benchmarks import measuring
from benchmarks.grains import GRAINS, Shipment
from benchmarks.measuring import Goal, Plan, Result, Rounds, Slice, hammer, in_turns, with_cpu
from benchmarks.raw_group_commit import CALLERS, PER_CALLER, Work, raw_group_commit
from benchmarks.serving import serving
from farro.client import Client
from farro.silo import Silo

GOAL = Goal(0.4, later=0.5)
PROBE = "raw group commit"

Turn = Callable[[Shipment], Awaitable[int]]


class Load:
    """The callers, each with grains of its own, and how many of their turns were answered."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self._plan = plan
        self._probes = count()
        self.answered = 0
        self.cpu: dict[Work, Rounds] = {}  # microseconds a turn, of the last measurement of its kind

    async def against_raw(
        self, host: Silo | Client, turn: Turn, work: Work, part: tuple[float, float]
    ) -> Rounds:
        grains = [
            [host.grain(Shipment, f"s-{caller}-{number}") for number in range(PER_CALLER)]
            for caller in range(CALLERS)
        ]
        await asyncio.gather(*(grain.moves() for some in grains for grain in some))  # everybody is awake

        async def call(caller: int, made: int) -> None:
            await turn(grains[caller][made % PER_CALLER])
            self.answered += 1

        async def turns() -> float:
            return await hammer(call, CALLERS, self._plan.seconds)

        ours: list[float] = []
        raw: list[float] = []
        rounds = await in_turns(self._plan, with_cpu(turns, ours), with_cpu(self._raw(work), raw), part=part)
        self.cpu[work] = Rounds(tuple(ours), tuple(raw))
        return rounds

    def _raw(self, work: Work) -> Slice:
        async def probe() -> float:
            path = self._folder / f"raw-{next(self._probes)}.db"
            return await asyncio.to_thread(raw_group_commit, path, self._plan.seconds, work=work)

        return probe


async def run(plan: Plan) -> Result:
    """Three measures; the turns that the file knows of are compared with those that were answered."""
    with tempfile.TemporaryDirectory(prefix="farro-bench-") as name:
        folder = Path(name)
        path = folder / "turns.db"
        store = f"sqlite:///{path}"
        load = Load(folder, plan)
        async with Silo(grains=GRAINS, store=store) as silo:
            inside = await load.against_raw(silo, lambda grain: grain.move(), "state", (0, 0.33))
            cpu = load.cpu["state"]
            chased = await load.against_raw(silo, lambda grain: grain.chase_on(), "turn", (0.33, 0.66))
        async with serving(store) as served, Client(served.address) as client:
            remote = await load.against_raw(client, lambda grain: grain.move(), "state", (0.66, 1))
        stored = _turns_in(path)
    if stored != load.answered:
        raise AssertionError(f"{load.answered} turns were answered and {stored} are in the store")
    return Result(
        "durable_turns",
        "durable turns, 64 callers, SQLite FULL",
        (
            inside.measure("state, callers in process", "turns/s", PROBE, GOAL),
            cpu.measure("the same, CPU a turn", "µs", PROBE),
            remote.measure("state, through a client", "turns/s", PROBE, GOAL),
            chased.measure("state and two reminder rows", "turns/s", PROBE, GOAL),
            load.cpu["turn"].measure("the same, CPU a turn", "µs", PROBE),
        ),
        {"turns answered": load.answered, "turns in the store": stored},
    )


def _turns_in(path: Path) -> int:
    """Every committed turn has moved its grain's version by one."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        (turns,) = connection.execute(
            "SELECT coalesce(sum(version), 0) FROM grains WHERE grain_type = ?", (Shipment.__farro_type__,)
        ).fetchone()
    return int(turns)


if __name__ == "__main__":
    measuring.main(run, __doc__)
