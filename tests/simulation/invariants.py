"""What must be true of every run, each sentence a pure function over the commit log and the histories.

An invariant answers the places where it does not hold, as text; none is good.  Instants are true wall time in
microseconds, which is the database's time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from farro.providers.members import SiloStatus
from farro.providers.rows import (
    SCHEDULED,
    DeleteOperation,
    DeleteReminder,
    PutReminder,
    ReminderRow,
)
from farro.silo.schedules.schedule import count_between
from farro.silo.testing.simulated_cluster import SimulatedCluster
from farro.silo.testing.simulated_store import Committed, Entry, Member, Taken
from tests.simulation.grains import Steps, steps_of
from tests.simulation.histories import GrainKey, History

SECOND_US = 1_000_000
MISSED_SKIPS = (1, 2)  # SKIP and NOTIFY
FIRE_ALL = 3
MAX_ATTEMPTS = 5
FINDINGS_MAX = 3  # of one invariant in one run
SYSTEM = "farro."

Reminder = tuple[str, str, str]  # grain type, grain key, name


@dataclass(slots=True)
class Evidence:
    """One run, sorted for its judges."""

    log: list[Entry]
    history: History
    signs: dict[int, list[tuple[int, int]]]  # of life, as stored: true time, silo's time
    renewed: dict[int, list[int]]
    reminders: list[ReminderRow]  # as they stand at the end
    lease_s: float
    grace_us: int  # of missed ticks
    skew_us: int  # by how much a silo's clock may have been wrong
    end_at: int
    commits: list[Committed] = field(default_factory=list)
    steps: list[tuple[Committed, Steps]] = field(default_factory=list)
    by_operation: dict[str, list[Committed]] = field(default_factory=dict)
    count_of: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in self.log:
            if not isinstance(entry, Committed):
                continue
            self.commits.append(entry)
            write = entry.commit.grain
            if write is None or write.state is None or entry.commit.grain_type.startswith(SYSTEM):
                continue
            steps = steps_of(entry.commit.grain_type, write.state, write.layout)
            self.steps.append((entry, steps))
            self.by_operation.setdefault(steps.last, []).append(entry)
            self.count_of[steps.last] = steps.count


def _grain(entry: Committed) -> GrainKey:
    return entry.commit.grain_type, entry.commit.grain_key


def _say(evidence: Evidence, at: int) -> str:
    return f"at {(at - evidence.history.cluster.simulation.start_us) / 1e6:.6f} s"


# ---- who may write


def only_the_owner_writes(evidence: Evidence) -> Iterator[str]:
    """No two commits of one grain from overlapping leases: epochs only grow, and every commit is made by whoever
    took the partition last, under the epoch that it then got."""
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
                    f"{_say(evidence, entry.at)} silo {entry.silo} commits {_grain(entry)} under epoch "
                    f"{entry.commit.epoch}; the newest is {owner and (owner.silo, owner.epoch)}"
                )


def versions_have_no_gaps(evidence: Evidence) -> Iterator[str]:
    """The versions of a grain are 1, 2, 3, … in the order of the log, each expected by the commit that made it."""
    versions: dict[GrainKey, int] = {}
    for entry in evidence.commits:
        write = entry.commit.grain
        if write is None:
            continue
        before = versions.get(_grain(entry), 0)
        if write.expected_version != before or entry.verdict.version != before + 1:
            yield (
                f"{_say(evidence, entry.at)} {_grain(entry)} goes from {before} to {entry.verdict.version}, "
                f"expecting {write.expected_version}"
            )
        versions[_grain(entry)] = entry.verdict.version


def every_step_follows_the_last(evidence: Evidence) -> Iterator[str]:
    """A turn starts from what the last one has committed: a grain's steps are counted without a gap."""
    counts: dict[GrainKey, int] = {}
    for entry, steps in evidence.steps:
        before = counts.get(_grain(entry), 0)
        if steps.count != before + 1:
            yield f"{_say(evidence, entry.at)} {_grain(entry)}: step {steps.count} ({steps.last}) after {before}"
        counts[_grain(entry)] = steps.count


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
                f"{_say(evidence, entry.at)} silo {entry.silo} was buried {(entry.at - seen[-1]) / 1e6:.3f} s "
                "after its last renewal"
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
                yield f"{_say(evidence, frozen_at)} silo {number} froze and silo {other} let it"
                break


