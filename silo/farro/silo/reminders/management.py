"""The management verbs on the partitions of this silo: edits as fenced row commits by their owner.

An edit activates no grain and waits for no mailbox; it acts at once, also on what is queued and while a
handler runs.  Edits of a reminder's progress name the occurrence they mean, so one that loses a race against
a tick's commit is tried again on what stands then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from farro.client.clock import Clock, from_us
from farro.client.errors import (
    Conflict,
    Fenced,
    InvalidPayload,
    InvalidSchedule,
    ReminderNotFound,
    UnknownGrainType,
    UnknownOperation,
)
from farro.client.identity import GrainId
from farro.client.reminders import (
    MissedReminderAction,
    PastTick,
    ReminderPriority,
)
from farro.providers.contracts import Provider
from farro.providers.rows import (
    Commit,
    DeleteReminder,
    EditReminder,
    Outcome,
    Progress,
    PutReminder,
    ReminderChange,
    ReminderRow,
    Settle,
    Verdict,
)
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.grains.reminder_rows import RowMaker, checked_name
from farro.silo.ownership import Ownership
from farro.silo.reminders.management_moves import checked_note, paused, repaired, resumed, triggered
from farro.silo.reminders.management_reading import ReminderReader, checked_limit
from farro.silo.reminders.service import ReminderService
from farro.silo.schedules.missed import NOTE_CHARACTERS_MAX, progress_of

BULK_MAX = 500  # reminders that one call of a bulk verb changes: well within a call's deadline
TRIES = 5  # races against ticks that one edit may lose

T = TypeVar("T")
Names = list[tuple[str, str, str]]
"""Grain type, grain key and reminder name of each."""
Moves = Callable[[ReminderRow], Progress | None]


class ReminderDesk:
    """A :class:`~farro.client.management.ReminderApi` for what one silo owns, else :class:`Fenced`; and the
    bulk verbs.  ``look`` has those that only read."""

    def __init__(
        self,
        *,
        provider: Provider,
        committer: Committer,
        ownership: Ownership,
        catalog: Catalog,
        clock: Clock,
        rows: RowMaker,
        service: ReminderService | None,
        reminders_max: int,
    ) -> None:
        self.look = ReminderReader(provider, clock)
        self._committer = committer
        self._ownership = ownership
        self._catalog = catalog
        self._clock = clock
        self._rows = rows
        self._service = service
        self._reminders_max = reminders_max

    def history(self, grain: GrainId | None, name: str | None, limit: int) -> list[PastTick]:
        """The last ticks this silo remembers, newest first."""
        limit = checked_limit(limit)
        found: list[PastTick] = []
        if self._service is None:
            return found
        for each in self._service.statistics.history():
            if grain is not None and (each.grain_type, each.grain_key) != (grain.type, grain.key):
                continue
            if name is not None and each.name != name:
                continue
            found.append(
                PastTick(
                    each.grain_type,
                    each.grain_key,
                    each.name,
                    each.occurrence,
                    each.attempt,
                    from_us(each.due_at),
                    from_us(each.fired_at),
                    each.outcome,
                    each.detail[:NOTE_CHARACTERS_MAX],
                )
            )
            if len(found) == limit:
                break
        return found

    # ---- set

    async def register_or_update(
        self,
        grain_type: str,
        grain_key: str,
        name: str,
        due: timedelta | datetime | None,
        period: timedelta | None,
        cron: str | None,
        timezone: str | None,
        day_match: str | None,
        priority: ReminderPriority,
        action: MissedReminderAction | None,
    ) -> None:
        grain = GrainId(grain_type, grain_key)
        if self._catalog.known(grain.type) is None:
            raise UnknownGrainType(f"no grain type {grain.type!r} is served here")
        self.check_receiver(grain, name)
        row, mode = self._rows.named(
            grain,
            name,
            due,
            period,
            cron=cron,
            timezone=timezone,
            day_match=day_match,
            priority=priority,
            action=action,
        )
        await self._commit(grain, changes=(PutReminder(row, mode),))

    def check_receiver(self, grain: GrainId, name: str) -> None:
        """Raise :class:`UnknownOperation` for a grain whose class, where it is known here, takes no ticks."""
        known = self._catalog.known(grain.type)
        if known is not None and known.receive_reminder is None:
            raise UnknownOperation(f"{grain.type} has no receive_reminder method for reminder {name!r}")

    async def delete(self, grain_type: str, grain_key: str, name: str) -> None:
        await self._commit(GrainId(grain_type, grain_key), changes=(DeleteReminder(checked_name(name)),))

    # ---- edit

    async def set_priority(
        self, grain_type: str, grain_key: str, name: str, priority: ReminderPriority
    ) -> None:
        await self._edit(
            GrainId(grain_type, grain_key), EditReminder(name, priority=int(ReminderPriority(priority)))
        )

    async def set_action(
        self, grain_type: str, grain_key: str, name: str, action: MissedReminderAction
    ) -> None:
        await self._edit(
            GrainId(grain_type, grain_key), EditReminder(name, action=int(MissedReminderAction(action)))
        )

    async def _edit(self, grain: GrainId, edit: EditReminder) -> None:
        await self.look.existing(grain, edit.name)
        await self._commit(grain, changes=(edit,))

    # ---- move

    async def repair(self, grain_type: str, grain_key: str, name: str) -> None:
        """Put it back on its grid."""
        await self._move(GrainId(grain_type, grain_key), name, lambda row: repaired(row, self._clock.now()))

    async def pause(self, grain_type: str, grain_key: str, name: str, note: str | None) -> None:
        note = checked_note(note)
        await self._move(GrainId(grain_type, grain_key), name, lambda row: paused(row, note))

    async def resume(self, grain_type: str, grain_key: str, name: str, note: str | None) -> None:
        note = checked_note(note)
        await self._move(
            GrainId(grain_type, grain_key), name, lambda row: resumed(row, self._clock.now(), note)
        )

    async def trigger_now(self, grain_type: str, grain_key: str, name: str) -> None:
        """Owe an occurrence now; the grid goes on from it, and a one-shot is consumed by it."""
        await self._move(GrainId(grain_type, grain_key), name, self._triggered)

    def _triggered(self, row: ReminderRow) -> Progress:
        begun = self._service is not None and self._service.has_begun(row)
        return triggered(row, self._clock.now(), begun=begun)

    async def _move(self, grain: GrainId, name: str, moves: Moves) -> None:
        """Change a reminder's progress, whatever ticks do meanwhile."""
        for _ in range(TRIES):
            row = await self.look.existing(grain, name)
            progress = moves(row)
            if progress == progress_of(row):
                return
            if (await self._commit(grain, settle=_settle(row, progress))).settled:
                self._look_again()
                return
        raise Conflict(f"reminder {name!r} of {grain} moved {TRIES} times while it was edited; try again")

    # ---- several

    async def pause_rows(self, rows: Sequence[ReminderRow], note: str | None) -> int:
        return await self._move_each(rows, lambda row: paused(row, note))

    async def resume_rows(self, rows: Sequence[ReminderRow], note: str | None) -> int:
        """What cannot be read stays failed."""
        return await self._move_each(rows, lambda row: resumed(row, self._clock.now(), note))

    async def delete_rows(self, rows: Sequence[ReminderRow]) -> int:
        return await self.delete_some([(row.grain_type, row.grain_key, row.name) for row in rows])

    async def pause_some(self, names: Names, note: str | None) -> int:
        """:meth:`pause_rows` for those who know no more of the reminders than their names."""
        note = checked_note(note)
        return await self._move_some(names, lambda row: paused(row, note))

    async def resume_some(self, names: Names, note: str | None) -> int:
        note = checked_note(note)
        return await self._move_some(names, lambda row: resumed(row, self._clock.now(), note))

    async def delete_some(self, names: Names) -> int:
        _check_count(names)
        grains = [(GrainId(grain_type, key), name) for grain_type, key, name in names]
        commits = [self._hand_over(grain, changes=(DeleteReminder(name),)) for grain, name in grains]
        await self._all_of([grain for grain, _ in grains], commits)
        return len(names)

    async def _move_each(self, rows: Sequence[ReminderRow], moves: Moves) -> int:
        """Move a page of reminders by as few transactions as the committer makes of it."""
        moved: list[ReminderRow] = []
        commits: list[asyncio.Future[Verdict]] = []
        for row in rows:
            try:
                settle = _settle(row, moves(row))
            except InvalidSchedule:  # its row says so itself, and stops no other
                continue
            moved.append(row)
            commits.append(self._hand_over(_id(row), settle=settle))
        count = 0
        verdicts = await self._all_of([_id(row) for row in moved], commits)
        for row, verdict in zip(moved, verdicts, strict=True):
            # not settled: a tick's commit came before the move of this row; once more, on what stands now
            count += verdict.settled or await self._moved(_id(row), row.name, moves)
        self._look_again()
        return count

    async def _move_some(self, names: Names, moves: Moves) -> int:
        _check_count(names)
        return sum(await all_of(self._moved(GrainId(of, key), name, moves) for of, key, name in names))

    async def _moved(self, grain: GrainId, name: str, moves: Moves) -> bool:
        try:
            await self._move(grain, name, moves)
        except (ReminderNotFound, InvalidSchedule):
            return False  # a tick was its last one; or its row says itself that it cannot be read
        return True

    def _look_again(self) -> None:
        if self._service is not None:
            self._service.poll_soon()

    # ---- commits

    async def _commit(
        self, grain: GrainId, *, changes: tuple[ReminderChange, ...] = (), settle: Settle | None = None
    ) -> Verdict:
        return _checked(grain, await self._hand_over(grain, changes=changes, settle=settle))

    async def _all_of(
        self, grains: Sequence[GrainId], commits: Sequence[asyncio.Future[Verdict]]
    ) -> list[Verdict]:
        """Every verdict; the first failure is raised once all have ended."""
        verdicts = await all_of(commits)
        return [_checked(grain, verdict) for grain, verdict in zip(grains, verdicts, strict=True)]

    def _hand_over(
        self, grain: GrainId, *, changes: tuple[ReminderChange, ...] = (), settle: Settle | None = None
    ) -> asyncio.Future[Verdict]:
        partition = self._ownership.partition_of(grain.type, grain.key)
        return self._committer.commit(
            Commit(
                partition=partition,
                epoch=self._ownership.epoch(partition),
                grain_type=grain.type,
                grain_key=grain.key,
                reminders=changes,
                settle=settle,
                reminders_max=self._reminders_max,
            )
        )


def _settle(row: ReminderRow, progress: Progress | None) -> Settle:
    return Settle(row.name, row.registration, row.occurrence, progress, by_operator=True)


def _checked(grain: GrainId, verdict: Verdict) -> Verdict:
    if verdict.outcome is Outcome.FENCED:
        raise Fenced(f"another silo owns the partition of {grain}; nothing changed")
    if verdict.outcome is not Outcome.COMMITTED:
        raise InvalidPayload(f"the store refused the change of {grain}: {verdict.reason}")
    return verdict


def _check_count(names: Names) -> None:
    if len(names) > BULK_MAX:
        raise InvalidPayload(f"at most {BULK_MAX} reminders are changed by one call, not {len(names)}")


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """Every result, once all have ended; or the first failure."""
    results: list[T] = []
    for each in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results


def _id(row: ReminderRow) -> GrainId:
    return GrainId(row.grain_type, row.grain_key)
