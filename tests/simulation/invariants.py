"""What must be true of every run, each sentence a pure function over the commit log and the histories.

An invariant answers the places where it does not hold, as text; none is good.  Instants are true wall time in
microseconds, which is the database's time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from farro.providers.members import SiloStatus
from farro.providers.rows import SCHEDULED, DeleteReminder, PutReminder
from farro.silo.testing.simulated_cluster import SimulatedCluster
from farro.silo.testing.simulated_store import Committed, Member, Taken
from tests.simulation.evidence import SECOND_US, SYSTEM, Evidence, grain_of, named, when
from tests.simulation.histories import GrainKey, History
from tests.simulation.reminder_invariants import (
    a_cancel_holds,
    a_tick_and_its_state_are_one,
    nothing_fires_before_its_time,
    occurrences_are_consumed_in_order,
    only_absence_makes_missed,
    what_is_passed_over_is_accounted_for,
)

FINDINGS_MAX = 3  # of one invariant in one run

# ---- who may write


def only_the_owner_writes(evidence: Evidence) -> Iterator[str]:
    """No two commits of one grain from overlapping leases: epochs only grow, and every commit is made by
    whoever took the partition last, under the epoch that it then got."""
    newest: dict[int, Taken] = {}
    for entry in evidence.log:
        if isinstance(entry, Taken):
            before = newest.get(entry.partition)
            if before is not None and entry.epoch <= before.epoch:
                yield f"partition {entry.partition} taken under epoch {entry.epoch} after {before.epoch}"
            newest[entry.partition] = entry
        elif isinstance(entry, Committed):
            owner = newest.get(entry.commit.partition)
            if owner is None or (owner.silo, owner.epoch) != (entry.silo, entry.commit.epoch):
                yield (
                    f"{when(evidence, entry.at)} silo {entry.silo} commits {grain_of(entry)} under epoch "
                    f"{entry.commit.epoch}; the newest is {owner and (owner.silo, owner.epoch)}"
                )


def versions_have_no_gaps(evidence: Evidence) -> Iterator[str]:
    """The versions of a grain are 1, 2, 3, … in the order of the log, each expected by the commit that made
    it."""
    versions: dict[GrainKey, int] = {}
    for entry in evidence.commits:
        write = entry.commit.grain
        if write is None:
            continue
        before = versions.get(grain_of(entry), 0)
        if write.expected_version != before or entry.verdict.version != before + 1:
            yield (
                f"{when(evidence, entry.at)} {grain_of(entry)} goes from {before} to "
                f"{entry.verdict.version}, expecting {write.expected_version}"
            )
        versions[grain_of(entry)] = entry.verdict.version


def every_step_follows_the_last(evidence: Evidence) -> Iterator[str]:
    """A turn starts from what the last one has committed: a grain's steps are counted without a gap."""
    counts: dict[GrainKey, int] = {}
    for entry, steps in evidence.steps:
        before = counts.get(grain_of(entry), 0)
        if steps.count != before + 1:
            step = f"step {steps.count} ({steps.last})"
            yield f"{when(evidence, entry.at)} {grain_of(entry)}: {step} after {before}"
        counts[grain_of(entry)] = steps.count


def only_the_silent_are_buried(evidence: Evidence) -> Iterator[str]:
    """A silo is marked as dead if its process has ended, or if it has not renewed for a lease; never else."""
    lease_us = int(evidence.lease_s * SECOND_US)
    joined = {e.silo: e.at for e in evidence.log if isinstance(e, Member) and e.status is SiloStatus.JOINING}
    for entry in evidence.log:
        if not isinstance(entry, Member) or entry.status is not SiloStatus.DEAD:
            continue
        if evidence.history.cluster.ended.get(entry.silo, entry.at + 1) <= entry.at:
            continue
        seen = [at for at in evidence.renewed.get(entry.silo, []) if at <= entry.at] or [
            joined.get(entry.silo, entry.at)
        ]
        if entry.at - seen[-1] < lease_us:
            yield (
                f"{when(evidence, entry.at)} silo {entry.silo} was buried "
                f"{(entry.at - seen[-1]) / 1e6:.3f} s after its last renewal"
            )


