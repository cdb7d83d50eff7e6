"""The tables of the memory store, and one member of a batch applied to them.  Pure: no loop, no clock."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field, replace

from farro.providers.checks import is_bounded, is_duplicate, too_many
from farro.providers.members import SiloRow
from farro.providers.rows import (
    PAUSED,
    SCHEDULED,
    Commit,
    DeleteReminder,
    EditReminder,
    EventRow,
    GrainRow,
    GrainWrite,
    OutboxRow,
    Outcome,
    PollQuery,
    Progress,
    PutReminder,
    ReminderChange,
    ReminderFilter,
    ReminderRow,
    RequestRow,
    Settle,
    Verdict,
    put_over,
)

PARTITIONS = 64
PROGRESS = tuple(Progress.__dataclass_fields__)

PollKey = tuple[int, int, str, str, str]  # wake_at, registration, grain_type, grain_key, name


@dataclass(slots=True)
class Partition:
    epoch: int = 0
    owner: int | None = None
    alive_at: int | None = None  # of the last owner that left
    sequence: int = 0
    events: list[tuple[int, EventRow]] = field(default_factory=list)
    heads: dict[str, int] = field(default_factory=dict)  # per stream, trimmed or not
    outbox: list[tuple[int, OutboxRow]] = field(default_factory=list)


class Service:
    """The rows of one service id."""

    def __init__(self) -> None:
        self.membership = threading.RLock()  # around silos, locks, view and owners
        self.view = 0
        self.last_number = 0
        self.silos: dict[int, SiloRow] = {}
        self.partitions: dict[int, Partition] = {}
        self.grains: dict[tuple[str, str], GrainRow] = {}
        self.reminders: dict[tuple[str, str], dict[str, ReminderRow]] = {}
        self.watermarks: dict[tuple[str, str], dict[str, int]] = {}
        self.locks: dict[int, object] = {}  # silo number: who holds its lock
        self.requests: dict[tuple[str, str, str], RequestRow] = {}  # grain type, grain key, request id
        self.wakes: dict[int, list[PollKey]] = {}  # per priority, ascending

    def set_reminder(self, grain: tuple[str, str], name: str, row: ReminderRow | None) -> None:
        """Put, move or delete one row, keeping the poll order beside the table."""
        rows = self.reminders.setdefault(grain, {})
        before = rows.pop(name, None)
        if before is not None and (key := poll_key(before)) is not None:
            wakes = self.wakes[before.priority]
            del wakes[bisect_left(wakes, key)]
        if row is not None:
            rows[name] = row
            if (key := poll_key(row)) is not None:
                insort(self.wakes.setdefault(row.priority, []), key)
        if not rows:
            del self.reminders[grain]


def poll_key(row: ReminderRow) -> PollKey | None:
    if row.status != SCHEDULED or row.wake_at is None:
        return None
    return row.wake_at, row.registration, row.grain_type, row.grain_key, row.name


def moved_to(row: ReminderRow, progress: Progress) -> ReminderRow:
    return replace(row, **{name: getattr(progress, name) for name in PROGRESS})


def matches(row: ReminderRow, where: ReminderFilter) -> bool:
    for name in ("grain_type", "grain_key", "operation", "priority", "action", "status"):
        wanted = getattr(where, name)
        if wanted is not None and getattr(row, name) != wanted:
            return False
    if where.due_until is None:
        return True
    return row.next_due_at is not None and row.next_due_at <= where.due_until


def sign_of_life(service: Service, number: int, now: int) -> bool:
    with service.membership:
        silo = service.silos.get(number)
        if silo is None or not silo.status.is_member:
            return False
        service.silos[number] = replace(silo, renewed_at=now)
        return True


def rows_of(service: Service, query: PollQuery) -> list[ReminderRow]:
    keys = service.wakes.get(query.priority, [])
    start = 0
    if query.after is not None:
        cursor = query.after
        start = bisect_right(
            keys, (cursor.wake_at, cursor.registration, cursor.grain_type, cursor.grain_key, cursor.name)
        )
    found: list[ReminderRow] = []
    for index in range(start, len(keys)):
        wake_at, _, grain_type, grain_key, name = keys[index]
        if wake_at > query.wake_until or len(found) >= query.limit:
            break
        row = service.reminders[grain_type, grain_key][name]
        if query.partitions is None or row.partition in query.partitions:
            found.append(row)
    return found


def apply(service: Service, member: Commit) -> Verdict:
    """One sound member.  All that can refuse it comes before the first change, so nothing is ever undone."""
    partition = service.partitions.get(member.partition)
    if partition is None or not member.epoch or partition.epoch != member.epoch:
        return Verdict(Outcome.FENCED)
    grain = (member.grain_type, member.grain_key)
    if member.request is not None:
        answered = service.requests.get((*grain, member.request.request_id))
        if answered is not None:
            return Verdict(Outcome.REPEATED, answer=answered.answer)
    before = service.grains.get(grain)
    if member.grain is not None and member.grain.expected_version != (before.version if before else 0):
        return Verdict(Outcome.CONFLICT)
    if is_duplicate(member, service.watermarks.get(grain, {})):
        return Verdict(Outcome.DUPLICATE)
    settled = member.settle is not None and matches_settle(service, grain, member.settle)
    if is_bounded(member):
        operations = {name: row.operation for name, row in service.reminders.get(grain, {}).items()}
        if reason := too_many(member, settled, operations):
            return Verdict(Outcome.REJECTED, reason=reason)
    if member.request is not None:
        service.requests[*grain, member.request.request_id] = member.request
    for watermark in member.watermarks:
        service.watermarks.setdefault(grain, {})[watermark.source] = watermark.position
    if settled and member.settle is not None:
        settle_row(service, grain, member.settle)
    version = 0
    if member.grain is not None:
        after = written(member, member.grain, before)
        service.grains[grain] = after
        version = after.version
        if member.grain.destroy:
            for name in list(service.reminders.get(grain, {})):
                service.set_reminder(grain, name, None)
    kept = tuple(name for change in member.reminders for name in apply_change(service, grain, change))
    for event in member.events:
        partition.sequence += 1
        partition.events.append((partition.sequence, event))
        partition.heads[event.stream] = partition.sequence
    for message in member.outbox:
        partition.sequence += 1
        partition.outbox.append((partition.sequence, message))
    return Verdict(Outcome.COMMITTED, version=version, settled=settled, kept=kept)


def written(member: Commit, write: GrainWrite, before: GrainRow | None) -> GrainRow:
    version, incarnation, layout, state = (
        (0, 1, write.layout, None)
        if before is None
        else (before.version, before.incarnation, before.layout, before.state)
    )
    if write.destroy:
        incarnation, layout, state = incarnation + 1, write.layout, None
    elif write.writes_state:
        layout, state = write.layout, write.state
    partition = member.partition if before is None else before.partition
    return GrainRow(member.grain_type, member.grain_key, partition, version + 1, incarnation, layout, state)


def matches_settle(service: Service, grain: tuple[str, str], settle: Settle) -> bool:
    row = service.reminders.get(grain, {}).get(settle.name)
    consumed = (settle.registration, settle.occurrence)
    return row is not None and (row.registration, row.occurrence) == consumed


def settle_row(service: Service, grain: tuple[str, str], settle: Settle) -> None:
    row = service.reminders[grain][settle.name]
    if settle.progress is None:
        service.set_reminder(grain, settle.name, None)
    else:
        moved = moved_to(row, settle.progress)
        if row.status == PAUSED and not settle.by_operator:
            moved = replace(moved, status=PAUSED, note=row.note, wake_at=None)
        service.set_reminder(grain, settle.name, moved)


def apply_change(service: Service, grain: tuple[str, str], change: ReminderChange) -> list[str]:
    """Apply one change; the names it answers are the puts that left something standing."""
    rows = service.reminders.get(grain, {})
    if isinstance(change, PutReminder):
        standing = put_over(rows.get(change.row.name), change.row, change.mode)
        service.set_reminder(grain, standing.name, standing)
        return [] if standing is change.row else [standing.name]
    if isinstance(change, DeleteReminder):
        if change.name in rows:
            service.set_reminder(grain, change.name, None)
    elif isinstance(change, EditReminder):
        if (row := rows.get(change.name)) is not None:
            service.set_reminder(grain, change.name, edited(row, change))
    else:
        for name in [name for name, row in rows.items() if row.operation == change.operation]:
            service.set_reminder(grain, name, None)
    return []


def edited(row: ReminderRow, edit: EditReminder) -> ReminderRow:
    return replace(
        row,
        priority=row.priority if edit.priority is None else edit.priority,
        action=row.action if edit.action is None else edit.action,
    )
