"""``@register_reminder`` at silo start: rows that are missing are created, and nobody is woken."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from farro.client.identity import GrainId
from farro.providers.contracts import Provider
from farro.providers.rows import Commit, Outcome, PutMode, PutReminder, ReminderRow
from farro.silo.activations.commit import Committer
from farro.silo.grains.grain_class import GrainClass
from farro.silo.grains.registered import RegisteredReminder, registered_on
from farro.silo.grains.reminder_rows import RowMaker
from farro.silo.ownership import Ownership

log = logging.getLogger("farro.reminders")


async def register_declared(
    classes: Iterable[GrainClass],
    *,
    provider: Provider,
    committer: Committer,
    ownership: Ownership,
    rows: RowMaker,
) -> int:
    """Create what the classes declare and the owned partitions lack; how many rows were written.

    Repeatable: an existing row is left as it is, unless its declaration says ``on_change="replace"`` and its
    schedule, priority or action differ.  Each declaration is one fenced row commit by the partition's owner,
    so every reminder comes into being once per cluster.
    """
    written = 0
    for known in classes:
        for declared in registered_on(known.cls):
            grain = GrainId(known.type_name, declared.grain_key)
            partition = ownership.partition_of(grain.type, grain.key)
            if ownership.owned(partition) is None:
                continue
            row, _ = rows.named(
                grain,
                declared.name,
                declared.due,
                declared.period,
                cron=declared.cron,
                timezone=declared.timezone,
                priority=declared.priority,
                action=declared.action,
            )
            mode = await _mode(provider, declared, row)
            if mode is None:
                continue
            verdict = await committer.commit(
                Commit(
                    partition=partition,
                    epoch=ownership.epoch(partition),
                    grain_type=grain.type,
                    grain_key=grain.key,
                    reminders=(PutReminder(row, mode),),
                )
            )
            if verdict.outcome is Outcome.COMMITTED and declared.name not in verdict.kept:
                written += 1
                log.info("declared reminder created grain=%s name=%s", grain, declared.name)
    return written


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