# ---- calls


def no_step_is_taken_twice(evidence: Evidence) -> Iterator[str]:
    """Each operation, tick and event has its effect at most once, however often it was sent or delivered."""
    for operation, entries in evidence.by_operation.items():
        if len(entries) > 1:
            places = ", ".join(_say(evidence, entry.at) for entry in entries)
            yield f"{operation} committed {len(entries)} times: {places}"


def what_was_answered_is_true(evidence: Evidence) -> Iterator[str]:
    """A call that succeeded is in the log once, with the result it got; one that was said not to have run is not
    in the log."""
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
                yield (
                    f"{call.operation} was answered {call.result}, committed {evidence.count_of[call.operation]}"
                )
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
                f"{_say(evidence, call.began_at)} a read of {call.grain} ({call.operation}) answers "
                f"{call.result}; {seen} were acknowledged before"
            )


# ---- reminders


def _tick_of(row: ReminderRow) -> str:
    return f"{row.grain_type}/{row.grain_key}/{row.name}#{row.registration}.{row.occurrence}"


def a_tick_and_its_state_are_one(evidence: Evidence) -> Iterator[str]:
    """A commit that settles a delivered occurrence has that tick's state in it, and the other way round."""
    for entry, steps in evidence.steps:
        is_tick = "#" in steps.last
        settle = entry.commit.settle
        if is_tick != (settle is not None):
            yield f"{_say(evidence, entry.at)} {steps.last}: settle and state are not one commit"
        elif settle is not None:
            name = f"{settle.name}#{settle.registration}.{settle.occurrence}"
            if not steps.last.endswith("/" + name):
                yield f"{_say(evidence, entry.at)} the state of {steps.last} settles {name}"
    for entry in evidence.commits:
        if entry.settled is not None and entry.commit.grain is not None and entry.commit.grain.state is None:
            yield f"{_say(evidence, entry.at)} {_tick_of(entry.settled)} was settled without its state"


def nothing_fires_before_its_time(evidence: Evidence) -> Iterator[str]:
    """No tick's turn begins before its occurrence is due."""
    set_meanwhile_us = evidence.skew_us if evidence.history.cluster.clocks_were_set else 0
    for begun in evidence.history.begun:
        if max(begun.clock_at, begun.at) + set_meanwhile_us < begun.due_at:
            yield (
                f"{_say(evidence, begun.at)} {begun.grain} {begun.name} began "
                f"{(begun.due_at - begun.at) / 1e6:.3f} s before it was due"
            )


def occurrences_are_consumed_in_order(evidence: Evidence) -> Iterator[str]:
    """Of each registration every occurrence is consumed once, one after the other, and none is left out."""
    consumed: dict[tuple[Reminder, int], int] = {}
    for entry in evidence.commits:
        row, settle = entry.settled, entry.commit.settle
        if row is None or settle is None or row.grain_type.startswith(SYSTEM):
            continue
        after = settle.progress.occurrence if settle.progress is not None else row.occurrence + 1
        key = ((row.grain_type, row.grain_key, row.name), row.registration)
        before = consumed.get(key)
        if before is not None and row.occurrence != before:
            yield f"{_say(evidence, entry.at)} {_tick_of(row)}: the one owed was {before}"
        if after not in (row.occurrence, row.occurrence + 1):
            yield f"{_say(evidence, entry.at)} {_tick_of(row)} goes on to occurrence {after}"
        if after == row.occurrence and entry.commit.grain is not None:
            yield f"{_say(evidence, entry.at)} {_tick_of(row)} was delivered and not consumed"
        consumed[key] = after


