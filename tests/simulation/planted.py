"""Planted bugs: faults that somebody might really make, one at a time, to see that the simulation finds them.

Each is a context manager around a run; it wraps or replaces a piece of the running program from outside, and
the program itself has no switch for it.  ``SEEDS`` says which seed was the first to find each, searched from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from farro.client.errors import CommitOutcomeUnknown, SiloUnavailable
from farro.providers.errors import OutcomeUnknown
from farro.providers.members import SiloStatus
from farro.providers.memory_members import MemoryMembers
from farro.providers.rows import Commit, GrainRow, Outcome, Verdict
from farro.silo.activations.activation import Activation
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.invocation import Admission
from farro.silo.activations.turns import Turns
from farro.silo.cluster import router
from farro.silo.cluster.cluster import Cluster
from farro.silo.cluster.observing import Observer
from farro.silo.cluster.partitions import Partitions
from farro.silo.reminders import judging, ticks
from farro.silo.reminders.due_queue import DueQueue
from farro.silo.reminders.held import HeldReminders
from farro.silo.reminders.ticks import TickInFlight
from farro.silo.schedules.missed import Deliver, Skip
from farro.silo.testing.simulated_cluster import SimulatedCluster, SimulatedSilo
from farro.silo.testing.simulated_store import SimulatedProvider, Taken

Planted = Callable[[SimulatedCluster], Generator[None]]
P = TypeVar("P", bound=Planted)
Apply = Callable[[Commit, int, int], Verdict]

SECOND_US = 1_000_000
PLANTED: dict[str, Planted] = {}


def _planted(bug: P) -> P:
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


@_planted
def no_fence(cluster: SimulatedCluster) -> Generator[None]:
    """A commit is applied whatever its epoch."""

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        return apply(replace(member, epoch=_epoch(cluster, member.partition)), owner, now)

    with _applying(cluster, how):
        yield


@_planted
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


@_planted
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


@_planted
def version_check_dropped(cluster: SimulatedCluster) -> Generator[None]:
    """A commit is applied whatever version it expects."""

    def how(apply: Apply, member: Commit, owner: int, now: int) -> Verdict:
        if member.grain is not None:
            row: GrainRow | None = cluster.store.service.grains.get((member.grain_type, member.grain_key))
            version = 0 if row is None else row.version
            member = replace(member, grain=replace(member.grain, expected_version=version))
        return apply(member, owner, now)

    with _applying(cluster, how):
        yield


@_planted
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


@_planted
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


@_planted
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


@_planted
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


@_planted
def dead_without_compare_and_set(cluster: SimulatedCluster) -> Generator[None]:
    """Who is marked as dead is not asked once more whether it has renewed since."""
    mark_dead = MemoryMembers.mark_dead

    async def wrong(self: MemoryMembers, number: int, renewals: int, now: int) -> bool:
        row = cluster.store.service.silos.get(number)
        return await mark_dead(self, number, renewals if row is None else row.renewals, now)

    with patch.object(MemoryMembers, "mark_dead", wrong):
        yield


# ---- turns


@_planted
def activation_kept_after_an_unknown_outcome(cluster: SimulatedCluster) -> Generator[None]:
    """A grain whose commit may or may not have landed goes on with the memory it has."""
    end = Turns._end

    def wrong(self: Turns, activation: Activation, call: Any, *, keep: bool, error: Any, **rest: Any) -> None:
        end(self, activation, call, keep=keep or isinstance(error, CommitOutcomeUnknown), error=error, **rest)

    with patch.object(Turns, "_end", wrong):
        yield


@_planted
def unknown_call_sent_again(cluster: SimulatedCluster) -> Generator[None]:
    """A call whose silo went away before it answered goes to the next owner, as if it had not run."""
    with patch.object(router, "_never_left", lambda error: isinstance(error, SiloUnavailable)):
        yield


# ---- membership


@_planted
def expiry_by_wall_clock(cluster: SimulatedCluster) -> Generator[None]:
    """Who has expired is told by comparing its stored sign of life with one's own clock."""

    def wrong(self: Observer, silos: Any, now: float) -> list[Any]:
        place = next(each for each in cluster.silos if each.state == "up" and each.number == self._number)
        lease_us = int(self._lease_s * SECOND_US)
        return [
            row
            for row in silos
            if row.status.is_member
            and row.number != self._number
            and place.clock.now() - row.renewed_at > lease_us
            and row.status is not SiloStatus.JOINING
        ]

    saw = Observer.saw

    def guarded(self: Observer, silos: Any, now: float) -> list[Any]:
        rows = list(silos)
        saw(self, rows, now)
        known = any(each.state == "up" and each.number == self._number for each in cluster.silos)
        return wrong(self, rows, now) if known else []

    with patch.object(Observer, "saw", guarded):
        yield


@_planted
def no_freeze(cluster: SimulatedCluster) -> Generator[None]:
    """A silo that cannot renew serves on."""
    trust = Cluster._trust

    def wrong(self: Cluster, sent_at: float) -> None:
        trust(self, sent_at)
        self._core.suspect_from = self._core.frozen_from = float("inf")

    with patch.object(Cluster, "_trust", wrong):
        yield


