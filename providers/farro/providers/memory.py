"""A store in this process: the contract without a disk.  It forgets everything when the process ends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from farro.providers.checks import is_storable, rejection
from farro.providers.errors import StoreError, StoreMissing, Unavailable
from farro.providers.rows import (
    SCHEDULED,
    Commit,
    DeleteReminder,
    EditReminder,
    EventRow,
    GrainRow,
    GrainWrite,
    OutboxRow,
    Outcome,
    PartitionRow,
    PollQuery,
    Progress,
    PutReminder,
    ReminderChange,
    ReminderCount,
    ReminderFilter,
    ReminderRow,
    Settle,
    SiloRow,
    StoreInfo,
    Verdict,
    put_over,
)

PARTITIONS = 64
_PROGRESS = tuple(Progress.__dataclass_fields__)

_PollKey = tuple[int, int, str, str, str]  # wake_at, registration, grain_type, grain_key, name


@dataclass(slots=True)
class _Partition:
    epoch: int = 0
    owner: int | None = None
    alive_at: int | None = None  # of the last owner that left
    sequence: int = 0
    events: list[tuple[int, EventRow]] = field(default_factory=list)
    outbox: list[tuple[int, OutboxRow]] = field(default_factory=list)


class _Service:
    """The rows of one service id."""

    def __init__(self) -> None:
        self.last_number = 0
        self.silos: dict[int, SiloRow] = {}
        self.partitions: dict[int, _Partition] = {}
        self.grains: dict[tuple[str, str], GrainRow] = {}
        self.reminders: dict[tuple[str, str], dict[str, ReminderRow]] = {}
        self.wakes: dict[int, list[_PollKey]] = {}  # per priority, ascending

    def set_reminder(self, grain: tuple[str, str], name: str, row: ReminderRow | None) -> None:
        """Put, move or delete one row, keeping the poll order beside the table."""
        rows = self.reminders.setdefault(grain, {})
        before = rows.pop(name, None)
        if before is not None and (key := _poll_key(before)) is not None:
            wakes = self.wakes[before.priority]
            del wakes[bisect_left(wakes, key)]
        if row is not None:
            rows[name] = row
            if (key := _poll_key(row)) is not None:
                insort(self.wakes.setdefault(row.priority, []), key)
        if not rows:
            del self.reminders[grain]


def _poll_key(row: ReminderRow) -> _PollKey | None:
    if row.status != SCHEDULED or row.wake_at is None:
        return None
    return row.wake_at, row.registration, row.grain_type, row.grain_key, row.name


def _moved(row: ReminderRow, progress: Progress) -> ReminderRow:
    return replace(row, **{name: getattr(progress, name) for name in _PROGRESS})


def _matches(row: ReminderRow, where: ReminderFilter) -> bool:
    for name in ("grain_type", "grain_key", "operation", "priority", "action", "status"):
        wanted = getattr(where, name)
        if wanted is not None and getattr(row, name) != wanted:
            return False
    if where.due_until is None:
        return True
    return row.next_due_at is not None and row.next_due_at <= where.due_until


class MemoryStore:
    """What several providers may share: the stand-in for a database file or server."""

    def __init__(self) -> None:
        self.services: dict[str, _Service] = {}


class MemoryProvider:
    """The contract on a :class:`MemoryStore`.  Rows are frozen values, so nothing is copied."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        service_id: str = "default",
        read_only: bool = False,
        url: str = "memory://",
    ) -> None:
        self._store = store
        self._service_id = service_id
        self._read_only = read_only
        self._url = url
        self._open: _Service | None = None

    @property
    def service_id(self) -> str:
        return self._service_id

    async def open(self, now: int) -> StoreInfo:
        if self._store is None:
            if self._read_only:
                raise StoreMissing(
                    f"{self._url}: a memory store of its own is always empty; name a shared one, memory://name"
                )
            self._store = MemoryStore()
        self._open = self._store.services.setdefault(self._service_id, _Service())
        return StoreInfo(url=self._url, schema_version=1, partitions=PARTITIONS)

    async def close(self) -> None:
        self._open = None

    def _rows(self) -> _Service:
        if self._open is None:
            raise Unavailable(f"{self._url} is not open")
        return self._open

    def _writable(self) -> _Service:
        service = self._rows()
        if self._read_only:
            raise Unavailable(f"{self._url} is opened for reading only")
        return service

    async def join(self, address: str, now: int) -> SiloRow:
        service = self._writable()
        if not is_storable(address):
            raise StoreError(f"the address {address!r:.100} has a NUL or a lone surrogate")
        service.last_number += 1
        row = SiloRow(service.last_number, address, started_at=now, renewed_at=now, left_at=None)
        service.silos[row.number] = row
        return row

    async def renew(self, number: int, now: int) -> bool:
        return _sign_of_life(self._writable(), number, now)

    async def leave(self, number: int, now: int) -> None:
        service = self._writable()
        silo = service.silos.get(number)
        if silo is None or silo.left_at is not None:
            return
        service.silos[number] = replace(silo, renewed_at=now, left_at=now)
        for partition in service.partitions.values():
            if partition.owner == number:
                partition.owner, partition.alive_at = None, now

    async def take(self, number: int, partitions: Sequence[int], now: int) -> list[PartitionRow]:
        service = self._writable()
        silo = service.silos.get(number)
        if silo is None or silo.left_at is not None:
            raise StoreError(f"silo {number} is not a member: join first")
        wanted = sorted(set(partitions))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < PARTITIONS:
            raise StoreError(
                f"partitions go from 0 to {PARTITIONS - 1}, asked for {wanted[0]} to {wanted[-1]}"
            )
        taken: list[PartitionRow] = []
        for index in wanted:
            partition = service.partitions.setdefault(index, _Partition())
            owner = None if partition.owner is None else service.silos[partition.owner]
            alive_at = partition.alive_at if owner is None else owner.renewed_at
            partition.epoch += 1
            partition.owner = number
            taken.append(PartitionRow(index, partition.epoch, alive_at))
        _sign_of_life(service, number, now)
        return taken

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        rows = self._rows().grains
        return [rows.get(grain) for grain in grains]

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        service = self._writable()
        if not batch:
            return []
        verdicts = [_apply(service, member) for member in batch]
        _sign_of_life(service, owner, now)
        return verdicts

    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None:
        return self._rows().reminders.get((grain_type, grain_key), {}).get(name)

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]:
        rows = self._rows().reminders.get((grain_type, grain_key), {})
        return [rows[name] for name in sorted(rows)]

    async def poll(self, queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
        service = self._rows()
        return [_range(service, query) for query in queries]

    async def list_reminders(
        self, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None = None
    ) -> list[ReminderRow]:
        found: list[ReminderRow] = []
        tables = self._rows().reminders
        for grain in sorted(tables):
            for name in sorted(tables[grain]):
                if len(found) >= limit:
                    return found
                row = tables[grain][name]
                if (after is None or (*grain, name) > after) and _matches(row, where):
                    found.append(row)
        return found

    async def count_reminders(self, where: ReminderFilter) -> list[ReminderCount]:
        counts = Counter(
            (row.priority, row.status)
            for rows in self._rows().reminders.values()
            for row in rows.values()
            if _matches(row, where)
        )
        return [ReminderCount(*group, counts[group]) for group in sorted(counts)]

    async def events(self, partition: int, stream: str, after: int, limit: int) -> list[tuple[int, EventRow]]:
        held = self._rows().partitions.get(partition, _Partition()).events
        later = held[bisect_right(held, after, key=lambda entry: entry[0]) :]
        return [entry for entry in later if entry[1].stream == stream][: max(limit, 0)]

    async def outbox(self, partition: int, after: int, limit: int) -> list[tuple[int, OutboxRow]]:
        held = self._rows().partitions.get(partition, _Partition()).outbox
        start = bisect_right(held, after, key=lambda entry: entry[0])
        return held[start : start + max(limit, 0)]

    async def silos(self) -> list[SiloRow]:
        rows = self._rows().silos
        return [rows[number] for number in sorted(rows)]


def _sign_of_life(service: _Service, number: int, now: int) -> bool:
    silo = service.silos.get(number)
    if silo is None or silo.left_at is not None:
        return False
    service.silos[number] = replace(silo, renewed_at=now)
    return True


def _range(service: _Service, query: PollQuery) -> list[ReminderRow]:
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


def _apply(service: _Service, member: Commit) -> Verdict:
    """One member.  Everything that can refuse it comes before the first change, so nothing is ever undone."""
    if reason := rejection(member):
        return Verdict(Outcome.REJECTED, reason=reason)
    partition = service.partitions.get(member.partition)
    if partition is None or partition.epoch != member.epoch:
        return Verdict(Outcome.FENCED)
    grain = (member.grain_type, member.grain_key)
    before = service.grains.get(grain)
    if member.grain is not None and member.grain.expected_version != (before.version if before else 0):
        return Verdict(Outcome.CONFLICT)
    settled = member.settle is not None and _settle(service, grain, member.settle)
    version = 0
    if member.grain is not None:
        after = _written(member, member.grain, before)
        service.grains[grain] = after
        version = after.version
        if member.grain.destroy:
            for name in list(service.reminders.get(grain, {})):
                service.set_reminder(grain, name, None)
    kept = tuple(name for change in member.reminders for name in _change(service, grain, change))
    for event in member.events:
        partition.sequence += 1
        partition.events.append((partition.sequence, event))
    for message in member.outbox:
        partition.sequence += 1
        partition.outbox.append((partition.sequence, message))
    return Verdict(Outcome.COMMITTED, version=version, settled=settled, kept=kept)


def _written(member: Commit, write: GrainWrite, before: GrainRow | None) -> GrainRow:
    row = before or GrainRow(member.grain_type, member.grain_key, member.partition, 0, 1, write.layout, None)
    row = replace(row, version=row.version + 1)
    if write.destroy:
        return replace(row, incarnation=row.incarnation + 1, state=None, layout=write.layout)
    if write.writes_state:
        return replace(row, state=write.state, layout=write.layout)
    return row


def _settle(service: _Service, grain: tuple[str, str], settle: Settle) -> bool:
    row = service.reminders.get(grain, {}).get(settle.name)
    if row is None or (row.registration, row.occurrence) != (settle.registration, settle.occurrence):
        return False
    after = None if settle.progress is None else _moved(row, settle.progress)
    service.set_reminder(grain, settle.name, after)
    return True


def _change(service: _Service, grain: tuple[str, str], change: ReminderChange) -> list[str]:
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
            service.set_reminder(grain, change.name, _edited(row, change))
    else:
        for name in [name for name, row in rows.items() if row.operation == change.operation]:
            service.set_reminder(grain, name, None)
    return []


def _edited(row: ReminderRow, edit: EditReminder) -> ReminderRow:
    if edit.progress is not None:
        row = _moved(row, edit.progress)
    return replace(
        row,
        priority=row.priority if edit.priority is None else edit.priority,
        action=row.action if edit.action is None else edit.action,
    )
