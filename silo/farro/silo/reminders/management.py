"""The management verbs: reads of the table, and edits as fenced row commits by the partition's owner.

An edit activates no grain and waits for no mailbox; it acts at once, also on what is queued and while a
handler runs.  Edits of a reminder's progress name the occurrence they mean, so one that loses a race against
a tick's commit is tried again on what stands then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from farro.client.clock import Clock, duration_us, from_us, to_us
from farro.client.errors import (
    Conflict,
    Fenced,
    InvalidPayload,
    InvalidSchedule,
    ReminderNotFound,
    StorageUnavailable,
    UnknownGrainType,
    UnknownOperation,
)
from farro.client.identity import GrainId
from farro.client.reminders import (
    MissedReminderAction,
    PastTick,
    ReminderCounts,
    ReminderGroup,
    ReminderListing,
    ReminderPage,
    ReminderPriority,
    ReminderQuery,
    ReminderStatus,
)
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import (
    FAILED,
    PAUSED,
    SCHEDULED,
    Commit,
    DeleteReminder,
    EditReminder,
    Outcome,
    PollCursor,
    PollQuery,
    Progress,
    PutReminder,
    ReminderChange,
    ReminderFilter,
    ReminderRow,
    Settle,
    Verdict,
)
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.grains.reminder_rows import RowMaker, checked_name, status_of
from farro.silo.ownership import Ownership
from farro.silo.reminders.service import ReminderService
from farro.silo.schedules.missed import progress_of, recompute

T = TypeVar("T")

PAGE_MAX = 500  # reminders in one reply; a row of the longest names takes about 2 KiB
TRIES = 5  # races against ticks that one edit may lose
PageKey = list[str | int] | None
Moves = Callable[[ReminderRow], Progress | None]


class ReminderDesk:
    """The verbs of one silo."""

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
        self._provider = provider
        self._committer = committer
        self._ownership = ownership
        self._catalog = catalog
        self._clock = clock
        self._rows = rows
        self._service = service
        self._reminders_max = reminders_max

    # ---- look

    async def get(self, grain: GrainId, name: str) -> ReminderStatus | None:
        row = await _read(self._provider.reminder(grain.type, grain.key, checked_name(name)))
        return None if row is None else status_of(row)

    async def list_for_grain(self, grain: GrainId) -> list[ReminderStatus]:
        return [status_of(row) for row in await _read(self._provider.reminders_of(grain.type, grain.key))]

    async def upcoming(self, horizon: timedelta, limit: int, page: PageKey) -> ReminderPage:
        """A page of what wakes within the horizon, by due time."""
        if horizon < timedelta(0):
            raise InvalidSchedule(f"horizon must not be negative, not {horizon}")
        limit = _limit(limit)
        after = None if page is None else _cursor(page)
        until = self._clock.now() + duration_us(horizon)
        questions = [
            PollQuery(priority=int(each), wake_until=until, limit=limit, after=after)
            for each in ReminderPriority
        ]
        answers = await _read(self._provider.poll(questions))
        rows = sorted((row for rows in answers for row in rows), key=_cursor_of)[:limit]
        last = _cursor_of(rows[-1]) if len(rows) == limit else None
        return ReminderPage([self._listing(row) for row in rows], None if last is None else list(last))

    async def list_page(self, query: ReminderQuery, limit: int, page: PageKey) -> ReminderPage:
        """A page by grain and name."""
        limit = _limit(limit)
        rows = await self._page(query, limit, page)
        next_page: PageKey = None
        if len(rows) == limit:
            next_page = [rows[-1].grain_type, rows[-1].grain_key, rows[-1].name]
        return ReminderPage([self._listing(row) for row in rows], next_page)

    async def _page(self, query: ReminderQuery, limit: int, page: PageKey) -> list[ReminderRow]:
        after = None
        if page is not None:
            if len(page) != 3 or not all(isinstance(each, str) for each in page):
                raise InvalidPayload("page must be what the page before gave as next_page")
            after = (str(page[0]), str(page[1]), str(page[2]))
        return await _read(self._provider.list_reminders(_filter(query), limit, after))

    async def count(self, query: ReminderQuery) -> ReminderCounts:
        groups = [
            ReminderGroup(_priority(each.priority), each.status, each.count)
            for each in await _read(self._provider.count_reminders(_filter(query)))
        ]
        return ReminderCounts(sum(each.count for each in groups), groups)

    def history(self, grain: GrainId | None, name: str | None, limit: int) -> list[PastTick]:
        """The last ticks this silo remembers, newest first."""
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
                    each.detail,
                )
            )
            if len(found) >= _limit(limit):
                break
        return found

    def _listing(self, row: ReminderRow) -> ReminderListing:
        overdue = row.status == SCHEDULED and row.wake_at is not None and row.wake_at < self._clock.now()
        return ReminderListing(row.grain_type, row.grain_key, overdue, status_of(row))

    # ---- change

    async def register(
        self,
        grain: GrainId,
        name: str,
        due: timedelta | datetime | None,
        period: timedelta | None,
        cron: str | None,
        timezone: str | None,
        day_match: str | None,
        priority: ReminderPriority,
        action: MissedReminderAction | None,
    ) -> None:
        known = self._catalog.known(grain.type)
        if known is None:
            raise UnknownGrainType(f"no grain type {grain.type!r} is served here")
        if known.receive_reminder is None:
            raise UnknownOperation(f"{grain.type} has no receive_reminder method for reminder {name!r}")
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

    async def set_priority(self, grain: GrainId, name: str, priority: ReminderPriority) -> None:
        await self._edit(grain, EditReminder(name, priority=int(ReminderPriority(priority))))

    async def set_action(self, grain: GrainId, name: str, action: MissedReminderAction) -> None:
        await self._edit(grain, EditReminder(name, action=int(MissedReminderAction(action))))

    async def _edit(self, grain: GrainId, edit: EditReminder) -> None:
        await self._existing(grain, edit.name)
        await self._commit(grain, changes=(edit,))

    async def delete(self, grain: GrainId, name: str) -> None:
        await self._commit(grain, changes=(DeleteReminder(checked_name(name)),))

    async def repair(self, grain: GrainId, name: str) -> None:
        await self._move(grain, name, self._on_its_grid)

    async def pause(self, grain: GrainId, name: str, note: str | None) -> None:
        await self._move(grain, name, lambda row: _paused(row, note))

    async def resume(self, grain: GrainId, name: str, note: str | None) -> None:
        await self._move(grain, name, lambda row: self._resumed(row, note))

    async def pause_all(self, query: ReminderQuery, note: str | None) -> int:
        return await self._move_all(query, (SCHEDULED,), lambda row: _paused(row, note))

    async def resume_all(self, query: ReminderQuery, note: str | None) -> int:
        return await self._move_all(query, (PAUSED, FAILED), lambda row: self._resumed(row, note))

    async def delete_all(self, query: ReminderQuery) -> int:
        count = 0
        page: PageKey = None
        while rows := await self._page(query, PAGE_MAX, page):
            for row in rows:
                await self._commit(_id(row), changes=(DeleteReminder(row.name),))
            count += len(rows)
            page = [rows[-1].grain_type, rows[-1].grain_key, rows[-1].name]
        return count

    async def trigger_now(self, grain: GrainId, name: str) -> None:
        """Owe an occurrence now; the grid goes on from it, and a one-shot is consumed by it."""
        row = await self._existing(grain, name)
        if row.status == PAUSED:
            raise InvalidSchedule(f"reminder {name!r} of {grain} is paused; resume it first")
        await self._move(grain, name, self._owed_now)

    def _owed_now(self, row: ReminderRow) -> Progress:
        # A new occurrence: a tick of this reminder that runs meanwhile completes, and does not consume it.
        now = self._clock.now()
        return replace(
            progress_of(row),
            next_due_at=now,
            wake_at=now,
            occurrence=row.occurrence + 1,
            attempts=0,
            status=SCHEDULED,
            note=None,
        )

    def _on_its_grid(self, row: ReminderRow) -> Progress | None:
        progress = recompute(row, now=self._clock.now())
        if progress is None or row.status != PAUSED:
            return progress
        return replace(progress, status=PAUSED, wake_at=None, note=row.note)

    def _resumed(self, row: ReminderRow, note: str | None) -> Progress | None:
        if row.status == SCHEDULED:
            return replace(progress_of(row), note=note if note is not None else row.note)
        progress = recompute(row, now=self._clock.now())
        return None if progress is None else replace(progress, note=note)

    # ---- commits

    async def _move(self, grain: GrainId, name: str, moves: Moves) -> None:
        """Change a reminder's progress, whatever ticks do meanwhile."""
        for _ in range(TRIES):
            row = await self._existing(grain, name)
            settle = Settle(row.name, row.registration, row.occurrence, moves(row), by_operator=True)
            if (await self._commit(grain, settle=settle)).settled:
                self._look_again()
                return
        raise Conflict(f"reminder {name!r} of {grain} moved {TRIES} times while it was edited; try again")

    async def _move_all(self, query: ReminderQuery, statuses: tuple[str, ...], moves: Moves) -> int:
        count = 0
        page: PageKey = None
        while rows := await self._page(query, PAGE_MAX, page):
            for row in rows:
                if row.status in statuses:
                    await self._move(_id(row), row.name, moves)
                    count += 1
            page = [rows[-1].grain_type, rows[-1].grain_key, rows[-1].name]
        return count

    def _look_again(self) -> None:
        if self._service is not None:
            self._service.poll_soon()

    async def _existing(self, grain: GrainId, name: str) -> ReminderRow:
        row = await _read(self._provider.reminder(grain.type, grain.key, checked_name(name)))
        if row is None:
            raise ReminderNotFound(f"{grain} has no reminder {name!r}")
        return row

    async def _commit(
        self, grain: GrainId, *, changes: tuple[ReminderChange, ...] = (), settle: Settle | None = None
    ) -> Verdict:
        partition = self._ownership.partition_of(grain.type, grain.key)
        verdict = await self._committer.commit(
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
        if verdict.outcome is Outcome.FENCED:
            raise Fenced(f"another silo owns the partition of {grain}; nothing changed")
        if verdict.outcome is not Outcome.COMMITTED:
            raise InvalidPayload(f"the store refused the change of {grain}: {verdict.reason}")
        return verdict


# ---- small words


async def _read(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except StoreError as error:
        raise StorageUnavailable(f"the reminders could not be read: {error}") from error


def _paused(row: ReminderRow, note: str | None) -> Progress:
    return replace(progress_of(row), wake_at=None, status=PAUSED, note=note)


def _id(row: ReminderRow) -> GrainId:
    return GrainId(row.grain_type, row.grain_key)


def _priority(value: int) -> ReminderPriority:
    return ReminderPriority(value) if value in tuple(ReminderPriority) else ReminderPriority.NORMAL


def _limit(limit: int) -> int:
    if limit < 1:
        raise InvalidPayload(f"limit must be at least 1, not {limit}")
    return min(limit, PAGE_MAX)


def _filter(query: ReminderQuery) -> ReminderFilter:
    if query.status not in (None, SCHEDULED, PAUSED, FAILED):
        raise InvalidPayload(f"status must be {SCHEDULED}, {PAUSED} or {FAILED}, not {query.status!r}")
    return ReminderFilter(
        grain_type=query.grain_type,
        grain_key=query.grain_key,
        operation=query.operation,
        priority=None if query.priority is None else int(query.priority),
        action=None if query.action is None else int(query.action),
        status=query.status,
        due_until=None if query.due_before is None else to_us(query.due_before),
    )


def _cursor_of(row: ReminderRow) -> tuple[int, int, str, str, str]:
    assert row.wake_at is not None  # polled rows have one
    return (row.wake_at, row.registration, row.grain_type, row.grain_key, row.name)


def _cursor(page: list[str | int]) -> PollCursor:
    match page:
        case [int(wake_at), int(registration), str(grain_type), str(grain_key), str(name)]:
            return PollCursor(wake_at, registration, grain_type, grain_key, name)
        case _:
            raise InvalidPayload("page must be what the page before gave as next_page")
