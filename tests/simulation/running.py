"""Runs one seed and judges it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from random import Random

from farro.silo.testing.simulated_cluster import SimulatedCluster
from tests.simulation import invariants
from tests.simulation.grains import GRAINS, World
from tests.simulation.histories import History
from tests.simulation.scenario import Mood, Scenario

Bug = Callable[[SimulatedCluster], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a seed.  ``findings``: broken invariants, each with its name; empty is good."""

    seed: int
    findings: list[str]
    digest: str
    figures: dict[str, int]


class _Overheard(logging.Handler):
    """What the runtime itself calls a defect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "farro.defects" or (
            record.name == "farro.tasks" and record.msg.startswith("task ")
        ):
            error = record.exc_info[1] if record.exc_info else None
            self.records.append(f"{record.name}: {record.getMessage()}" + (f": {error!r}" if error else ""))


def run(
    seed: int,
    planted: Bug | None = None,
    listener: Callable[[str], None] | None = None,
    digest: bool = False,
) -> Verdict:
    """Ten virtual minutes of that seed, with a planted bug if one is given."""
    random = Random(f"scenario {seed}")
    mood = Mood.drawn(random)
    overheard = _Overheard()
    logger = logging.getLogger("farro")
    before = logger.level, logger.propagate
    logger.addHandler(overheard)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        with SimulatedCluster(
            GRAINS, seed=f"cluster {seed}", silos=mood.silos, options=mood.options, listener=listener
        ) as cluster:
            World.history = history = History(cluster, random)
            cluster.tell(f"seed {seed}: {mood}")
            with nullcontext() if planted is None else planted(cluster):
                Scenario(cluster, history, mood).run()
            findings = invariants.broken(cluster, history)
            findings += [f"defect: {record}" for record in overheard.records]
            findings += [f"not caught: {failure}" for failure in cluster.simulation.failures]
            figures = {
                "log": len(cluster.store.log),
                "calls": len(history.calls),
                "answered": sum(not call.error for call in history.calls),
                "ticks": len(history.begun),
            }
            return Verdict(seed, findings, cluster.store.digest() if digest else "", figures)
    finally:
        logger.removeHandler(overheard)
        logger.setLevel(before[0])
        logger.propagate = before[1]
