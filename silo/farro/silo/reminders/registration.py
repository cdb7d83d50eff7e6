"""``@register_reminder``: rows that are missing are created, and nobody is woken.

At silo start, and whenever a partition comes from another silo.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from farro.client.errors import CommitOutcomeUnknown, StorageUnavailable
from farro.client.identity import GrainId
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import Commit, Outcome, PutMode, PutReminder, ReminderRow
from farro.silo.activations.commit import Committer
from farro.silo.grains.grain_class import GrainClass
from farro.silo.grains.registered import RegisteredReminder, registered_on
from farro.silo.grains.reminder_rows import RowMaker
from farro.silo.ownership import Ownership
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.reminders")

AGAIN_S = 1.0  # of loop time, after the store did not take one


class DeclaredReminders:
    """Creates what the classes declare and the partitions that this silo owns lack."""

    def __init__(
        self,
        classes: Iterable[GrainClass],
        *,
        provider: Provider,
        committer: Committer,
        ownership: Ownership,
        rows: RowMaker,
    ) -> None:
        self._declared = [(known, each) for known in classes for each in registered_on(known.cls)]
        self._provider = provider
        self._committer = committer
        self._ownership = ownership
        self._rows = rows
        self._pending: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def want(self, partitions: frozenset[int], tasks: TaskOwner) -> None:
        """See to partitions that were just taken; what the store does not take is tried again."""
        if not self._declared or not partitions:
            return
        self._pending |= partitions
        if self._task is None or self._task.done():
            self._task = tasks.start(self._see_to_pending(), "declared reminders")

    async def settled(self) -> None:
        """Wait until everything wanted has been seen to."""
        while self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))

    async def _see_to_pending(self) -> None:
        while self._pending:
            partitions, self._pending = frozenset(self._pending), set()
            try:
                await self.register(partitions)
            except (StoreError, StorageUnavailable, CommitOutcomeUnknown) as error:
                log.warning("declared reminders were not looked at; again soon: %s", error)
                self._pending |= partitions & self._ownership.all()
                await asyncio.sleep(AGAIN_S)

    async def register(self, partitions: frozenset[int]) -> int:
        """Create what is missing in these partitions, as far as they are owned; how many rows were written.

        Repeatable: an existing row is left as it is, unless its declaration says ``on_change="replace"`` and
        its schedule, priority or action differ.  Each declaration is one fenced row commit by the partition's
        owner, so every reminder comes into being once per cluster.  A declaration that cannot be scheduled
        raises, wherever its grain lives.
        """
        written = 0
        for known, declared in self._declared:
            grain = GrainId(known.type_name, declared.grain_key)
            row = self._row(grain, declared)
            if row.partition not in partitions or self._ownership.owned(row.partition) is None:
                continue
            mode = await _mode(self._provider, declared, row)
            if mode is None:
                continue
            verdict = await self._committer.commit(
                Commit(
                    partition=row.partition,
                    epoch=self._ownership.epoch(row.partition),
                    grain_type=grain.type,
                    grain_key=grain.key,
                    reminders=(PutReminder(row, mode),),
                )
            )
            if verdict.outcome is Outcome.COMMITTED and declared.name not in verdict.kept:
                written += 1
                log.info("declared reminder created grain=%s name=%s", grain, declared.name)
        return written

    def _row(self, grain: GrainId, declared: RegisteredReminder) -> ReminderRow:
        row, _ = self._rows.named(
            grain,
            declared.name,
            declared.due,
            declared.period,
            cron=declared.cron,
            timezone=declared.timezone,
            priority=declared.priority,
            action=declared.action,
        )
        return row


async def _mode(provider: Provider, declared: RegisteredReminder, row: ReminderRow) -> PutMode | None:
    """How to put the declared row; None when what stands is what is wanted."""
    if not declared.replace:
        return PutMode.IF_MISSING
    standing = await provider.reminder(row.grain_type, row.grain_key, row.name)
    if standing is not None and _wanted(standing) == _wanted(row):
        return None
    return PutMode.KEEP_PROGRESS


def _wanted(row: ReminderRow) -> tuple[object, ...]:
    return (row.operation, row.period_us, row.cron, row.timezone, row.day_match, row.priority, row.action)
