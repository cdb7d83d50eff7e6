"""What must be true of the reminders of every run; see ``invariants``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from farro.providers.rows import DeleteOperation, DeleteReminder, PutReminder, ReminderRow
from farro.silo.cluster.lease import SUSPECT_AT
from farro.silo.schedules.schedule import count_between
from farro.silo.testing.simulated_store import Committed, Taken
from tests.simulation.evidence import SECOND_US, SYSTEM, Evidence, Owners, grain_of, named, when

MISSED_SKIPS = (1, 2)  # SKIP and NOTIFY
FIRE_ALL = 3
MAX_ATTEMPTS = 5

Reminder = tuple[str, str, str]  # grain type, grain key, name


def a_tick_and_its_state_are_one(evidence: Evidence) -> Iterator[str]:
    """A commit that settles a delivered occurrence has that tick's state in it, and the other way round."""
    for entry, steps in evidence.steps:
        is_tick = "#" in steps.last
        settle = entry.commit.settle
        if is_tick != (settle is not None):
            yield f"{when(evidence, entry.at)} {steps.last}: settle and state are not one commit"
        elif settle is not None:
            name = f"{settle.name}#{settle.registration}.{settle.occurrence}"
            if not steps.last.endswith("/" + name):
                yield f"{when(evidence, entry.at)} the state of {steps.last} settles {name}"
    for entry in evidence.commits:
        if entry.settled is not None and entry.commit.grain is not None and entry.commit.grain.state is None:
            yield f"{when(evidence, entry.at)} {named(entry.settled)} was settled without its state"


