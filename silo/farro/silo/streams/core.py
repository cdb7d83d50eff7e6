"""What the parts of the stream room share, and where in the store they keep what they must not forget.

Everything durable here is a watermark, moved by the same fenced commits as all else:

=========================================  ====================  ==========================================
whose                                      source                position
=========================================  ====================  ==========================================
a subscribed grain                         ``stream:S:P``        last event of S in partition P it consumed
``farro.subscriptions/S>TYPE``             ``stream:S:P``        below it, every publisher's grain has its
either of them                             ``begun:S``           1: ``after="now"`` has been settled
``farro.streams.known/all``                ``S``                 1: S is to be trimmed
``farro.streams.trimmed/S``                ``P``                 last event of S in P that was trimmed
=========================================  ====================  ==========================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random

from farro.client.clock import Clock
from farro.client.codec import Codec
from farro.providers.contracts import Provider
from farro.providers.rows import Commit, Watermark
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.options import StreamOptions
from farro.silo.ownership import Ownership
from farro.silo.tasks import TaskOwner

Place = tuple[str, str]
"""Grain type and key under which watermarks are kept; a grain need not exist there."""

KNOWN: Place = ("farro.streams.known", "all")
TRIMMED_TYPE = "farro.streams.trimmed"
DISPATCH_TYPE = "farro.subscriptions"


class Fate(Enum):
    """What became of an event that was brought to its subscriber."""

    CONSUMED = "consumed"  # by this turn
    ALREADY = "already"  # by an earlier one
    FAILED = "failed"  # the subscriber's code raised
    UNKNOWN = "unknown"  # or not taken: the watermark says
    RUNNING = "running"  # ask again


@dataclass(frozen=True, slots=True)
class Brought:
    """The answer to an event; ``reason`` for those that were not consumed."""

    fate: Fate
    reason: str = ""


@dataclass(slots=True)
class StreamStatistics:
    """Counts of this silo since it started."""

    published: int = 0  # committed
    delivered: int = 0  # consumed by a subscriber's turn
    failed: int = 0  # turns of subscribers that raised
    passed_over: int = 0  # events given up after max_attempts, or unreadable
    trimmed: int = 0  # events deleted because of their age
    trimmed_unread: int = 0  # of these, per subscription, those it had not consumed
    reads: int = 0  # pages given to readers


@dataclass(slots=True)
class StreamCore:
    provider: Provider
    clock: Clock
    codec: Codec
    catalog: Catalog
    committer: Committer
    ownership: Ownership
    options: StreamOptions
    random: Random
    tasks: TaskOwner
    statistics: StreamStatistics = field(default_factory=StreamStatistics)
    running: bool = False

    def watermark_commit(self, place: Place, partition: int, *watermarks: Watermark) -> Commit:
        """A row-only commit that moves watermarks of ``place``, fenced by ``partition``."""
        return Commit(
            partition=partition,
            epoch=self.ownership.epoch(partition),
            grain_type=place[0],
            grain_key=place[1],
            watermarks=watermarks,
        )


def source_of(stream: str, partition: int) -> str:
    return f"stream:{stream}:{partition}"


def begun_mark(stream: str) -> Watermark:
    return Watermark(f"begun:{stream}", 1)


def positions_in(watermarks: dict[str, int], stream: str) -> dict[int, int]:
    """Partition → position of one stream among the watermarks of a place."""
    prefix = source_of(stream, 0)[:-1]
    return {
        int(source[len(prefix) :]): position
        for source, position in watermarks.items()
        if source.startswith(prefix) and source[len(prefix) :].isdecimal()
    }
