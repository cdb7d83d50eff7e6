"""The bucket: which reminders are held in memory, kept true by pages of the table and by committed changes.

Pure; the service does the waiting.  A read may be older than a commit that was acknowledged, or whose answer
was lost, while the read was out, so what changed after it began is noted and skipped.  ``until`` is how far
the bucket looks ahead, ``complete_until`` how far it is complete, by priority: every row that wakes by then
is held.
"""

from __future__ import annotations

from collections.abc import Iterator

from farro.client.reminders import ReminderPriority
from farro.providers.rows import (
    Commit,
    DeleteOperation,
    DeleteReminder,
    EditReminder,
    Progress,
    PutMode,
    PutReminder,
    ReminderRow,
    Settle,
    Verdict,
)
from farro.silo.reminders.due_queue import DueQueue, Entry, GrainKey, Key, Stage
from farro.silo.reminders.poller import Page

LOW_WATER = 4  # refill when fewer than a quarter of the bucket is held
ROWS_IN_A_ROW = 128  # a few milliseconds of work
NO_PARTITION = -1
LEAD_US = 100_000  # of schedule time: a refill begins so long before the first row that is not held wakes


class HeldReminders:
    def __init__(self, queue: DueQueue) -> None:
        self.queue = queue
        self.until = 0
        self._complete_until = [0 for _ in ReminderPriority]
        self.page_outdated = False  # rows of a grain vanished under a page: read another one soon
        self._reads_out = 0
        self._changes = 0
        self._changed: dict[Key, int] = {}  # the number of the last change, while a read is out
        self._changed_grains: dict[GrainKey, int] = {}
        self._changed_partitions: dict[int, int] = {}

    # ---- what the table says

    def read_began(self) -> int:
        """A mark for what the read will answer: it knows nothing of later changes."""
        self._reads_out += 1
        return self._changes

    def read_over(self) -> None:
        self._reads_out -= 1
        if not self._reads_out:
            self._changed.clear()
            self._changed_grains.clear()
            self._changed_partitions.clear()

    def hold_page(self, page: Page, until: int, began: int) -> Iterator[None]:
        """Take the rows of a poll that was answered just now; ``began`` is its mark.

        Pauses every few rows, where the loop may do something else.  A page of some priorities, the highest
        first, says nothing of the others.
        """
        if len(page.complete_until) == len(self._complete_until):
            self.until = until
            self.page_outdated = False
        self._complete_until[: len(page.complete_until)] = page.complete_until
        for rows, aged in ((page.aged, True), (page.rows, False)):
            for number, row in enumerate(rows, 1):
                if number % ROWS_IN_A_ROW == 0:
                    yield
                key = (row.grain_type, row.grain_key, row.name)
                if self._changes != began and self._outdated(key, row.partition, began):
                    continue
                entry = self.queue.get(key)
                # A stale entry waits for a read of its own: a straggling commit may land behind this page.
                if entry is None or not entry.stale:
                    self._offer(row, aged=aged)

    def hold_again(self, key: Key, row: ReminderRow | None, began: int) -> bool:
        """Take what the table says now of one reminder.

        False: the answer may be older than what is known, and the entry still waits for a read.
        """
        entry = self.queue.get(key)
        known = row if row is not None or entry is None else entry.row
        if self._outdated(key, NO_PARTITION if known is None else known.partition, began):
            return entry is None or not entry.is_read_again
        self._note(key)  # pages that were asked for before know less
        if row is None or row.wake_at is None or row.wake_at > self.until:
            self.queue.remove(key)
        elif entry is not None and entry.stale:
            self._no_room(self.queue.replace(row, row.wake_at))
        else:
            self._offer(row)
        return True

    def _outdated(self, key: Key, partition: int, began: int) -> bool:
        changes = (
            self._changed.get(key, 0),
            self._changed_grains.get(key[:2], 0),
            self._changed_partitions.get(partition, 0),
        )
        return max(changes) > began

    def _offer(self, row: ReminderRow, *, aged: bool = False) -> None:
        if row.wake_at is not None:
            self._no_room(self.queue.offer(row, row.wake_at, aged=aged))

    def _replace(self, key: Key, row: ReminderRow) -> None:
        if row.wake_at is None or row.wake_at > self.until:
            self.queue.remove(key)
        else:
            self._no_room(self.queue.replace(row, row.wake_at))

    def _no_room(self, row: ReminderRow | None) -> None:
        """A row that is not held: the table knows it, and the next refill must look for it."""
        if row is not None and row.wake_at is not None:
            lane = min(max(row.priority, 0), len(self._complete_until) - 1)
            self._complete_until[lane] = min(self._complete_until[lane], row.wake_at - 1)

    # ---- room

    @property
    def complete_until(self) -> int:
        """Every row that wakes up to then is held (schedule time)."""
        return min(self._complete_until)

    def wants_refill(self, now: int) -> bool:
        """More is due, or soon due, than is held, and there is room worth a trip to the table."""
        if self.complete_until >= self.until:
            return False
        capacity = self.queue.capacity
        if self.complete_until < now + LEAD_US:
            return self._room_for_due >= max(1, capacity // 2)
        return capacity - len(self.queue) >= capacity - capacity // LOW_WATER

    def next_gap(self, now: int) -> int | None:
        """When to look again whether to refill: as a row that is not held comes near, and as it wakes."""
        gaps = [
            instant
            for complete in self._complete_until
            if complete < self.until
            for instant in (complete - LEAD_US, complete + 1)
            if instant > now
        ]
        return min(gaps, default=None)

    def is_behind(self, now: int) -> bool:
        """More is due than is held, and there is some room for it."""
        return self.complete_until < min(now, self.until) and self._room_for_due > 0

    def pressing(self, now: int) -> int:
        """How many priorities, the highest first, to read because more is due of them than is held, and it
        ranks before what is held."""
        pressing = (
            priority + 1
            for priority, complete in enumerate(self._complete_until)
            if complete < min(now, self.until) and self.queue.gives_way_to(priority)
        )
        return max(pressing, default=0)

    @property
    def _room_for_due(self) -> int:
        """What is not due yet gives way to what is."""
        return self.queue.capacity - len(self.queue) + self.queue.waiting

    def resize(self, capacity: int) -> None:
        """Another bucket size; what no longer has room is left to the table."""
        for row in self.queue.resize(capacity):
            self._no_room(row)

    # ---- whose they are

    def drop(self, partitions: frozenset[int]) -> None:
        """These partitions are owned no more: nothing of theirs is held, and no tick of theirs begins."""
        for entry in [each for each in self.queue if each.row.partition in partitions]:
            self.queue.kill(entry)
        self.owner_changed(partitions)

    def let_go(self, entry: Entry) -> None:
        """Its commit was fenced: another silo owns the partition, or the next poll brings it again."""
        if not entry.dead:
            self.queue.kill(entry)

    def owner_changed(self, partitions: frozenset[int]) -> None:
        """What was asked for before knows nothing of what another owner has done, or does, meanwhile."""
        if self._reads_out:
            self._changes += 1
            self._changed_partitions.update(dict.fromkeys(partitions, self._changes))

    # ---- what was committed

    def committed(self, commit: Commit, verdict: Verdict) -> list[Key]:
        """Follow one committed member.  Answers the reminders whose rows must be read to be known."""
        look_up: list[Key] = []
        if commit.grain is not None and commit.grain.destroy:
            self._forget_all(commit)
        if commit.settle is not None and verdict.settled:
            self._settled((commit.grain_type, commit.grain_key, commit.settle.name), commit.settle)
        for change in commit.reminders:
            match change:
                case PutReminder(row, mode):
                    look_up += self._put(row, mode, verdict)
                case DeleteReminder(name):
                    self._forget((commit.grain_type, commit.grain_key, name))
                case DeleteOperation(operation):
                    self._forget_all(commit, operation)
                case EditReminder(name):
                    look_up.append(self._doubt((commit.grain_type, commit.grain_key, name)))
        return look_up

    def lost(self, commit: Commit) -> list[Key]:
        """Nobody knows whether a member was applied.  Answers the reminders whose rows must be read again."""
        if not commit.reminders and (commit.grain is None or not commit.grain.destroy):
            return []  # only a settle: its tick or skip sees to its own entry
        grain = (commit.grain_type, commit.grain_key)
        names = set(self.queue.names_of(grain))
        names |= {change.row.name for change in commit.reminders if isinstance(change, PutReminder)}
        names |= {change.name for change in commit.reminders if isinstance(change, DeleteReminder)}
        return [self._doubt((*grain, name)) for name in sorted(names)]

    def distrust(self, entry: Entry) -> None:
        """Nobody knows what became of the entry's commit: its row is read again before it fires."""
        entry.stale, entry.edited = True, False
        self._note(entry.key)

    def _note(self, key: Key) -> None:
        if self._reads_out:
            self._changes += 1
            self._changed[key] = self._changes

    def _settled(self, key: Key, settle: Settle) -> None:
        self._note(key)
        entry = self.queue.get(key)
        if entry is None:
            return
        row, progress = entry.row, settle.progress
        if row.registration != settle.registration or row.occurrence != settle.occurrence:
            return
        if progress is None or progress.wake_at is None or progress.wake_at > self.until:
            self.queue.kill(entry)
        else:
            self._no_room(self.queue.replace(moved(row, progress), progress.wake_at))
            following = self.queue.get(key)
            if following is not None:
                following.stale = (
                    entry.edited
                )  # the read that was to tell of the edit may know nothing of this

    def _put(self, row: ReminderRow, mode: PutMode, verdict: Verdict) -> list[Key]:
        key = (row.grain_type, row.grain_key, row.name)
        if row.name in verdict.kept:
            return [self._doubt(key)] if mode is PutMode.KEEP_PROGRESS else []
        self._note(key)
        self._replace(key, row)
        return []

    def _doubt(self, key: Key) -> Key:
        """The row changed in ways that were not computed here: it is read again before it fires."""
        self._note(key)
        entry = self.queue.get(key)
        if entry is not None:
            entry.edited = entry.stage is Stage.OUT and not entry.is_read_again
            entry.stale = not entry.edited
        return key

    def _forget(self, key: Key) -> None:
        self._note(key)
        self.queue.remove(key)

    def _forget_all(self, commit: Commit, operation: str | None = None) -> None:
        grain = (commit.grain_type, commit.grain_key)
        for name in self.queue.names_of(grain):
            entry = self.queue.get((*grain, name))
            if entry is not None and operation in (None, entry.row.operation):
                self.queue.remove((*grain, name))
        if self._reads_out:
            self._changes += 1
            self._changed_grains[grain] = self._changes
            self.page_outdated = True


def moved(row: ReminderRow, progress: Progress) -> ReminderRow:
    """The row after its progress was committed.  By hand: ``replace`` takes three times as long."""
    return ReminderRow(
        row.grain_type,
        row.grain_key,
        row.partition,
        row.name,
        row.operation,
        row.key,
        row.args,
        row.start_at,
        row.period_us,
        row.cron,
        row.timezone,
        row.day_match,
        row.until_at,
        progress.times_left,
        row.jitter_us,
        progress.next_due_at,
        progress.wake_at,
        progress.last_fire_at,
        row.priority,
        row.action,
        row.registration,
        progress.occurrence,
        progress.attempts,
        progress.missed_count,
        progress.first_missed_at,
        progress.catch_up_left,
        progress.status,
        progress.note,
    )
