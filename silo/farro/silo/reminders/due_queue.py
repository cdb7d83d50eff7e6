"""The due entries in memory: a pure structure that never looks at a clock.

An entry *waits* until its wake time, is then *ready*, and is *out* while its tick is on its way through a
mailbox, a turn and a commit.  A tick that finds no permit is *parked* until one is free; while one of its
lane is, no other leaves the lane.  Ready and parked entries come by priority, then due time, then
registration order.  There is one entry per reminder, so one reminder never has two ticks queued or running.

The bucket is the bound on entries: one that is out stays until its commit, and is never evicted; any other
gives way to what ranks higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum

from farro.client.reminders import ReminderPriority
from farro.providers.rows import ReminderRow
from farro.silo.reminders.lazy_heap import LazyHeap

GrainKey = tuple[str, str]
Key = tuple[str, str, str]  # grain type, grain key, reminder name

AGED_ONE_IN = 8  # starts: one in eight goes to the oldest entry that has waited beyond the bound


class Stage(IntEnum):
    WAITING = 0
    READY = 1
    PARKED = 2
    OUT = 3


WAITING, READY, PARKED, OUT = Stage  # plain names: a tick passes through here several times


class Entry:
    """One reminder that is due soon or now.  ``stale``: read its row again before delivering it.

    ``edited``: its row changed in ways unknown here while its tick was out.
    ``aged``: it has waited so long that no higher priority takes its place in the bucket.
    """

    __slots__ = (
        "aged",
        "dead",
        "due_at",
        "edited",
        "go_on",
        "key",
        "lane",
        "row",
        "stage",
        "stale",
        "stamp",
        "wake_at",
    )

    def __init__(self, key: Key, row: ReminderRow, wake_at: int, lane: int, aged: bool) -> None:
        self.key = key
        self.row = row
        self.wake_at = wake_at
        self.due_at = row.next_due_at if row.next_due_at is not None else wake_at
        self.lane = lane
        self.aged = aged
        self.go_on: Callable[[], None] | None = None  # how its tick goes on once it has a permit
        self.stage = WAITING
        self.stamp = 0
        self.dead = False
        self.stale = False
        self.edited = False

    @property
    def is_read_again(self) -> bool:
        """It is out, and not with a tick: its row is being read."""
        return self.stale and self.stage is OUT

    @property
    def place(self) -> int:
        """The lane that its place in the bucket is defended with."""
        return 0 if self.aged else self.lane


class DueQueue:
    """At most ``capacity`` entries (the bucket); entries that are out count and are never evicted."""

    def __init__(self, capacity: int, *, by_priority: bool, background_wait_max_us: int) -> None:
        self.capacity = capacity
        self._by_priority = by_priority
        self._wait_max = background_wait_max_us
        self._entries: dict[Key, Entry] = {}
        self._grains: dict[GrainKey, tuple[str, ...]] = {}  # names of reminders; mostly one
        self._waiting = LazyHeap[Entry](capacity)  # by wake time
        self._ready = [LazyHeap[Entry](capacity) for _ in ReminderPriority]  # by due time, a lane each
        self._parked = [LazyHeap[Entry](capacity) for _ in ReminderPriority]
        self._lanes = list(zip(self._ready, self._parked, strict=True))
        self._worst_waiting = LazyHeap[Entry](capacity)  # lowest priority, latest first
        self._worst_due = LazyHeap[Entry](capacity)  # ready or parked
        self._now = -1 << 63  # of the last advance
        self._taken = 0  # from among the ready
        self._starts = 0  # from among the parked, or past them
        self._counts = [0 for _ in Stage]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @property
    def waiting(self) -> int:
        """Entries that are not due yet."""
        return self._counts[WAITING]

    @property
    def ready(self) -> int:
        """Entries that are due and on no way yet."""
        return self._counts[READY]

    @property
    def parked(self) -> int:
        """Entries whose ticks wait for a permit."""
        return self._counts[PARKED]

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def names_of(self, grain: GrainKey) -> list[str]:
        return list(self._grains.get(grain, ()))

    # ---- in

    def offer(self, row: ReminderRow, wake_at: int, *, aged: bool = False) -> ReminderRow | None:
        """Hold a row, replacing the entry of its name.  Answers the row that found no room, if any.

        An entry that is out with the same registration and occurrence stays out; its row is refreshed.
        """
        key = (row.grain_type, row.grain_key, row.name)
        held = self._entries.get(key)
        if held is not None:
            if _same_occurrence(held.row, row):
                unmoved = held.wake_at == wake_at and held.row.priority == row.priority
                if unmoved or held.stage is OUT:
                    held.row = row
                    held.stale = False
                    self._age(held, aged)
                    return None
            self.kill(held)
        return self._hold(key, row, wake_at, aged)

    def replace(self, row: ReminderRow, wake_at: int) -> ReminderRow | None:
        """Hold a row in the place of whatever entry its name has.  Answers the row that found no room."""
        key = (row.grain_type, row.grain_key, row.name)
        self.remove(key)
        return self._hold(key, row, wake_at, aged=False)

    def _hold(self, key: Key, row: ReminderRow, wake_at: int, aged: bool) -> ReminderRow | None:
        lane = min(max(row.priority, 0), len(self._ready) - 1) if self._by_priority else 0
        entry = Entry(key, row, wake_at, lane, aged)
        if wake_at <= self._now:
            entry.stage = READY
        evicted: ReminderRow | None = None
        if len(self._entries) >= self.capacity:
            worst = self._worst()
            if worst is None or self._badness(worst) <= self._badness(entry):
                return row
            self.kill(worst)
            evicted = worst.row
        self._entries[key] = entry
        grain = key[:2]
        names = self._grains.get(grain)
        self._grains[grain] = (key[2],) if names is None else (*names, key[2])
        self._counts[entry.stage] += 1
        if entry.stage is READY:
            self._line_up(entry, READY)
        else:
            self._wait(entry)
        return evicted

    def _move(self, entry: Entry, stage: Stage) -> None:
        counts = self._counts
        counts[entry.stage] -= 1
        counts[stage] += 1
        entry.stage = stage
        entry.stamp += 1

    def _wait(self, entry: Entry) -> None:
        self._move(entry, WAITING)
        entry.go_on = None
        self._waiting.add((entry.wake_at,), entry)
        self._worst_waiting.add((-entry.place, -entry.wake_at), entry)

    def _line_up(self, entry: Entry, stage: Stage) -> None:
        """A due entry takes its place in its lane, and among those that may have to give way."""
        self._move(entry, stage)
        lanes = self._ready if stage is READY else self._parked
        lanes[entry.lane].add((entry.due_at, entry.row.registration), entry)
        self._worst_due.add((-entry.place, -entry.due_at), entry)

    def _age(self, entry: Entry, aged: bool) -> None:
        if aged and not entry.aged:
            entry.aged = True
            if entry.stage in (READY, PARKED):
                self._line_up(entry, entry.stage)  # a new stamp takes its old place back

    def put_back(self, entry: Entry, wake_at: int) -> None:
        """An entry that was out waits again until ``wake_at``."""
        if entry.dead:
            return
        entry.wake_at = wake_at
        self._wait(entry)

    # ---- out

    def remove(self, key: Key) -> None:
        """Forget a reminder; a tick of it that has not begun will not begin."""
        entry = self._entries.get(key)
        if entry is not None:
            self.kill(entry)

    def kill(self, entry: Entry) -> None:
        """:meth:`remove` for an entry that is held."""
        self._counts[entry.stage] -= 1
        entry.dead = True
        entry.stamp += 1
        key = entry.key
        del self._entries[key]
        grain = key[:2]
        names = self._grains[grain]
        if len(names) == 1:
            del self._grains[grain]
        else:
            self._grains[grain] = tuple(name for name in names if name != key[2])

    def advance(self, now: int) -> None:
        """What waited until ``now`` is ready; so is what comes in and is due by then."""
        self._now = now
        while (entry := self._waiting.first()) is not None and entry.wake_at <= now:
            self._line_up(entry, READY)

    def next_wake(self) -> int | None:
        """When the next waiting entry becomes ready."""
        entry = self._waiting.first()
        return None if entry is None else entry.wake_at

    def take(self, may_start: bool) -> Entry | None:
        """The due entry that goes next; it is out from here on.

        A parked one only when its tick ``may_start`` now; nothing of a lane goes past what is parked there.
        By priority, except that one in eight is the oldest lower-priority entry that is overdue by more than
        the bound: nothing starves, nothing floods.
        """
        firsts = []
        for ready, parked in self._lanes:
            if parked and (entry := parked.first()) is not None:
                if may_start:
                    firsts.append(entry)
            elif ready and (entry := ready.first()) is not None:
                firsts.append(entry)
        if not firsts:
            return None
        # counted apart: an entry that is parked in between is taken twice
        if firsts[0].stage is PARKED:
            self._starts += 1
            chosen = self._aged(firsts, self._starts) or firsts[0]
        else:
            self._taken += 1
            chosen = self._aged(firsts, self._taken) or firsts[0]
        self._move(chosen, OUT)
        return chosen

    def park(self, entry: Entry, go_on: Callable[[], None]) -> None:
        """The tick of an entry that is out found no permit; ``go_on`` is for whoever finds it one."""
        entry.go_on = go_on
        self._line_up(entry, PARKED)

    def passes(self, entry: Entry) -> bool:
        """May the tick of an entry that is out begin before everything that is parked?"""
        if not self._counts[PARKED]:
            return True
        firsts = [first for lane in self._parked if (first := lane.first()) is not None]
        if _rank(firsts[0]) < _rank(entry) or self._aged(firsts, self._starts + 1) is not None:
            return False
        self._starts += 1
        return True

    def _aged(self, firsts: list[Entry], start: int) -> Entry | None:
        """The oldest lower-priority entry beyond the bound, if it is its turn."""
        if start % AGED_ONE_IN or len(firsts) == 1:
            return None
        aged = [entry for entry in firsts[1:] if entry.due_at < self._now - self._wait_max]
        return min(aged, key=lambda entry: entry.due_at, default=None)

    # ---- the bucket's edge

    def resize(self, capacity: int) -> list[ReminderRow]:
        """Hold at most ``capacity`` entries from here on.  Answers the rows that had to go.

        Entries that are out stay, so a smaller bucket is reached as they come home.
        """
        self.capacity = capacity
        for heap in (self._waiting, self._worst_waiting, self._worst_due, *self._ready, *self._parked):
            heap.live_max = capacity
        gone = []
        while len(self._entries) > capacity and (worst := self._worst()) is not None:
            self.kill(worst)
            gone.append(worst.row)
        return gone

    def gives_way_to(self, priority: int) -> bool:
        """Is a due entry held that would be evicted for a due row of ``priority``?"""
        worst = self._worst_due.first()
        return self._by_priority and worst is not None and worst.place > priority

    def _worst(self) -> Entry | None:
        """What has to go first.  A stale entry stays: a page that brings it anew does not know that it is."""
        for heap in (self._worst_waiting, self._worst_due):
            while (worst := heap.first()) is not None:
                if not worst.stale:
                    return worst
                heap.drop_first()
        return None

    @staticmethod
    def _badness(entry: Entry) -> tuple[int, int, int]:
        """What goes first when there is no room: the not yet due, the lowest priority, the latest."""
        if entry.stage is WAITING:
            return (1, entry.place, entry.wake_at)
        return (0, entry.place, entry.due_at)


def _same_occurrence(one: ReminderRow, other: ReminderRow) -> bool:
    return one.registration == other.registration and one.occurrence == other.occurrence


def _rank(entry: Entry) -> tuple[int, int, int]:
    return (entry.lane, entry.due_at, entry.row.registration)