def nothing_fires_before_its_time(evidence: Evidence) -> Iterator[str]:
    """No tick's turn begins before its occurrence is due, by the store's clock where it has one."""
    store_has_clock = evidence.history.cluster.store.has_clock
    set_meanwhile_us = evidence.skew_us if evidence.history.cluster.clocks_were_set else 0
    for begun in evidence.history.begun:
        own = begun.at if store_has_clock else max(begun.clock_at, begun.at) + set_meanwhile_us
        if own < begun.due_at:
            yield (
                f"{when(evidence, begun.at)} {begun.grain} {begun.name} began "
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
            yield f"{when(evidence, entry.at)} {named(row)}: the one owed was {before}"
        if after not in (row.occurrence, row.occurrence + 1):
            yield f"{when(evidence, entry.at)} {named(row)} goes on to occurrence {after}"
        if after == row.occurrence and entry.commit.grain is not None:
            yield f"{when(evidence, entry.at)} {named(row)} was delivered and not consumed"
        consumed[key] = after


def what_is_passed_over_is_accounted_for(evidence: Evidence) -> Iterator[str]:
    """A grid instant that brings no tick of its own had passed already, and is counted as its missed action
    has it: by SKIP and NOTIFY in ``missed_count``, by FIRE_IMMEDIATELY in one tick for all, by FIRE_ALL
    never.  A reminder whose action was set anew while its tick was out may have it as either has it."""
    set_anew: set[Reminder] = set()
    for entry in evidence.commits:
        row, settle = entry.settled, entry.commit.settle
        if settle is not None:
            was_set_anew = (*grain_of(entry), settle.name) in set_anew
            set_anew.discard((*grain_of(entry), settle.name))
        for change in entry.commit.reminders:
            if isinstance(change, PutReminder):
                set_anew.add((*grain_of(entry), change.row.name))
        if row is None or settle is None or settle.progress is None or row.grain_type.startswith(SYSTEM):
            continue
        progress = settle.progress
        due, upcoming = row.next_due_at, progress.next_due_at
        if due is None or upcoming is None or upcoming == due:
            continue
        between = count_between(row, due, upcoming - 1)
        if upcoming < due:
            yield f"{when(evidence, entry.at)} {named(row)} goes back in time"
        elif was_set_anew:
            continue
        elif between and row.action == FIRE_ALL and row.catch_up_left is None and row.attempts == 0:
            yield f"{when(evidence, entry.at)} {named(row)}: FIRE_ALL passed over {between}"
        elif (
            row.action in MISSED_SKIPS and entry.commit.grain is not None and progress.missed_count != between
        ):
            yield (
                f"{when(evidence, entry.at)} {named(row)} passed over {between}, counted "
                f"{progress.missed_count}"
            )


def only_absence_makes_missed(evidence: Evidence) -> Iterator[str]:
    """An occurrence is passed over without a tick only if nobody was there: it fell due later than the grace
    after the last sign of life of its partition's owner, while that one was frozen (it did not know its signs
    to be taken), or while a clock was set forward."""
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
            yield f"{when(evidence, item.at)} {named(row)} was passed over under action {row.action}"
        elif not evidence.history.cluster.clocks_were_set and _was_there(
            evidence, row.next_due_at, owners[item.commit.partition], signs
        ):
            yield f"{when(evidence, item.at)} {named(row)} was passed over; its owner was there"


def _was_there(evidence: Evidence, due: int, taken: list[Taken], signs: dict[int, list[int]]) -> bool:
    """Did whoever owned the partition live, and trust its lease, when something fell due?"""
    grace_us, skew_us = evidence.grace_us, evidence.skew_us
    trusts_us = int(SUSPECT_AT * evidence.lease_s * SECOND_US)
    for index, each in enumerate(taken):
        until = _given_up_at(taken[index + 1]) if index + 1 < len(taken) else None
        if each.at - skew_us > due or (until is not None and until + skew_us < due):
            continue
        if not any(at <= due < at + trusts_us - skew_us for at in evidence.acknowledged.get(each.silo, [])):
            continue
        stored = signs.get(each.silo, [])
        later = [sign for sign in stored if due + skew_us < sign and (until is None or sign < until)]
        if later and min(later) - due <= grace_us - skew_us:
            place = bisect_right(stored, due)
            if place and due - stored[place - 1] <= grace_us - skew_us:
                return True
    return False


def _given_up_at(following: Taken) -> int:
    """When the owner before gave the partition up: it may have been nobody's for a while."""
    if following.before or following.previous_alive_at is None:
        return following.at
    return min(following.at, following.previous_alive_at)


def a_cancel_holds(evidence: Evidence) -> Iterator[str]:
    """Once a cancel or a new registration has committed, nothing of the old one has an effect, and at the
    owner no tick of it begins."""
    ended: dict[tuple[Reminder, int], int] = {}  # when the cancel committed
    standing: dict[Reminder, ReminderRow] = {}
    for entry in evidence.commits:
        commit = entry.commit
        grain = grain_of(entry)
        tick = tick_of(entry)
        if tick is not None and (*grain, tick[0]) in standing:
            row = standing[*grain, tick[0]]
            if row.registration != tick[1]:
                yield f"{when(evidence, entry.at)} {grain} commits a tick of {tick}, which was replaced"
        elif tick is not None and ((*grain, tick[0]), tick[1]) in ended:
            yield f"{when(evidence, entry.at)} {grain} commits a tick of {tick}, which was cancelled"
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
    owners = Owners(evidence)
    for begun in evidence.history.begun:
        at = ended.get(((*begun.grain, begun.name), begun.registration))
        if at is not None and begun.at > at and owners.at(*begun.grain, begun.at) == begun.silo:
            yield (
                f"{when(evidence, begun.at)} {begun.grain} {begun.name} begins "
                f"{(begun.at - at) / 1e6:.6f} s after its cancel committed"
            )


def tick_of(entry: Committed) -> tuple[str, int, int] | None:
    """Name, registration and occurrence of the tick that a commit is the turn of."""
    settle = entry.commit.settle
    if settle is None or entry.commit.grain is None:
        return None
    return settle.name, settle.registration, settle.occurrence
