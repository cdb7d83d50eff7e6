"""Reminders of Orleans into farro's store: page by page, under a partition epoch, as a silo would.

The import is no sign of life: nobody was there to deliver anything while it ran.  So it stores, as its own,
the last sign of life that the store has (0 where no silo ever lived).  What is overdue when a silo starts is
then judged as if the import had not been, whoever's reminder it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from farro.providers.contracts import Provider
from farro.providers.errors import StoreInUse
from farro.providers.members import SiloRow
from farro.providers.rows import Commit, Outcome, PutMode, PutReminder, ReminderRow, Verdict
from farro.providers.sqlite.store import SqliteProvider
from farro.silo.migration.orleans_ids import Naming
from farro.silo.migration.orleans_rows import Converted, OrleansRow, Unreadable, convert
from farro.silo.ownership import Owned, Ownership

ADDRESS = "import"
UNREADABLE_LISTED_MAX = 1_000  # the rest is counted
LIVING_US = 30_000_000  # a silo that renewed within it may still live; it renews every ten seconds or less


@dataclass(slots=True)
class TypeCount:
    """What became of the reminders of one Orleans type."""

    farro_type: str
    imported: int = 0
    kept: int = 0  # farro had a reminder of that grain and name already


@dataclass(slots=True)
class ImportReport:
    """Counts, and the rows that stayed behind with the reason (the first ``UNREADABLE_LISTED_MAX``)."""

    types: dict[str, TypeCount] = field(default_factory=dict)
    reasons: list[Unreadable] = field(default_factory=list)
    read: int = 0
    unreadable: int = 0

    @property
    def imported(self) -> int:
        return sum(each.imported for each in self.types.values())

    @property
    def kept(self) -> int:
        return sum(each.kept for each in self.types.values())

    def leave_behind(self, unreadable: Unreadable) -> None:
        self.unreadable += 1
        if len(self.reasons) < UNREADABLE_LISTED_MAX:
            self.reasons.append(unreadable)

    def count(self, converted: Converted, *, kept: bool) -> None:
        found = self.types.setdefault(converted.orleans_type, TypeCount(converted.row.grain_type))
        if kept:
            found.kept += 1
        else:
            found.imported += 1


async def import_reminders(
    pages: AsyncIterator[list[OrleansRow]],
    provider: Provider,
    naming: Naming,
    *,
    partitions: int,
    now: int,
    replace: bool = False,
    progress: Callable[[int], None] = lambda read: None,
) -> ImportReport:
    """Put every readable row into the open store; a reminder that farro has is left alone, or replaced.

    Repeatable.  ``progress`` is told how many rows were read.  StoreInUse: a silo lives on the store.  Each
    page is one transaction: after an error the pages before it are in, and a second run finishes.
    """
    silos = await check_alone(provider, now)
    alive = max((silo.renewed_at for silo in silos), default=0)
    importer = (await provider.join(ADDRESS, now)).number
    try:
        ownership = Ownership(partitions)
        for taken in await provider.take(importer, range(partitions), alive):
            ownership.take(taken.partition, Owned(taken.epoch, now, taken.previous_alive_at))
        mode = PutMode.REPLACE if replace else PutMode.IF_MISSING
        report = ImportReport()
        async for page in pages:
            ready = _converted(page, naming, ownership, now, report)
            batch = [_commit(each.row, ownership, mode) for each in ready]
            verdicts = await provider.commit(batch, importer, alive)
            for each, verdict in zip(ready, verdicts, strict=True):
                _account(each, verdict, report)
            progress(report.read)
        return report
    finally:
        await provider.leave(importer, alive)


async def preview(
    pages: AsyncIterator[list[OrleansRow]],
    provider: Provider | None,
    naming: Naming,
    *,
    now: int,
    replace: bool = False,
    progress: Callable[[int], None] = lambda read: None,
) -> ImportReport:
    """What :func:`import_reminders` would do.  Only reads; ``provider`` None: there is no store yet."""
    report = ImportReport()
    ownership = Ownership(partitions=1)
    async for page in pages:
        for each in _converted(page, naming, ownership, now, report):
            row = each.row
            kept = False
            if provider is not None and not replace:
                kept = await provider.reminder(row.grain_type, row.grain_key, row.name) is not None
            report.count(each, kept=kept)
        progress(report.read)
    return report


def _converted(
    page: Sequence[OrleansRow], naming: Naming, ownership: Ownership, now: int, report: ImportReport
) -> list[Converted]:
    ready: list[Converted] = []
    for row in page:
        report.read += 1
        made = convert(row, naming, ownership, now)
        if isinstance(made, Unreadable):
            report.leave_behind(made)
        else:
            ready.append(made)
    return ready


def _commit(row: ReminderRow, ownership: Ownership, mode: PutMode) -> Commit:
    return Commit(
        partition=row.partition,
        epoch=ownership.epoch(row.partition),
        grain_type=row.grain_type,
        grain_key=row.grain_key,
        reminders=(PutReminder(row, mode),),
    )


def _account(converted: Converted, verdict: Verdict, report: ImportReport) -> None:
    if verdict.outcome is Outcome.REJECTED:
        report.leave_behind(Unreadable(converted.source, f"the store refused it: {verdict.reason}"))
    elif verdict.outcome is not Outcome.COMMITTED:
        raise StoreInUse("a silo took the store over while the import ran: stop it and import again")
    else:
        report.count(converted, kept=converted.row.name in verdict.kept)


async def check_alone(provider: Provider, now: int) -> list[SiloRow]:
    """The silos on record, none of which lives.  StoreInUse names one that does."""
    silos = await provider.silos()
    living: list[int] = []
    for silo in silos:
        if not silo.status.is_member:
            continue
        if isinstance(provider, SqliteProvider):  # all are on this machine: the kernel knows who lives
            lives = await provider.is_held(silo.number)
        else:
            lives = now - silo.renewed_at < LIVING_US
        if lives:
            living.append(silo.number)
    if living:
        numbers = ", ".join(map(str, living))
        raise StoreInUse(f"silo {numbers} lives on the store, or did a moment ago: stop it and import again")
    return silos
