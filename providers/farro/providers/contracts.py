"""The contract every store keeps.  The conformance kit (:mod:`farro.providers.conformance`) tests each
sentence.

A provider never reads a clock and draws no random numbers: instants come in as arguments.  It is used from
one event loop.  Every verb either answers or raises one of :mod:`farro.providers.errors`; after
:class:`~farro.providers.errors.Unavailable` nothing has changed, after
:class:`~farro.providers.errors.OutcomeUnknown` it may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from farro.providers.members import Members
from farro.providers.rows import (
    Commit,
    EventRow,
    GrainRow,
    OutboxRow,
    PollQuery,
    ReminderCount,
    ReminderFilter,
    ReminderRow,
    StoreInfo,
    Verdict,
)


class Provider(Members, Protocol):
    """One service's view of one store."""

    @property
    def service_id(self) -> str: ...

    async def open(self, now: int) -> StoreInfo:
        """Connect, migrate to this farro's schema, check it.  A newer schema: SchemaMismatch.

        Opened for reading only, it creates and migrates nothing (StoreMissing, SchemaMismatch instead).
        """
        ...

    async def close(self) -> None:
        """Release everything.  Repeatable.  What was acknowledged before stays durable."""
        ...

    def members(self) -> Members:
        """The verbs of membership on a connection of their own, for one other event loop in any thread.

        Nothing is opened before the first verb.  Whoever asks closes it.
        """
        ...

    @property
    def lanes(self) -> int:
        """By how many ways batches go to the store, beside each other."""
        ...

    @property
    def lane_depth(self) -> int:
        """How many batches a lane may be given before the first of them is answered.

        It writes and answers them in the order given; a failure of one says nothing of the next.
        """
        ...

    def lane_of(self, partition: int) -> int:
        """The lane, from 0 to ``lanes`` - 1, whose batches carry the partition's commits."""
        ...

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        """The rows of ``(grain_type, grain_key)``, in the order asked; None where there is none.

        Sees every commit acknowledged before the call, and no commit begun before it lands after it.
        """
        ...

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        """Apply the members durably; one verdict each, in order.  Each happens as a whole or not at all.

        Members of one partition are applied in order; a store may use several transactions for a batch that
        spans partitions, and trouble after the first of them has landed is OutcomeUnknown.  A member's
        FENCED, CONFLICT, REJECTED or DUPLICATE undoes that member alone.  Also stores ``now`` as the sign of
        life of silo ``owner``; where nothing but states is written, one of the last 100 ms may be left
        standing.  An empty batch does nothing.
        """
        ...

    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None:
        """One reminder row."""
        ...

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]:
        """Every reminder of one grain, by name."""
        ...

    async def poll(self, queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
        """Run index ranges, one answer each, in order.  Cost grows with the rows returned, not with the
        table.
        """
        ...

    async def list_reminders(
        self, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None = None
    ) -> list[ReminderRow]:
        """A page by (grain_type, grain_key, name), strictly after the key ``after``."""
        ...

    async def count_reminders(self, where: ReminderFilter) -> list[ReminderCount]:
        """Counts by priority and status, ascending; groups without rows are absent."""
        ...

    async def events(self, partition: int, stream: str, after: int, limit: int) -> list[tuple[int, EventRow]]:
        """Events of a stream in one partition with sequence > ``after``, ascending, with their sequence."""
        ...

    async def outbox(self, partition: int, after: int, limit: int) -> list[tuple[int, OutboxRow]]:
        """Outbox rows of one partition with sequence > ``after``, ascending, with their sequence."""
        ...

    async def stream_heads(self, stream: str) -> list[tuple[int, int]]:
        """``(partition, last sequence)`` of every partition in which the stream ever had an event, ascending.

        A trimmed event still counts: sequences are never used again.
        """
        ...

    async def trim_events(self, stream: str, partition: int, until: int) -> int:
        """Delete the events of a stream in one partition with sequence <= ``until``; how many there were."""
        ...

    async def watermarks(self, grain_type: str, grain_key: str) -> dict[str, int]:
        """The positions up to which a grain has consumed its sources."""
        ...

    async def unpollable(self, limit: int) -> list[ReminderRow]:
        """Scheduled rows that no poll can see: without ``wake_at`` or ``next_due_at``, or of an unknown
        priority.  Cost grows with such rows, not with the table."""
        ...

    async def answer_to(self, grain_type: str, grain_key: str, request_id: str) -> bytes | None:
        """The packed answer that the grain has given to a request (RequestRow), None if it has given none."""
        ...

    async def forget_requests(self, before: int, limit: int) -> int:
        """Delete at most ``limit`` answers given before that instant; how many there were."""
        ...
