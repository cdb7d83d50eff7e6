"""Reading reminders from outside their grains."""

from __future__ import annotations

from farro.client.identity import GrainId
from farro.client.reminders import ReminderStatus
from farro.providers.contracts import Provider
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.reminder_book import status_of


class ReminderDesk:
    """The management verbs on the store; one per silo."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def list_for_grain(self, grain_type: str, grain_key: str) -> list[ReminderStatus]:
        """Every reminder of one grain, by name, as committed."""
        grain_id = GrainId(grain_type, grain_key)
        return [status_of(row) for row in await self._provider.reminders_of(grain_id.type, grain_id.key)]


class ReminderManagement(Grain, name="farro.reminders"):
    """The management verbs as a grain that every silo serves.  Any key will do."""

    @readonly
    async def list_for_grain(self, grain_type: str, grain_key: str) -> list[ReminderStatus]:
        """Every reminder of one grain, by name.  Wakes no grain but this one."""
        desk: ReminderDesk = self._farro_runtime.desk
        return await desk.list_for_grain(grain_type, grain_key)