def who_stands_still_is_replaced(evidence: Evidence) -> Iterator[str]:
    """A silo that is frozen for much longer than a lease is marked as dead, if there is another to do so."""
    lease_us = int(evidence.lease_s * SECOND_US)
    dead = {e.silo for e in evidence.log if isinstance(e, Member) and e.status is SiloStatus.DEAD}
    for number, frozen_at, thawed_at in evidence.history.cluster.frozen:
        if thawed_at - frozen_at < 2 * lease_us + 6 * SECOND_US or number in dead:
            continue
        for other, renewed in evidence.renewed.items():
            seen = [at for at in renewed if frozen_at <= at <= thawed_at]
            bounds = zip([frozen_at, *seen], [*seen, thawed_at], strict=True)
            if other != number and seen and all(until - since < lease_us // 2 for since, until in bounds):
                yield f"{when(evidence, frozen_at)} silo {number} froze and silo {other} let it"
                break


# ---- calls


def no_step_is_taken_twice(evidence: Evidence) -> Iterator[str]:
    """Each operation, tick and event has its effect at most once, however often it was sent or delivered."""
    for operation, entries in evidence.by_operation.items():
        if len(entries) > 1:
            places = ", ".join(when(evidence, entry.at) for entry in entries)
            yield f"{operation} committed {len(entries)} times: {places}"


def what_was_answered_is_true(evidence: Evidence) -> Iterator[str]:
    """A call that succeeded is in the log once, with the result it got; one that was said not to have run is
    not in the log."""
    for call in evidence.history.calls:
        if call.method == "read":
            continue
        commits = evidence.by_operation.get(call.operation, [])
        if not call.error:
            if len(commits) != 1:
                yield f"{call.operation} {call.method} was acknowledged and committed {len(commits)} times"
            elif call.method in CHANGES and not _changes_its_reminder(commits[0], call.method):
                yield f"{call.operation} {call.method} was acknowledged without its reminder"
            elif call.result is not None and evidence.count_of[call.operation] != call.result:
                committed = evidence.count_of[call.operation]
                yield f"{call.operation} was answered {call.result}, committed {committed}"
            if call.method == "move" and len(evidence.by_operation.get(f"{call.operation}/nested", [])) != 1:
                yield f"{call.operation}: its nested call was acknowledged and not committed once"
        elif call.turn_ran is False and commits:
            yield f"{call.operation} ended in {call.error}, which says that it did not run; it has committed"


CHANGES = frozenset(("every", "once", "cron", "cancel"))


def _changes_its_reminder(entry: Committed, method: str) -> bool:
    kind = DeleteReminder if method == "cancel" else PutReminder
    return any(isinstance(change, kind) for change in entry.commit.reminders)


def reads_are_not_stale(evidence: Evidence) -> Iterator[str]:
    """A read sees every step that was acknowledged to anybody before it was asked for."""
    known: dict[GrainKey, list[tuple[int, int]]] = {}  # grain: (when it was known, how many steps)
    for call in sorted(evidence.history.calls, key=lambda call: call.ended_at):
        if not call.error and isinstance(call.result, int):
            counts = known.setdefault(call.grain, [])
            counts.append((call.ended_at, max(call.result, counts[-1][1] if counts else 0)))
    for call in evidence.history.calls:
        if call.method != "read" or call.error or not isinstance(call.result, int):
            continue
        counts = known[call.grain]
        place = bisect_right(counts, (call.began_at, -1))
        seen = counts[place - 1][1] if place else 0
        if call.result < seen:
            yield (
                f"{when(evidence, call.began_at)} a read of {call.grain} ({call.operation}) answers "
                f"{call.result}; {seen} were acknowledged before"
            )


# ---- bounds, and the end


def memory_stays_within_the_bucket(evidence: Evidence) -> Iterator[str]:
    """A silo holds at most a bucket of reminders, those under way apart, and only of partitions it owns."""
    for held in evidence.history.held:
        if held.held - held.out > held.size:
            yield f"{when(evidence, held.at)} silo {held.silo} holds {held.held} of {held.size}"
        if held.strange:
            yield f"{when(evidence, held.at)} silo {held.silo} holds {held.strange} that are not its own"


DELIVERED_WITHIN_US = 45 * SECOND_US


def everything_goes_on_in_the_end(evidence: Evidence) -> Iterator[str]:
    """A minute after the last fault calls succeed, and nothing that is due waits; what was published was
    heard."""
    for call in evidence.history.probes:
        if call.error:
            yield f"{call.operation} to {call.grain} still fails: {call.error}"
    if not evidence.history.probes:
        yield "nobody could ask in the end"
    for row in evidence.reminders:
        if row.status != SCHEDULED or row.wake_at is None or row.grain_type.startswith(SYSTEM):
            continue
        if row.wake_at < evidence.end_at - DELIVERED_WITHIN_US - evidence.skew_us:
            yield f"{named(row)} is {(evidence.end_at - row.wake_at) / 1e6:.3f} s overdue in the end"
    told_until = evidence.end_at - DELIVERED_WITHIN_US
    for entry, steps in evidence.steps:
        told = entry.commit.events and entry.commit.grain_type == "ledger" and entry.at < told_until
        if told and f"heard {steps.last}" not in evidence.by_operation:
            yield f"{steps.last} was published {when(evidence, entry.at)} and never heard"


INVARIANTS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    only_the_owner_writes,
    versions_have_no_gaps,
    every_step_follows_the_last,
    only_the_silent_are_buried,
    who_stands_still_is_replaced,
    no_step_is_taken_twice,
    what_was_answered_is_true,
    reads_are_not_stale,
    a_tick_and_its_state_are_one,
    nothing_fires_before_its_time,
    occurrences_are_consumed_in_order,
    what_is_passed_over_is_accounted_for,
    only_absence_makes_missed,
    a_cancel_holds,
    memory_stays_within_the_bucket,
    everything_goes_on_in_the_end,
)


def broken(cluster: SimulatedCluster, history: History) -> list[str]:
    """Every place where an invariant does not hold, at most a few of each, with its name in front."""
    service = cluster.store.service
    reminders = cluster.options.reminders
    assert reminders is not None
    evidence = Evidence(
        log=cluster.store.log,
        history=history,
        signs=cluster.store.signs,
        renewed=cluster.store.renewed,
        acknowledged=cluster.store.acknowledged,
        reminders=[row for rows in service.reminders.values() for row in rows.values()],
        lease_s=cluster.options.cluster.lease.total_seconds(),
        grace_us=int(reminders.missed_grace.total_seconds() * SECOND_US),
        skew_us=cluster.skew_max_us,
        end_at=cluster.simulation.wall_us,
    )
    found: list[str] = []
    for invariant in INVARIANTS:
        places = invariant(evidence)
        found += [
            f"{invariant.__name__}: {place}" for place, _ in zip(places, range(FINDINGS_MAX), strict=False)
        ]
    return found
