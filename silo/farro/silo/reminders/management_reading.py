"""What management shows: pages, counts and single reminders, read from any store.  Writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from farro.client.clock import Clock, duration_us, to_us
from farro.client.errors import InvalidPayload, InvalidSchedule, ReminderNotFound, StorageUnavailable
from farro.client.identity import GrainId, canonical_key
from farro.client.reminders import (
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
from farro.providers.rows import FAILED, PAUSED, SCHEDULED, PollCursor, PollQuery, ReminderFilter, ReminderRow
from farro.silo.grains.reminder_rows import checked_name, status_of

T = TypeVar("T")

PAGE_MAX = 200  # in one reply; a reminder of the longest names and note takes 4.5 KiB, a frame holds 1 MiB
PAGE_RULE = "page must be what the page before gave as next_page"
INSTANT_MAX = (1 << 63) - 1  # what every store can compare

PageKey = list[str | int] | None


class ReminderReader:
    """The reading verbs on one store; ``clock`` says what is overdue."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock

    async def get(self, grain: GrainId, name: str) -> ReminderStatus | None:
        row = await self._row(grain, name)
        return None if row is None else status_of(row)

    async def existing(self, grain: GrainId, name: str) -> ReminderRow:
        """The row; :class:`ReminderNotFound` if there is none."""
        row = await self._row(grain, name)
        if row is None:
            raise ReminderNotFound(f"{grain} has no reminder {name!r}")
        return row

    async def _row(self, grain: GrainId, name: str) -> ReminderRow | None:
        return await _read(self._provider.reminder(grain.type, grain.key, checked_name(name)))

    async def list_for_grain(self, grain: GrainId) -> list[ReminderStatus]:
        """Every reminder of a grain in one reply; a grain of more than that is listed by pages."""
        where = ReminderFilter(grain_type=grain.type, grain_key=grain.key)
        rows = await _read(self._provider.list_reminders(where, PAGE_MAX + 1))
        if len(rows) > PAGE_MAX:
            raise InvalidPayload(
                f"{grain} has more than {PAGE_MAX} reminders, which is what one reply holds; "
                "ask for them page by page (list_page)"
            )
        return [status_of(row) for row in rows]

    async def upcoming(self, horizon: timedelta, limit: int, page: PageKey) -> ReminderPage:
        """A page of what wakes within the horizon of the first page, by due time."""
        if horizon < timedelta(0):
            raise InvalidSchedule(f"horizon must not be negative, not {horizon}")
        limit = checked_limit(limit)
        until, after = min(self._clock.now() + duration_us(horizon), INSTANT_MAX), None
        if page is not None:  # the end stays where it was: a horizon that moves on would have no end
            until, after = _cursor(page)
        questions = [
            PollQuery(priority=int(each), wake_until=until, limit=limit, after=after)
            for each in ReminderPriority
        ]
        answers = await _read(self._provider.poll(questions))
        rows = sorted((row for rows in answers for row in rows), key=_due_key)[:limit]
        next_page: PageKey = [until, *_due_key(rows[-1])] if len(rows) == limit else None
        return ReminderPage([self._listing(row) for row in rows], next_page)

    async def list_page(self, query: ReminderQuery, limit: int, page: PageKey) -> ReminderPage:
        """A page by grain and name."""
        limit = checked_limit(limit)
        rows = await self.rows(query, limit, page)
        next_page = name_key(rows[-1]) if len(rows) == limit else None
        return ReminderPage([self._listing(row) for row in rows], next_page)

    async def rows(
        self, query: ReminderQuery, limit: int, page: PageKey, statuses: Iterable[str] = ()
    ) -> list[ReminderRow]:
        """At most ``limit`` rows behind ``page`` that fit the query and, if any are given, the statuses."""
        where, after = filter_of(query), _name_cursor(page)
        wanted = [each for each in statuses if query.status in (None, each)] if statuses else [query.status]
        found: list[ReminderRow] = []
        for status in wanted:
            found += await _read(self._provider.list_reminders(replace(where, status=status), limit, after))
        found.sort(key=name_key)
        return found[:limit]

    async def count(self, query: ReminderQuery) -> ReminderCounts:
        groups = [
            ReminderGroup(_priority(each.priority), each.status, each.count)
            for each in await _read(self._provider.count_reminders(filter_of(query)))
        ]
        return ReminderCounts(sum(each.count for each in groups), groups)

    def _listing(self, row: ReminderRow) -> ReminderListing:
        overdue = row.status == SCHEDULED and row.wake_at is not None and row.wake_at < self._clock.now()
        return ReminderListing(row.grain_type, row.grain_key, overdue, status_of(row))


async def _read(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except StoreError as error:
        raise StorageUnavailable(f"the reminders could not be read: {error}") from error


def checked_limit(limit: int) -> int:
    """``limit`` as far as one reply goes; :class:`InvalidPayload` below 1."""
    if limit < 1:
        raise InvalidPayload(f"limit must be at least 1, not {limit}")
    return min(limit, PAGE_MAX)


def filter_of(query: ReminderQuery) -> ReminderFilter:
    """The query in the store's words; :class:`InvalidPayload` naming the field that cannot be meant."""
    if query.status not in (None, SCHEDULED, PAUSED, FAILED):
        raise InvalidPayload(f"status must be {SCHEDULED}, {PAUSED} or {FAILED}, not {query.status!r}")
    return ReminderFilter(
        grain_type=_text(query.grain_type, "grain_type"),
        grain_key=_text(query.grain_key, "grain_key"),
        operation=_text(query.operation, "operation"),
        priority=None if query.priority is None else int(query.priority),
        action=None if query.action is None else int(query.action),
        status=query.status,
        due_until=None if query.due_before is None else to_us(query.due_before),
    )


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else canonical_key(value, what)


def _priority(value: int) -> ReminderPriority:
    return ReminderPriority(value) if value in tuple(ReminderPriority) else ReminderPriority.NORMAL


# ---- where a page ends


def name_key(row: ReminderRow) -> list[str | int]:
    """The place of a row in a listing by name."""
    return [row.grain_type, row.grain_key, row.name]


def _name_cursor(page: PageKey) -> tuple[str, str, str] | None:
    match page:
        case None:
            return None
        case [str(grain_type), str(grain_key), str(name)]:
            return grain_type, grain_key, name
    raise InvalidPayload(PAGE_RULE)


def _due_key(row: ReminderRow) -> tuple[int, int, str, str, str]:
    if row.wake_at is None:
        raise ValueError(f"a poll answered {row.name!r} of {row.grain_type}/{row.grain_key}, which sleeps")
    return row.wake_at, row.registration, row.grain_type, row.grain_key, row.name


def _cursor(page: list[str | int]) -> tuple[int, PollCursor]:
    match page:
        case [int(until), int(wake_at), int(registration), str(grain_type), str(grain_key), str(name)] if (
            max(abs(until), abs(wake_at), abs(registration)) <= INSTANT_MAX
        ):
            return until, PollCursor(wake_at, registration, grain_type, grain_key, name)
    raise InvalidPayload(PAGE_RULE)