def what_is_passed_over_is_accounted_for(evidence: Evidence) -> Iterator[str]:
    """A grid instant that brings no tick of its own had passed already, and is counted as its missed action has
    it: by SKIP and NOTIFY in ``missed_count``, by FIRE_IMMEDIATELY in one tick for all, by FIRE_ALL never."""
    for entry in evidence.commits:
        row, settle = entry.settled, entry.commit.settle
        if row is None or settle is None or settle.progress is None or row.grain_type.startswith(SYSTEM):
            continue
        progress = settle.progress
        due, upcoming = row.next_due_at, progress.next_due_at
        if due is None or upcoming is None or upcoming == due:
            continue
        between = count_between(row, due, upcoming - 1)
        if upcoming < due:
            yield f"{_say(evidence, entry.at)} {_tick_of(row)} goes back in time"
        elif between and row.action == FIRE_ALL and row.catch_up_left is None and row.attempts == 0:
            yield f"{_say(evidence, entry.at)} {_tick_of(row)}: FIRE_ALL passed over {between}"
        elif (
            row.action in MISSED_SKIPS and entry.commit.grain is not None and progress.missed_count != between
        ):
            yield (
                f"{_say(evidence, entry.at)} {_tick_of(row)} passed over {between}, counted "
                f"{progress.missed_count}"
            )


def only_absence_makes_missed(evidence: Evidence) -> Iterator[str]:
    """An occurrence is passed over without a tick only if nobody was there: it fell due later than the grace
    after the last sign of life of its partition's owner, or while a clock was set forward."""
    signs = {silo: [stored for _, stored in rows] for silo, rows in evidence.signs.items()}
    owners: dict[int, list[Taken]] = {}
    for item in evidence.log:
        if isinstance(item, Taken):
            owners.setdefault(item.partition, []).append(item)
            continue
        if not isinstance(item, Committed):
            continue
        row, settle = item.settled, item.commit.settle
        if (
            row is None
            or settle is None
            or item.commit.grain is not None
            or row.grain_type.startswith(SYSTEM)
        ):
            continue
        consumes = settle.progress is None or settle.progress.occurrence != row.occurrence
        if not consumes or row.attempts >= MAX_ATTEMPTS - 1 or row.next_due_at is None:
            continue
        if row.action not in MISSED_SKIPS:
            yield f"{_say(evidence, item.at)} {_tick_of(row)} was passed over under action {row.action}"
        elif not evidence.history.cluster.clocks_were_set and _was_there(
            row.next_due_at, owners[item.commit.partition], signs, evidence.grace_us, evidence.skew_us
        ):
            yield f"{_say(evidence, item.at)} {_tick_of(row)} was passed over; its owner was there"


def _was_there(
    due: int, taken: list[Taken], signs: dict[int, list[int]], grace_us: int, skew_us: int
) -> bool:
    """Did whoever owned the partition live when something fell due?"""
    for index, each in enumerate(taken):
        until = taken[index + 1].at if index + 1 < len(taken) else None
        if each.at - skew_us > due or (until is not None and until + skew_us < due):
            continue
        stored = signs.get(each.silo, [])
        later = [sign for sign in stored if due + skew_us < sign and (until is None or sign < until)]
        if later and min(later) - due <= grace_us - skew_us:
            place = bisect_right(stored, due)
            if place and due - stored[place - 1] <= grace_us - skew_us:
                return True
    return False


def a_cancel_holds(evidence: Evidence) -> Iterator[str]:
    """Once a cancel or a new registration has committed, nothing of the old one has an effect, and at the owner
    no tick of it begins."""
    ended: dict[tuple[Reminder, int], int] = {}  # when the cancel committed
    standing: dict[Reminder, ReminderRow] = {}
    for entry in evidence.commits:
        commit = entry.commit
        grain = _grain(entry)
        tick = evidence_tick(entry)
        if tick is not None and (*grain, tick[0]) in standing:
            row = standing[*grain, tick[0]]
            if row.registration != tick[1]:
                yield f"{_say(evidence, entry.at)} {grain} commits a tick of {tick}, which was replaced"
        elif tick is not None and ((*grain, tick[0]), tick[1]) in ended:
            yield f"{_say(evidence, entry.at)} {grain} commits a tick of {tick}, which was cancelled"
        settle = commit.settle
        if entry.settled is not None and settle is not None and settle.progress is None:
            standing.pop((*grain, settle.name), None)
        for change in commit.reminders:
            if isinstance(change, PutReminder):
                if change.row.name in entry.verdict.kept:
                    continue
                key = (*grain, change.row.name)
                before = standing.get(key)
                if before is not None and before.registration != change.row.registration:
                    ended[key, before.registration] = entry.at
                standing[key] = change.row
            elif isinstance(change, DeleteReminder):
                before = standing.pop((*grain, change.name), None)
                if before is not None:
                    ended[(*grain, change.name), before.registration] = entry.at
            elif isinstance(change, DeleteOperation):
                for key in [key for key in standing if key[:2] == grain]:
                    ended[key, standing.pop(key).registration] = entry.at
    owners = _owners(evidence)
    for begun in evidence.history.begun:
        at = ended.get(((*begun.grain, begun.name), begun.registration))
        if at is not None and begun.at > at and owners.at(*begun.grain, begun.at) == begun.silo:
            yield (
                f"{_say(evidence, begun.at)} {begun.grain} {begun.name} begins "
                f"{(begun.at - at) / 1e6:.6f} s after its cancel committed"
            )


