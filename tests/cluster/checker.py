"""Holds what the clients were told against what the store says.  Pure.

Each rule returns texts, one per violation; :func:`check` runs them all.  What is demanded:

* a call that was answered is in its ledger once, at the place that it was told; one whose error says that its
  turn did not run is in none; no entry is there twice, and none that nobody sent;
* a call that began after another one's answer came stands behind it, and a read sees every answered call;
* every commit of a grain moved its version by one, its writer had taken the partition last, and
  epochs never fell;
* each tick is on its reminder's grid, not before its time, once; what is missing is counted as missed;
* every call ended within its deadline and a margin.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

from farro.client.reminders import MissedReminderAction
from tests.cluster.history import ChimeSeen, CommitSeen, History, LedgerSeen, Made, Read, Stored

SHOWN_MAX = 5
TICK_LATE_MAX_US = 60_000_000  # a reminder that is overdue by more when all is well again was forgotten


@dataclass(slots=True)
class Findings:
    """Violations by kind; all empty is the proof."""

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    ran_after_all: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    stale_reads: list[str] = field(default_factory=list)
    stale_commits: list[str] = field(default_factory=list)
    ticks_early: list[str] = field(default_factory=list)
    ticks_lost: list[str] = field(default_factory=list)
    ticks_twice: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)

    @property
    def none(self) -> bool:
        return not any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        lines: list[str] = []
        for each in fields(self):
            found = getattr(self, each.name)
            lines.append(f"  {each.name.replace('_', ' ')}: {len(found)}")
            lines += [f"    {one}" for one in found[:SHOWN_MAX]]
        return "\n".join(lines)


def check(history: History, stored: Stored, *, margin_s: float) -> Findings:
    """``margin_s``: how much later than its deadline a call may end on a crowded machine."""
    findings = Findings(hung=[*history.hung, *_late(history.made, margin_s)])
    _check_entries(findings, history.made, stored.ledgers)
    findings.out_of_order += _out_of_order(history.made)
    findings.stale_reads += _stale_reads(history.made, history.reads)
    if stored.commits is not None:
        findings.stale_commits += _stale_commits(stored.commits)
    findings.stale_commits += _versions(stored)
    for chime in stored.chimes:
        _check_chime(findings, chime, stored.read_at)
    return findings


# ---- calls


def _late(made: Iterable[Made], margin_s: float) -> Iterator[str]:
    for each in made:
        if each.ended_s - each.began_s > each.limit_s + margin_s:
            yield f"call {each.call} took {each.ended_s - each.began_s:.1f} s of {each.limit_s:g} s"


def _check_entries(findings: Findings, made: Iterable[Made], ledgers: Iterable[LedgerSeen]) -> None:
    sent = {each.call: each for each in made}
    entered = Counter(call for ledger in ledgers for call, _, _ in ledger.entries)
    findings.twice += [f"call {call} is there {times} times" for call, times in entered.items() if times > 1]
    places: dict[int, tuple[str, int, int]] = {}
    for ledger in ledgers:
        for place, (call, amount, process) in enumerate(ledger.entries):
            places[call] = (ledger.key, place, amount)
            if call not in sent:
                findings.twice.append(f"{ledger.key}: call {call} was never sent (process {process})")
    for call, each in sent.items():
        found = places.get(call)
        must = each.ok or (each.turn_ran is True and not each.relayed)
        if must and found is None:
            findings.lost.append(f"{each.ledger}: call {call} was answered with place {each.place}")
        elif each.ok and found != (each.ledger, each.place, each.amount):
            findings.lost.append(f"{each.ledger}: call {call} was told place {each.place}, stands at {found}")
        elif not each.ok and each.turn_ran is False and not each.relayed and found is not None:
            findings.ran_after_all.append(f"{each.ledger}: call {call} failed as {each.error} without a turn")


@dataclass(slots=True)
class _Answered:
    """The places of one ledger's answered calls, by the time of their answers."""

    ended_s: list[float] = field(default_factory=list)
    highest: list[int] = field(default_factory=list)  # up to and including that answer

    def highest_before(self, at_s: float) -> int:
        """The highest place answered before then, -1 if there is none."""
        count = bisect_left(self.ended_s, at_s)
        return self.highest[count - 1] if count else -1


def _answered(made: Iterable[Made]) -> dict[str, _Answered]:
    by_ledger: dict[str, _Answered] = {}
    for each in sorted((each for each in made if each.ok), key=lambda each: each.ended_s):
        assert each.place is not None
        known = by_ledger.setdefault(each.ledger, _Answered())
        known.ended_s.append(each.ended_s)
        known.highest.append(max(each.place, known.highest[-1] if known.highest else -1))
    return by_ledger


