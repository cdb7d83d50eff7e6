"""A store in this process: the contract without a disk.  It forgets everything when the process ends."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from farro.providers.checks import rejections
from farro.providers.errors import StoreMissing
from farro.providers.memory_members import MemoryMembers
from farro.providers.memory_tables import (
    PARTITIONS,
    Partition,
    Service,
    apply,
    matches,
    rows_of,
    sign_of_life,
)
from farro.providers.rows import (
    SCHEDULED,
    Commit,
    EventRow,
    GrainRow,
    OutboxRow,
    Outcome,
    PollQuery,
    ReminderCount,
    ReminderFilter,
    ReminderRow,
    StoreInfo,
    Verdict,
)


class MemoryStore:
    """What several providers may share: the stand-in for a database file or server."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}


class MemoryProvider(MemoryMembers):
    """The contract on a :class:`MemoryStore`.  Rows are frozen values, so nothing is copied."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        service_id: str = "default",
        read_only: bool = False,
        url: str = "memory://",
    ) -> None:
        super().__init__(read_only=read_only, url=url)
        self._store = store
        self._service_id = service_id

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
        self._open = self._store.services.setdefault(self._service_id, Service())
        return StoreInfo(url=self._url, schema_version=1, partitions=PARTITIONS)

    def members(self) -> MemoryMembers:
        return MemoryMembers(self._rows(), read_only=self._read_only, url=self._url)

    @property
    def lanes(self) -> int:
        return 1

    @property
    def lane_depth(self) -> int:
        return 1

    def lane_of(self, partition: int) -> int:
        return 0

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        rows = self._rows().grains
        return [rows.get(grain) for grain in grains]

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        service = self._writable()
        if not batch:
            return []
        verdicts = [
            Verdict(Outcome.REJECTED, reason=reason) if reason else apply(service, member)
            for member, reason in zip(batch, rejections(batch), strict=True)
        ]
        sign_of_life(service, owner, now)
        return verdicts

    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None:
        return self._rows().reminders.get((grain_type, grain_key), {}).get(name)

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]:
        rows = self._rows().reminders.get((grain_type, grain_key), {})
        return [rows[name] for name in sorted(rows)]

    async def poll(self, queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
        service = self._rows()
        return [rows_of(service, query) for query in queries]

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
                if (after is None or (*grain, name) > after) and matches(row, where):
                    found.append(row)
        return found

    async def count_reminders(self, where: ReminderFilter) -> list[ReminderCount]:
        counts = Counter(
            (row.priority, row.status)
            for rows in self._rows().reminders.values()
            for row in rows.values()
            if matches(row, where)
        )
        return [ReminderCount(*group, counts[group]) for group in sorted(counts)]

    async def events(self, partition: int, stream: str, after: int, limit: int) -> list[tuple[int, EventRow]]:
        held = self._rows().partitions.get(partition, Partition()).events
        later = held[bisect_right(held, after, key=lambda entry: entry[0]) :]
        return [entry for entry in later if entry[1].stream == stream][: max(limit, 0)]

    async def outbox(self, partition: int, after: int, limit: int) -> list[tuple[int, OutboxRow]]:
        held = self._rows().partitions.get(partition, Partition()).outbox
        start = bisect_right(held, after, key=lambda entry: entry[0])
        return held[start : start + max(limit, 0)]

    async def stream_heads(self, stream: str) -> list[tuple[int, int]]:
        partitions = self._rows().partitions
        return [
            (index, held.heads[stream]) for index, held in sorted(partitions.items()) if stream in held.heads
        ]

    async def trim_events(self, stream: str, partition: int, until: int) -> int:
        held = self._writable().partitions.get(partition, Partition())
        kept = [entry for entry in held.events if entry[1].stream != stream or entry[0] > until]
        trimmed = len(held.events) - len(kept)
        held.events = kept
        return trimmed

    async def watermarks(self, grain_type: str, grain_key: str) -> dict[str, int]:
        return dict(self._rows().watermarks.get((grain_type, grain_key), {}))

    async def unpollable(self, limit: int) -> list[ReminderRow]:
        rows = await self.list_reminders(ReminderFilter(status=SCHEDULED), sys.maxsize)
        hidden = [
            row for row in rows if None in (row.wake_at, row.next_due_at) or row.priority not in (0, 1, 2)
        ]
        return hidden[: max(limit, 0)]

    async def answer_to(self, grain_type: str, grain_key: str, request_id: str) -> bytes | None:
        row = self._rows().requests.get((grain_type, grain_key, request_id))
        return None if row is None else row.answer

    async def forget_requests(self, before: int, limit: int) -> int:
        requests = self._writable().requests
        old = [key for key, row in requests.items() if row.at < before][: max(limit, 0)]
        for key in old:
            del requests[key]
        return len(old)
