"""How a bug is planted, and those of the store; see ``planted``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from farro.providers.errors import OutcomeUnknown
from farro.providers.memory_members import MemoryMembers
from farro.providers.rows import Commit, GrainRow, Outcome, Verdict
from farro.silo.testing.simulated_cluster import SimulatedCluster
from farro.silo.testing.simulated_provider import SimulatedProvider
from farro.silo.testing.simulated_store import Taken

Planted = Callable[[SimulatedCluster], Generator[None]]
P = TypeVar("P", bound=Planted)
Apply = Callable[[Commit, int, int], Verdict]

SECOND_US = 1_000_000
PLANTED: dict[str, Planted] = {}


def plants(bug: P) -> P:
    PLANTED[bug.__name__] = bug
    return bug


@contextmanager
def _applying(
    cluster: SimulatedCluster, how: Callable[[Apply, Commit, int, int], Verdict]
) -> Generator[None]:
    """Have the store apply members in another way."""
    store = cluster.store
    with patch.object(store, "apply", partial(how, store.apply)):
        yield


def _epoch(cluster: SimulatedCluster, partition: int) -> int:
    row = cluster.store.service.partitions.get(partition)
    return 0 if row is None else row.epoch


# ---- the store


@plants
def no_fence(cluster: SimulatedCluster) -> Generator[None]:
    """A commit is applied whatever its epoch."""

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        return apply(replace(member, epoch=_epoch(cluster, member.partition)), owner, now)

    with _applying(cluster, how):
        yield


@plants
def epoch_read_before_the_lock(cluster: SimulatedCluster) -> Generator[None]:
    """The epoch is read, then the partition's lock is waited for: a take-over in between goes unseen."""

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        at = cluster.simulation.wall_us - SECOND_US // 2
        for entry in reversed(cluster.store.log):
            if entry.at < at:
                break
            if isinstance(entry, Taken) and (entry.partition, entry.epoch - 1) == (
                member.partition,
                member.epoch,
            ):
                return apply(replace(member, epoch=entry.epoch), owner, now)
        return apply(member, owner, now)

    with _applying(cluster, how):
        yield


@plants
def commit_under_a_stale_snapshot(cluster: SimulatedCluster) -> Generator[None]:
    """REPEATABLE READ: the epoch check sees the store as it was at the silo's last commit."""
    seen: dict[int, dict[int, int]] = {}

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        snapshot = seen.get(owner, {})
        if snapshot.get(member.partition) == member.epoch:
            member = replace(member, epoch=_epoch(cluster, member.partition))
        seen[owner] = {index: row.epoch for index, row in cluster.store.service.partitions.items()}
        return apply(member, owner, now)

    with _applying(cluster, how):
        yield


@plants
def version_check_dropped(cluster: SimulatedCluster) -> Generator[None]:
    """A commit is applied whatever version it expects, and a load does not wait for those on their way.

    The lock that a load passes is the first line against stragglers, the version the second: with either of
    the two nothing shows.
    """

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        if member.grain is not None:
            row: GrainRow | None = cluster.store.service.grains.get((member.grain_type, member.grain_key))
            version = 0 if row is None else row.version
            member = replace(member, grain=replace(member.grain, expected_version=version))
        return apply(member, owner, now)

    with _applying(cluster, how), patch.object(cluster.store, "land", lambda partitions=None: None):
        yield


@plants
def taken_without_a_new_epoch(cluster: SimulatedCluster) -> Generator[None]:
    """A partition changes hands under the epoch it had."""
    take = MemoryMembers.take

    async def wrong(self: MemoryMembers, number: int, partitions: Sequence[int], *rest: Any) -> Any:
        rows = await take(self, number, partitions, *rest)
        tables = cluster.store.service.partitions
        kept = []
        for row in rows:
            if row.epoch > 1:
                tables[row.partition].epoch -= 1
                row = replace(row, epoch=row.epoch - 1)
            kept.append(row)
        return kept

    with patch.object(MemoryMembers, "take", wrong):
        yield


@plants
def settle_apart_from_the_state(cluster: SimulatedCluster) -> Generator[None]:
    """A tick's state commits first, and what settles it a moment later."""

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        if member.settle is None or member.grain is None:
            return apply(member, owner, now)
        verdict = apply(replace(member, settle=None), owner, now)
        if verdict.outcome is Outcome.COMMITTED:
            rest = Commit(
                member.partition, member.epoch, member.grain_type, member.grain_key, settle=member.settle
            )
            cluster.simulation.after(300_000, partial(cluster.store.commit, [rest], owner, now))
        return verdict

    with _applying(cluster, how):
        yield


@plants
def reminders_in_a_second_transaction(cluster: SimulatedCluster) -> Generator[None]:
    """A turn's state commits first, and the reminders it has set or cancelled a moment later."""

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        if not member.reminders or member.grain is None:
            return apply(member, owner, now)
        verdict = apply(replace(member, reminders=()), owner, now)
        if verdict.outcome is Outcome.COMMITTED:
            rest = Commit(
                member.partition,
                member.epoch,
                member.grain_type,
                member.grain_key,
                reminders=member.reminders,
            )
            cluster.simulation.after(20_000, partial(cluster.store.commit, [rest], owner, now))
        return verdict

    with _applying(cluster, how):
        yield


@plants
def unknown_outcome_sent_again(cluster: SimulatedCluster) -> Generator[None]:
    """A commit whose answer was lost is sent once more, and the second answer believed."""
    commit = SimulatedProvider.commit

    async def twice(self: SimulatedProvider, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        try:
            return await commit(self, batch, owner, now)
        except OutcomeUnknown:
            return await commit(self, batch, owner, now)

    with patch.object(SimulatedProvider, "commit", twice):
        yield
