"""Rows and commits with everything filled in, so that a test names only what it is about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from farro.providers.contracts import Provider
from farro.providers.rows import Commit, GrainWrite, Outcome, PutReminder, ReminderRow, Verdict

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
PARTITION = 3


def a_reminder(grain_key: str = "k", name: str = "chase", **fields: Any) -> ReminderRow:
    """A minute's interval that is due at NOW; ``fields`` replace its fields."""
    row = ReminderRow(
        grain_type="shipments",
        grain_key=grain_key,
        partition=PARTITION,
        name=name,
        operation="chase",
        key=None,
        args=b"\x90",
        start_at=NOW,
        period_us=60 * SECOND,
        cron=None,
        timezone="UTC",
        day_match="and",
        until_at=None,
        times_left=None,
        jitter_us=0,
        next_due_at=NOW,
        wake_at=NOW,
        last_fire_at=None,
        priority=1,
        action=0,
        registration=1,
        occurrence=1,
    )
    return replace(row, **fields)


def writing(expected_version: int = 0, state: bytes | None = b"state", **fields: Any) -> GrainWrite:
    return GrainWrite(expected_version=expected_version, writes_state=True, state=state, **fields)


@dataclass(slots=True)
class Owner:
    """A silo that owns partitions of an open store, and commits under their epochs."""

    store: Provider
    number: int
    epochs: dict[int, int]

    def member(self, grain_key: str = "k", **fields: Any) -> Commit:
        partition = fields.pop("partition", PARTITION)
        whole = {
            "partition": partition,
            "epoch": self.epochs.get(partition, 0),
            "grain_type": "shipments",
            "grain_key": grain_key,
        }
        return Commit(**(whole | fields))

    async def commit(self, *members: Commit, now: int = NOW) -> list[Verdict]:
        return await self.store.commit(members, self.number, now)

    async def committed(self, grain_key: str = "k", **fields: Any) -> Verdict:
        """Commit one member, which must be taken."""
        (verdict,) = await self.commit(self.member(grain_key, **fields))
        assert verdict.outcome is Outcome.COMMITTED, verdict
        return verdict

    async def put(self, *rows: ReminderRow) -> None:
        """Put reminders by row-only commits, each under the partition of its row."""
        verdicts = await self.commit(
            *(
                self.member(
                    row.grain_key,
                    grain_type=row.grain_type,
                    partition=row.partition,
                    reminders=(PutReminder(row),),
                )
                for row in rows
            )
        )
        assert all(verdict.outcome is Outcome.COMMITTED for verdict in verdicts), verdicts


async def an_owner(store: Provider, *partitions: int, now: int = NOW) -> Owner:
    """Join and take ``partitions`` (default: PARTITION and its neighbour)."""
    silo = await store.join("127.0.0.1:1", now)
    taken = await store.take(silo.number, partitions or (PARTITION, PARTITION + 1), now)
    return Owner(store, silo.number, {row.partition: row.epoch for row in taken})
