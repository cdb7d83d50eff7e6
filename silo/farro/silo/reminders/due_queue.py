"""The due entries in memory: a pure structure that never looks at a clock.

An entry *waits* until its wake time, is then *ready*, and is *out* while its tick is on its way through a
mailbox, a turn and a commit.  Ready entries come by priority, then due time, then registration order.  There
is one entry per reminder, so one reminder never has two ticks queued or running.

The bucket is the bound on entries: one that is out stays until its commit, and is never evicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from farro.client.reminders import ReminderPriority
from farro.providers.rows import ReminderRow
from farro.silo.reminders.lazy_heap import LazyHeap

GrainKey = tuple[str, str]
Key = tuple[str, str, str]  # grain type, grain key, reminder name

AGED_ONE_IN = 8  # starts: one in eight goes to the oldest entry that has waited beyond the bound


class Stage(Enum):
    WAITING = "waiting"
    READY = "ready"
    OUT = "out"


class Entry:
    """One reminder that is due soon or now.  ``stale``: read its row again before delivering it."""

    __slots__ = ("dead", "due_at", "lane", "row", "stage", "stale", "stamp", "wake_at")

    def __init__(self, row: ReminderRow, wake_at: int, lane: int) -> None:
        self.row = row
        self.wake_at = wake_at
        self.due_at = row.next_due_at if row.next_due_at is not None else wake_at
        self.lane = lane
        self.stage = Stage.WAITING
        self.stamp = 0
        self.dead = False
        self.stale = False

    def move(self, stage: Stage) -> None:
        self.stage = stage
        self.stamp += 1

    @property
    def key(self) -> Key:
        return (self.row.grain_type, self.row.grain_key, self.row.name)

    @property
    def rank(self) -> tuple[int, int, int]:
        """What goes first among ready entries."""
        return (self.lane, self.due_at, self.row.registration)


class DueQueue:
    """At most ``capacity`` entries (the bucket); entries that are out count and are never evicted."""

    def __init__(self, capacity: int, *, by_priority: bool, background_wait_max_us: int) -> None:
        self.capacity = capacity
        self._by_priority = by_priority
        self._wait_max = background_wait_max_us
        self._entries: dict[Key, Entry] = {}
        self._grains: dict[GrainKey, set[str]] = {}
        self._waiting = LazyHeap[Entry](capacity)  # by wake time
        self._ready = [LazyHeap[Entry](capacity) for _ in ReminderPriority]  # by due time, a lane each
        self._worst_waiting = LazyHeap[Entry](capacity)  # lowest priority, latest first
        self._worst_ready = LazyHeap[Entry](capacity)
        self._starts = 0
        self.ready = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def names_of(self, grain: GrainKey) -> list[str]:
        return list(self._grains.get(grain, ()))

    # ---- in

    def offer(self, row: ReminderRow, wake_at: int) -> ReminderRow | None:
        """Hold a row, replacing the entry of its name.  Answers the row that found no room, if any.

        An entry that is out with the same registration and occurrence stays out; its row is refreshed.
        """
        held = self._entries.get((row.grain_type, row.grain_key, row.name))
        if held is not None and _same_occurrence(held.row, row):
            unmoved = held.wake_at == wake_at and held.row.priority == row.priority
            if unmoved or held.stage is Stage.OUT:
                held.row = row
                held.stale = False
                return None
        return self.replace(row, wake_at)

    def replace(self, row: ReminderRow, wake_at: int) -> ReminderRow | None:
        """Hold a row in the place of whatever entry its name has.  Answers the row that found no room."""
        key = (row.grain_type, row.grain_key, row.name)
        self.remove(key)
        lane = min(max(row.priority, 0), len(self._ready) - 1) if self._by_priority else 0
        entry = Entry(row, wake_at, lane)
        evicted: ReminderRow | None = None
        if len(self._entries) >= self.capacity:
            worst = self._worst()
            if worst is None or self._badness(worst) <= self._badness(entry):
                return row
            self._kill(worst)
            evicted = worst.row
        self._hold(key, entry)
        return evicted

    def _hold(self, key: Key, entry: Entry) -> None:
        self._entries[key] = entry
        self._grains.setdefault(key[:2], set()).add(key[2])
        self._wait(entry)

    def _wait(self, entry: Entry) -> None:
        entry.move(Stage.WAITING)
        self._waiting.add((entry.wake_at,), entry)
        self._worst_waiting.add((-entry.lane, -entry.wake_at), entry)

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
            self._kill(entry)

    def _kill(self, entry: Entry) -> None:
        if entry.stage is Stage.READY:
            self.ready -= 1
        entry.dead = True
        entry.stamp += 1
        key = entry.key
        del self._entries[key]
        names = self._grains[key[:2]]
        names.discard(key[2])
        if not names:
            del self._grains[key[:2]]

    def advance(self, now: int) -> None:
        """What waited until ``now`` is ready."""
        while (entry := self._waiting.first()) is not None and entry.wake_at <= now:
            entry.move(Stage.READY)
            self.ready += 1
            self._ready[entry.lane].add((entry.due_at, entry.row.registration), entry)
            self._worst_ready.add((-entry.lane, -entry.due_at), entry)

    def next_wake(self) -> int | None:
        """When the next waiting entry becomes ready."""
        entry = self._waiting.first()
        return None if entry is None else entry.wake_at

    def take(self, now: int) -> Entry | None:
        """The ready entry that goes next; it is out from here on.

        By priority, except that one start in eight goes to the oldest lower-priority entry that is overdue by
        more than the bound: nothing starves.
        """
        self._starts += 1
        firsts = [entry for lane in self._ready if (entry := lane.first()) is not None]
        if not firsts:
            return None
        chosen = firsts[0]
        if self._starts % AGED_ONE_IN == 0:
            aged = [entry for entry in firsts[1:] if entry.due_at < now - self._wait_max]
            chosen = min(aged, key=lambda entry: entry.due_at, default=chosen)
        chosen.move(Stage.OUT)
        self.ready -= 1
        return chosen

    # ---- the bucket's edge

    def resize(self, capacity: int) -> list[ReminderRow]:
        """Hold at most ``capacity`` entries from here on.  Answers the rows that had to go.

        Entries that are out stay, so a smaller bucket is reached as they come home.
        """
        self.capacity = capacity
        for heap in (self._waiting, self._worst_waiting, self._worst_ready, *self._ready):
            heap.live_max = capacity
        gone = []
        while len(self._entries) > capacity and (worst := self._worst()) is not None:
            self._kill(worst)
            gone.append(worst.row)
        return gone

    def _worst(self) -> Entry | None:
        worst = self._worst_waiting.first()
        return worst if worst is not None else self._worst_ready.first()

    @staticmethod
    def _badness(entry: Entry) -> tuple[int, int, int]:
        """What goes first when there is no room: the not yet due, the lowest priority, the latest."""
        if entry.stage is Stage.READY:
            return (0, entry.lane, entry.due_at)
        return (1, entry.lane, entry.wake_at)


def _same_occurrence(one: ReminderRow, other: ReminderRow) -> bool:
    return (one.registration, one.occurrence) == (other.registration, other.occurrence)
