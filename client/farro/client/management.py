"""``client.reminders`` and ``silo.reminders``: set, look at and operate reminders from outside their grains.

Every verb is a call to the grain ``farro.reminders``, which each silo serves.  The verbs for one grain go to
the one that lives with it, ``farro.reminders/TYPE/KEY``: to the silo that carries them out.  Changes act at
once, also on what is already queued and while a handler runs, and wake no grain.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

from farro.client.errors import InvalidGrainId, InvalidSchedule
from farro.client.identity import KEY_BYTES_MAX, GrainId
from farro.client.interface import grain_interface, interface_of
from farro.client.reference import Caller, Reference, reference
from farro.client.reminders import (
    MissedReminderAction,
    ReminderCounts,
    ReminderListing,
    ReminderPage,
    ReminderPriority,
    ReminderQuery,
    ReminderStatus,
    TickHistory,
)

if TYPE_CHECKING:

    class CronLike(Protocol):
        """A :class:`farro.silo.Cron`, which this ground does not know."""

        @property
        def text(self) -> str: ...
        @property
        def timezone(self) -> str: ...
        @property
        def day_match(self) -> str: ...


PAGE = 200  # reminders per reply: well below the limit of one frame
HISTORY_PAGE = 100
KEY = "management"

_Statuses = list[ReminderStatus]  # named here because Reminders has a method called list
_PageKey = list[str | int] | None

GrainLike = Any
"""A reference, a :class:`GrainId`, or the text ``TYPE/KEY``."""


@dataclass(frozen=True, slots=True)
class BulkPage:
    """What one call of a bulk verb did: how many reminders it changed, and where to go on (None: done)."""

    changed: int
    next_page: list[str | int] | None


class ReminderApi(Protocol):
    """The verbs for one reminder, the same on every way from a client to the silo that carries them out."""

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
    ) -> None: ...

    async def set_priority(
        self, grain_type: str, grain_key: str, name: str, priority: ReminderPriority
    ) -> None: ...

    async def set_action(
        self, grain_type: str, grain_key: str, name: str, action: MissedReminderAction
    ) -> None: ...

    async def repair(self, grain_type: str, grain_key: str, name: str) -> None: ...

    async def delete(self, grain_type: str, grain_key: str, name: str) -> None: ...

    async def pause(self, grain_type: str, grain_key: str, name: str, note: str | None) -> None: ...

    async def resume(self, grain_type: str, grain_key: str, name: str, note: str | None) -> None: ...

    async def trigger_now(self, grain_type: str, grain_key: str, name: str) -> None: ...


@grain_interface("farro.reminders")
class ManagementApi(ReminderApi, Protocol):
    """What the grain ``farro.reminders`` answers.  :class:`Reminders` is the comfortable form."""

    async def get(self, grain_type: str, grain_key: str, name: str) -> ReminderStatus | None: ...

    async def list_for_grain(self, grain_type: str, grain_key: str) -> list[ReminderStatus]: ...

    async def upcoming(
        self, horizon: timedelta, limit: int, page: list[str | int] | None
    ) -> ReminderPage: ...

    async def list_page(
        self, query: ReminderQuery, limit: int, page: list[str | int] | None
    ) -> ReminderPage: ...

    async def count(self, query: ReminderQuery) -> ReminderCounts: ...

    async def pause_all(
        self, query: ReminderQuery, note: str | None, page: list[str | int] | None
    ) -> BulkPage: ...

    async def resume_all(
        self, query: ReminderQuery, note: str | None, page: list[str | int] | None
    ) -> BulkPage: ...

    async def delete_all(self, query: ReminderQuery, page: list[str | int] | None) -> BulkPage: ...

    async def history(
        self, grain_type: str | None, grain_key: str | None, name: str | None, limit: int
    ) -> TickHistory: ...


class Reminders:
    """The management verbs over any caller.

    A grain is given as a reference, a :class:`GrainId` or ``"TYPE/KEY"``.  A verb on a reminder that does not
    exist raises :class:`~farro.client.errors.ReminderNotFound`, except :meth:`delete` and :meth:`unregister`.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._api = self._at(KEY)

    def _at(self, key: str) -> ManagementApi:
        return cast(ManagementApi, reference(interface_of(ManagementApi), key, self._caller))

    def _beside(self, grain: GrainId) -> ManagementApi:
        """The verbs where the grain lives; a silo passes on what is too long to be a key."""
        key = str(grain)
        return self._at(key if len(key.encode()) <= KEY_BYTES_MAX else KEY)

    # ---- set

    async def register_or_update(
        self,
        grain: GrainLike,
        name: str,
        due: timedelta | datetime | None = None,
        period: timedelta | None = None,
        *,
        cron: str | CronLike | None = None,
        timezone: str | None = None,
        priority: ReminderPriority = ReminderPriority.NORMAL,
        action: MissedReminderAction | None = None,
    ) -> None:
        """Register a named reminder of a grain, or move it; it goes to ``receive_reminder``.

        As ``register_or_update_reminder`` inside a grain, but committed at once.
        """
        text: str | None
        if cron is None or isinstance(cron, str):
            text, day_match = cron, None
        else:
            if timezone not in (None, cron.timezone):
                raise InvalidSchedule(f"timezone={timezone!r} contradicts {cron.timezone!r} of the Cron")
            text, timezone, day_match = cron.text, cron.timezone, cron.day_match
        at = _id(grain)
        await self._beside(at).register_or_update(
            at.type, at.key, name, due, period, text, timezone, day_match, priority, action
        )

    async def unregister(self, grain: GrainLike, name: str) -> None:
        """Cancel a reminder at once.  Absent: no error."""
        await self.delete(grain, name)

    # ---- look

    async def get(self, grain: GrainLike, name: str) -> ReminderStatus | None:
        """One reminder by its full name (``operation``, ``operation:key`` or a registered name)."""
        at = _id(grain)
        return await self._beside(at).get(at.type, at.key, name)

    async def list(self, query: ReminderQuery | None = None) -> AsyncGenerator[ReminderListing]:
        """Every reminder that fits, by grain and name, page by page."""
        page: _PageKey = None
        while True:
            answer = await self._api.list_page(query or ReminderQuery(), PAGE, page)
            for listing in answer.reminders:
                yield listing
            page = answer.next_page
            if page is None:
                return

    async def upcoming(self, horizon: timedelta) -> AsyncGenerator[ReminderListing]:
        """What is due within ``horizon``, by due time; what is overdue comes first and is marked."""
        page: _PageKey = None
        while True:
            answer = await self._api.upcoming(horizon, PAGE, page)
            for listing in answer.reminders:
                yield listing
            page = answer.next_page
            if page is None:
                return

    async def count_all(self, query: ReminderQuery | None = None) -> ReminderCounts:
        """How many reminders there are, by priority and status."""
        return await self._api.count(query or ReminderQuery())

    async def history(
        self, grain: GrainLike | None = None, name: str | None = None, limit: int = HISTORY_PAGE
    ) -> TickHistory:
        """The last ticks the silos remember, newest first; at most 200 in one answer.

        Each keeps the last 1,000 since its start.  One that does not answer within two seconds is named.
        """
        at = None if grain is None else _id(grain)
        return await self._api.history(
            None if at is None else at.type, None if at is None else at.key, name, limit
        )

    async def list_for_grain(self, grain: GrainLike) -> _Statuses:
        """Every reminder of one grain, by name."""
        at = _id(grain)
        query = ReminderQuery(grain_type=at.type, grain_key=at.key)
        return [listing.status async for listing in self.list(query)]

    # ---- operate

    async def set_priority(self, grain: GrainLike, name: str, priority: ReminderPriority) -> None:
        """Rank a reminder differently from now on, also one that is due and waits."""
        at = _id(grain)
        await self._beside(at).set_priority(at.type, at.key, name, ReminderPriority(priority))

    async def set_action(self, grain: GrainLike, name: str, action: MissedReminderAction) -> None:
        """What becomes of missed occurrences from now on."""
        at = _id(grain)
        await self._beside(at).set_action(at.type, at.key, name, MissedReminderAction(action))

    async def repair(self, grain: GrainLike, name: str) -> None:
        """Put a reminder back on its grid: the next instant after now is owed (a one-shot's own), untried."""
        at = _id(grain)
        await self._beside(at).repair(at.type, at.key, name)

    async def delete(self, grain: GrainLike, name: str) -> None:
        """Delete a reminder at once.  Absent: no error."""
        at = _id(grain)
        await self._beside(at).delete(at.type, at.key, name)

    async def pause(self, grain: GrainLike, name: str, note: str | None = None) -> None:
        """Fire nothing until :meth:`resume`; the note says why.  A tick that runs goes on to its end."""
        at = _id(grain)
        await self._beside(at).pause(at.type, at.key, name, note)

    async def resume(self, grain: GrainLike, name: str, note: str | None = None) -> None:
        """Go on with the next grid instant after now; a one-shot whose instant passed fires at once.

        Also revives a failed reminder.  One whose grid has ended meanwhile (``until=``) is gone.
        """
        at = _id(grain)
        await self._beside(at).resume(at.type, at.key, name, note)

    async def pause_all(self, query: ReminderQuery, note: str | None = None) -> int:
        """Pause every scheduled reminder that fits; how many.  Page by page: a failure leaves some done."""
        return await _bulk(lambda page: self._api.pause_all(query, note, page))

    async def resume_all(self, query: ReminderQuery, note: str | None = None) -> int:
        """Resume everything that fits and is paused or failed; how many.  The unreadable stay failed."""
        return await _bulk(lambda page: self._api.resume_all(query, note, page))

    async def delete_all(self, query: ReminderQuery) -> int:
        """Delete everything that fits; how many."""
        return await _bulk(lambda page: self._api.delete_all(query, page))

    async def trigger_now(self, grain: GrainLike, name: str) -> None:
        """Fire once now; the grid stays.  A one-shot is consumed by it, a failed reminder revived.

        What is overdue and has not begun is what fires.  Paused: :class:`InvalidSchedule`.
        """
        at = _id(grain)
        await self._beside(at).trigger_now(at.type, at.key, name)


async def _bulk(change: Callable[[_PageKey], Awaitable[BulkPage]]) -> int:
    page: _PageKey = None
    changed = 0
    while True:
        answer = await change(page)
        changed += answer.changed
        page = answer.next_page
        if page is None:
            return changed


def _id(grain: GrainLike) -> GrainId:
    if isinstance(grain, GrainId):
        return grain
    if isinstance(grain, Reference):
        return grain.grain_id
    if isinstance(grain, str):
        return GrainId.parse(grain)
    raise InvalidGrainId(f"a grain is given as a reference, a GrainId or 'TYPE/KEY', not {grain!r:.100}")
