"""The grain ``farro.reminders``: the management verbs for callers anywhere.  Every silo serves it.

With a grain's id as its key it lives where that grain lives, so that the verbs for one grain are carried out
where they arrive; with any other key it passes them on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from datetime import datetime, timedelta

from farro.client.identity import GrainId
from farro.client.management import BulkPage
from farro.client.reminders import (
    MissedReminderAction,
    ReminderCounts,
    ReminderPage,
    ReminderPriority,
    ReminderQuery,
    ReminderStatus,
    TickHistory,
)
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.reminders.management_owners import ClusterDesk, Verb

IDLE_AFTER = timedelta(minutes=1)  # there is one awake for each grain whose reminders were lately looked at


class ReminderVerbs:
    """The verbs of :class:`farro.client.management.ReminderApi`, as methods of a grain."""

    @property
    @abstractmethod
    def _desk(self) -> ClusterDesk: ...

    @abstractmethod
    def _carry_out(self, grain_type: str, grain_key: str, verb: Verb) -> Awaitable[None]:
        """Ask whoever is to carry the verb out.  No coroutine function: those of a grain can be called."""

    @readonly
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
        self._desk.here.check_receiver(GrainId(grain_type, grain_key), name)
        given = (grain_type, grain_key, name, due, period, cron, timezone, day_match, priority, action)
        await self._carry_out(grain_type, grain_key, lambda by: by.register_or_update(*given))

    @readonly
    async def set_priority(
        self, grain_type: str, grain_key: str, name: str, priority: ReminderPriority
    ) -> None:
        await self._carry_out(
            grain_type, grain_key, lambda by: by.set_priority(grain_type, grain_key, name, priority)
        )

    @readonly
    async def set_action(
        self, grain_type: str, grain_key: str, name: str, action: MissedReminderAction
    ) -> None:
        await self._carry_out(
            grain_type, grain_key, lambda by: by.set_action(grain_type, grain_key, name, action)
        )

    @readonly
    async def repair(self, grain_type: str, grain_key: str, name: str) -> None:
        await self._carry_out(grain_type, grain_key, lambda by: by.repair(grain_type, grain_key, name))

    @readonly
    async def delete(self, grain_type: str, grain_key: str, name: str) -> None:
        await self._carry_out(grain_type, grain_key, lambda by: by.delete(grain_type, grain_key, name))

    @readonly
    async def pause(self, grain_type: str, grain_key: str, name: str, note: str | None) -> None:
        await self._carry_out(grain_type, grain_key, lambda by: by.pause(grain_type, grain_key, name, note))

    @readonly
    async def resume(self, grain_type: str, grain_key: str, name: str, note: str | None) -> None:
        await self._carry_out(grain_type, grain_key, lambda by: by.resume(grain_type, grain_key, name, note))

    @readonly
    async def trigger_now(self, grain_type: str, grain_key: str, name: str) -> None:
        await self._carry_out(grain_type, grain_key, lambda by: by.trigger_now(grain_type, grain_key, name))


class ReminderManagement(ReminderVerbs, Grain, name="farro.reminders", idle_after=IDLE_AFTER):
    """The verbs of :class:`farro.client.management.ManagementApi`.

    All are read-only turns: the grain itself has nothing to change, so none waits for another.
    """

    __farro_system__ = True

    @property
    def _desk(self) -> ClusterDesk:
        desk: ClusterDesk = self._farro_runtime.desk
        return desk

    def _carry_out(self, grain_type: str, grain_key: str, verb: Verb) -> Awaitable[None]:
        return self._desk.for_grain(GrainId(grain_type, grain_key), verb)

    @readonly
    async def get(self, grain_type: str, grain_key: str, name: str) -> ReminderStatus | None:
        return await self._desk.look.get(GrainId(grain_type, grain_key), name)

    @readonly
    async def list_for_grain(self, grain_type: str, grain_key: str) -> list[ReminderStatus]:
        return await self._desk.look.list_for_grain(GrainId(grain_type, grain_key))

    @readonly
    async def upcoming(self, horizon: timedelta, limit: int, page: list[str | int] | None) -> ReminderPage:
        return await self._desk.look.upcoming(horizon, limit, page)

    @readonly
    async def list_page(self, query: ReminderQuery, limit: int, page: list[str | int] | None) -> ReminderPage:
        return await self._desk.look.list_page(query, limit, page)

    @readonly
    async def count(self, query: ReminderQuery) -> ReminderCounts:
        return await self._desk.look.count(query)

    @readonly
    async def pause_all(
        self, query: ReminderQuery, note: str | None = None, page: list[str | int] | None = None
    ) -> BulkPage:
        return await self._desk.pause_all(query, note, page)

    @readonly
    async def resume_all(
        self, query: ReminderQuery, note: str | None = None, page: list[str | int] | None = None
    ) -> BulkPage:
        return await self._desk.resume_all(query, note, page)

    @readonly
    async def delete_all(self, query: ReminderQuery, page: list[str | int] | None = None) -> BulkPage:
        return await self._desk.delete_all(query, page)

    @readonly
    async def history(
        self, grain_type: str | None, grain_key: str | None, name: str | None, limit: int
    ) -> TickHistory:
        return await self._desk.history(grain_or_all(grain_type, grain_key), name, limit)


def grain_or_all(grain_type: str | None, grain_key: str | None) -> GrainId | None:
    return None if grain_type is None or grain_key is None else GrainId(grain_type, grain_key)