@_planted
def thaw_without_a_look_at_the_epochs(cluster: SimulatedCluster) -> Generator[None]:
    """A silo that was taken for dead keeps what it owned, with its memory."""
    forget = Partitions.forget

    def wrong(self: Partitions, partitions: frozenset[int]) -> None:
        if partitions <= self._ownership.closing:
            forget(self, partitions)

    with (
        patch.object(Partitions, "forget", wrong),
        patch.object(Partitions, "lost", lambda self, rows: frozenset()),
    ):
        yield


@_planted
def renewed_although_the_loop_is_stuck(cluster: SimulatedCluster) -> Generator[None]:
    """The heartbeat does not care whether anything else of the silo still runs."""
    freeze = SimulatedSilo.freeze

    def beat(place: SimulatedSilo, number: int) -> None:
        row = cluster.store.service.silos.get(number)
        if place.state != "frozen" or row is None or not row.status.is_member or not number:
            return
        if not cluster.store.down:
            cluster.store.service.silos[number] = replace(
                row, renewals=row.renewals + 1, renewed_at=place.clock.now()
            )
            cluster.store.sign(number, place.clock.now())
        cluster.simulation.after(SECOND_US, partial(beat, place, number))

    def wrong(self: SimulatedSilo) -> None:
        number = self.number
        freeze(self)
        beat(self, number)

    with patch.object(SimulatedSilo, "freeze", wrong):
        yield


@_planted
def handed_over_without_waiting(cluster: SimulatedCluster) -> Generator[None]:
    """A partition is freed first, and left a second later: until then its old owner serves it too."""
    drop = Catalog.drop

    def wrong(self: Partitions, partitions: frozenset[int]) -> None:
        loop = self._catalog._core.loop
        loop.call_later(1.0, self._ownership.drop, partitions)
        loop.call_later(1.0, drop, self._catalog, partitions)

    with patch.object(Partitions, "forget", wrong):
        yield


# ---- reminders


@_planted
def early_tick(cluster: SimulatedCluster) -> Generator[None]:
    """Ticks begin up to two seconds before they are due."""
    advance = DueQueue.advance
    with patch.object(DueQueue, "advance", lambda self, now: advance(self, now + 2 * SECOND_US)):
        yield


@_planted
def cancel_ignored_at_dequeue(cluster: SimulatedCluster) -> Generator[None]:
    """A tick that waits for its grain is not asked again whether its reminder is still there."""

    def wrong(self: TickInFlight) -> Admission:
        return self._firing.permit(self) if not self.entry.dead else Admission.START

    with patch.object(TickInFlight, "admit", wrong):
        yield


@_planted
def missed_judged_by_lateness(cluster: SimulatedCluster) -> Generator[None]:
    """Whatever is overdue by more than the grace counts as missed, although its owner was there."""
    judge = judging.judge

    def wrong(row: Any, *, now: int, alive_until: Any, ownership_began: int, **rest: Any) -> Any:
        return judge(row, now=now, alive_until=None, ownership_began=now + 1, **rest)

    with patch.object(judging, "judge", wrong):
        yield


@_planted
def one_shot_dropped_when_missed(cluster: SimulatedCluster) -> Generator[None]:
    """A one-shot that nobody was there for is passed over, whatever its action."""
    judge = judging.judge

    def wrong(
        row: Any, *, now: int, grace_us: int, alive_until: Any, ownership_began: int, **rest: Any
    ) -> Any:
        judged = judge(
            row, now=now, grace_us=grace_us, alive_until=alive_until, ownership_began=ownership_began, **rest
        )
        due = row.next_due_at
        lived = -1 if alive_until is None else alive_until
        missed = now - due > grace_us and due > lived + grace_us and due < ownership_began
        if isinstance(judged, Deliver) and missed and row.period_us is None and row.cron is None:
            return Skip(None, 1, due, False)
        return judged

    with patch.object(judging, "judge", wrong):
        yield


@_planted
def occurrence_not_counted(cluster: SimulatedCluster) -> Generator[None]:
    """A settle moves the reminder on, but its next occurrence has the number of the last."""
    settle_delivered = ticks.settle_delivered

    def wrong(row: Any, **rest: Any) -> Any:
        progress = settle_delivered(row, **rest)
        return None if progress is None else replace(progress, occurrence=row.occurrence)

    with patch.object(ticks, "settle_delivered", wrong):
        yield


@_planted
def bucket_kept_when_partitions_go(cluster: SimulatedCluster) -> Generator[None]:
    """What a silo holds of partitions that are another's now stays where it is."""
    with patch.object(HeldReminders, "drop", lambda self, partitions: None):
        yield


def planted(name: str) -> Callable[[SimulatedCluster], Any]:
    """The bug of that name, for :func:`tests.simulation.running.run`."""
    return contextmanager(PLANTED[name])
