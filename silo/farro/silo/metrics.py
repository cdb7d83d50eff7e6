"""A silo's figures at one moment, as plain frozen values: for programs, benchmarks and exporters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatenessFigures:
    """How late ticks of one priority began, in seconds.  Quantiles are upper bounds of histogram bins."""

    count: int
    p50_s: float
    p99_s: float
    max_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """The bucket and the factors of its size."""

    size: int
    held: int
    held_peak: int
    ready: int
    cpus: float
    memory_load: float
    active_grains: int


@dataclass(frozen=True, slots=True)
class PermitFigures:
    total: int
    held: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ReminderFigures:
    """Counts since the silo started; ``missed`` by action name, ``lateness`` by priority name."""

    delivered: int
    late: int
    failed: int
    retried: int
    missed: dict[str, int]
    overrun: int
    repaired: int
    unreadable: int
    polls: int
    poll_rows: int
    poll_seconds: float
    poll_failures: int
    lateness: dict[str, LatenessFigures]
    bucket: BucketFigures
    permits: PermitFigures


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """``discarded``: activations that were given up because memory and store might have differed."""

    running: int
    total: int
    failed: int
    discarded: int


@dataclass(frozen=True, slots=True)
class CommitFigures:
    commits: int
    batches: int
    failures: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """``stage``: of the silo's own lease (healthy, suspect, frozen).  ``calls_held``: those that wait for the
    owner of their partition.  ``links``: connections to other silos that stand."""

    view: int
    stage: str
    members: int
    partitions: int
    calls_held: int
    links: int


@dataclass(frozen=True, slots=True)
class SiloStatistics:
    number: int
    state: str
    healthy: bool
    active_grains: int
    activations_created: int
    activations_collected: int
    turns: TurnFigures
    commits: CommitFigures
    cluster: ClusterFigures
    reminders: ReminderFigures | None