def _out_of_order(made: Sequence[Made]) -> Iterator[str]:
    answered = _answered(made)
    for each in made:
        if each.place is not None:
            before = answered[each.ledger].highest_before(each.began_s)
            if each.place <= before:
                yield f"{each.ledger}: call {each.call} got place {each.place} after {before} was answered"


def _stale_reads(made: Iterable[Made], reads: Iterable[Read]) -> Iterator[str]:
    answered = _answered(made)
    for each in reads:
        known = answered.get(each.ledger)
        before = known.highest_before(each.began_s) if known is not None else -1
        if each.length <= before:
            yield f"{each.ledger}: a read saw {each.length} entries after place {before} was answered"


# ---- commits


def _stale_commits(commits: Iterable[CommitSeen]) -> Iterator[str]:
    epochs: dict[int, int] = {}
    versions: dict[str, int] = {}
    for each in commits:
        if each.epoch < epochs.get(each.partition, 0):
            yield f"partition {each.partition}: epoch {each.epoch} after {epochs[each.partition]}"
        epochs[each.partition] = max(each.epoch, epochs.get(each.partition, 0))
        if each.version != versions.get(each.grain, 0) + 1:
            yield f"{each.grain}: version {each.version} after {versions.get(each.grain, 0)}"
        versions[each.grain] = each.version
        if each.by != each.taken_by:
            yield f"{each.grain}: {each.by} wrote version {each.version}, {each.taken_by} had the partition"


def _versions(stored: Stored) -> Iterator[str]:
    """Every turn of these grains that commits adds one entry, so versions count them."""
    for ledger in stored.ledgers:
        if ledger.version != len(ledger.entries):
            yield f"{ledger.key}: version {ledger.version} and {len(ledger.entries)} entries"


# ---- ticks


def _check_chime(findings: Findings, chime: ChimeSeen, read_at: int) -> None:
    counts = Counter(tick.occurrence for tick in chime.ticks)
    findings.ticks_twice += [
        f"{chime.key}: occurrence {occurrence} {times} times"
        for occurrence, times in counts.items()
        if times > 1
    ]
    findings.ticks_early += [
        f"{chime.key}: occurrence {tick.occurrence} began {tick.due_at - tick.began_at} us before it was due"
        for tick in chime.ticks
        if tick.began_at < tick.due_at
    ]
    findings.ticks_lost += _unaccounted(chime)
    findings.ticks_lost += _stuck(chime, read_at)
    for earlier, later in pairwise(chime.ticks):
        if later.due_at <= earlier.due_at:
            findings.ticks_twice.append(f"{chime.key}: due {later.due_at} after due {earlier.due_at}")


def _unaccounted(chime: ChimeSeen) -> Iterator[str]:
    """Grid instants before, between and after the ticks that no count tells of."""
    period, row = chime.period_us, chime.row
    for earlier, later in pairwise(chime.ticks):
        if (later.due_at - earlier.due_at) % period:
            yield f"{chime.key}: due {later.due_at} is not on the grid of {earlier.due_at}"
        between = (later.due_at - earlier.due_at) // period - 1
        if not _told(chime, between, earlier.missed_count, later.missed_count):
            yield f"{chime.key}: {between} instants are absent before occurrence {later.occurrence}"
    if row is None:
        if len(chime.ticks) != chime.times:
            yield f"{chime.key}: the reminder is gone after {len(chime.ticks)} of {chime.times} ticks"
        return
    if chime.ticks:
        passed = (chime.ticks[0].due_at - row.start_at) // period
        if not _told(chime, passed, 0, chime.ticks[0].missed_count):
            yield f"{chime.key}: {passed} instants passed over before its first tick"
    if row.next_due_at is not None:
        before, carried = row.start_at - period, 0
        if chime.ticks:
            before, carried = chime.ticks[-1].due_at, chime.ticks[-1].missed_count
        passed = (row.next_due_at - before) // period - 1
        if not _told(chime, passed, carried, row.missed_count):
            yield f"{chime.key}: {passed} instants passed over since, {row.missed_count} counted"


def _told(chime: ChimeSeen, absent: int, earlier: int, later: int) -> bool:
    """Do the counts of the tick before and of what comes after tell of the instants that are absent?

    FIRE_IMMEDIATELY's tick is for itself and those behind it (and counts itself when it was missed); the
    other actions count what they pass over, and the next tick carries that.
    """
    if chime.action == MissedReminderAction.FIRE_IMMEDIATELY:
        return absent <= earlier + later
    return absent == later


def _stuck(chime: ChimeSeen, read_at: int) -> Iterator[str]:
    row = chime.row
    if row is None:
        return
    if row.status != "scheduled" or row.next_due_at is None:
        yield f"{chime.key}: the reminder is {row.status}, next due {row.next_due_at}"
    elif row.next_due_at < read_at - TICK_LATE_MAX_US:
        yield f"{chime.key}: overdue by {(read_at - row.next_due_at) / 1e6:.0f} s"