def evidence_tick(entry: Committed) -> tuple[str, int, int] | None:
    """Name, registration and occurrence of the tick that a commit is the turn of."""
    settle = entry.commit.settle
    if settle is None or entry.commit.grain is None:
        return None
    return settle.name, settle.registration, settle.occurrence


class Owners:
    """Who owned a grain's partition at some instant."""

    def __init__(self, evidence: Evidence) -> None:
        self._taken: dict[int, list[tuple[int, int]]] = {}
        self._partition: dict[GrainKey, int] = {}
        for entry in evidence.log:
            if isinstance(entry, Taken):
                self._taken.setdefault(entry.partition, []).append((entry.at, entry.silo))
            elif isinstance(entry, Committed):
                self._partition[_grain(entry)] = entry.commit.partition

    def at(self, grain_type: str, grain_key: str, at: int) -> int:
        partition = self._partition.get((grain_type, grain_key))
        taken = self._taken.get(-1 if partition is None else partition, [])
        place = bisect_right(taken, (at, 1 << 60))
        return taken[place - 1][1] if place else 0


def _owners(evidence: Evidence) -> Owners:
    return Owners(evidence)


# ---- bounds, and the end


def memory_stays_within_the_bucket(evidence: Evidence) -> Iterator[str]:
    """A silo holds at most a bucket of reminders, those under way apart, and only of partitions it owns."""
    for held in evidence.history.held:
        if held.held - held.out > held.size:
            yield f"{_say(evidence, held.at)} silo {held.silo} holds {held.held} of {held.size}"
        if held.strange:
            yield f"{_say(evidence, held.at)} silo {held.silo} holds {held.strange} that are not its own"


DELIVERED_WITHIN_US = 45 * SECOND_US


def everything_goes_on_in_the_end(evidence: Evidence) -> Iterator[str]:
    """A minute after the last fault calls succeed, and nothing that is due waits; what was published was heard."""
    for call in evidence.history.probes:
        if call.error:
            yield f"{call.operation} to {call.grain} still fails: {call.error}"
    if not evidence.history.probes:
        yield "nobody could ask in the end"
    for row in evidence.reminders:
        if row.status != SCHEDULED or row.wake_at is None or row.grain_type.startswith(SYSTEM):
            continue
        if row.wake_at < evidence.end_at - DELIVERED_WITHIN_US - evidence.skew_us:
            yield f"{_tick_of(row)} is {(evidence.end_at - row.wake_at) / 1e6:.3f} s overdue in the end"
    told_until = evidence.end_at - DELIVERED_WITHIN_US
    for entry, steps in evidence.steps:
        if entry.commit.events and entry.commit.grain_type == "ledger" and entry.at < told_until:
            if f"heard {steps.last}" not in evidence.by_operation:
                yield f"{steps.last} was published {_say(evidence, entry.at)} and never heard"


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
        reminders=[row for rows in service.reminders.values() for row in rows.values()],
        lease_s=cluster.options.cluster.lease.total_seconds(),
        grace_us=int(reminders.missed_grace.total_seconds() * SECOND_US),
        skew_us=cluster.skew_max_us,
        end_at=cluster.simulation.wall_us,
    )
    found: list[str] = []
    for invariant in INVARIANTS:
        places = invariant(evidence)
        found += [f"{invariant.__name__}: {place}" for place, _ in zip(places, range(FINDINGS_MAX))]
    return found
