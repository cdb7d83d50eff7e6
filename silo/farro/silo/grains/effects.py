"""What a turn has asked for and not yet committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farro.client.errors import GrainDestroyed, ReadonlyTurn
from farro.providers.rows import (
    DeleteOperation,
    DeleteReminder,
    EventRow,
    OutboxRow,
    PutReminder,
    ReminderChange,
    ReminderRow,
    RequestRow,
    put_over,
)


class Effects:
    """The intents of one turn, in the order asked.  Nothing here has left memory."""

    __slots__ = ("_readonly", "destroy", "events", "outbox", "reminders", "request")

    def __init__(self, readonly: bool) -> None:
        self._readonly = readonly
        self.reminders: list[ReminderChange] = []
        self.events: list[EventRow] = []
        self.outbox: list[OutboxRow] = []
        self.destroy = False
        self.request: RequestRow | None = None  # what the turn answers, to be remembered

    def __bool__(self) -> bool:
        return bool(self.destroy or self.reminders or self.events or self.outbox or self.request)

    def check(self, what: str) -> None:
        """Raise unless this turn may still ask for ``what``."""
        if self._readonly:
            raise ReadonlyTurn(f"{what} changes the grain, and this method is @readonly")
        if self.destroy:
            raise GrainDestroyed(f"{what} came after destroy() in the same turn")

    def stage(self, what: str, change: ReminderChange) -> None:
        self.check(what)
        self.reminders.append(change)

    def stage_destroy(self) -> None:
        self.check("destroy()")
        self.destroy = True
        self.reminders.clear()


def overlay(
    rows: Iterable[ReminderRow], changes: Sequence[ReminderChange], destroyed: bool
) -> list[ReminderRow]:
    """The reminders a grain would have if ``changes`` were applied to ``rows``, by name."""
    if destroyed:
        return []
    by_name = {row.name: row for row in rows}
    for change in changes:
        match change:
            case PutReminder(row, mode):
                by_name[row.name] = put_over(by_name.get(row.name), row, mode)
            case DeleteReminder(name):
                by_name.pop(name, None)
            case DeleteOperation(operation):
                by_name = {name: row for name, row in by_name.items() if row.operation != operation}
            case _:
                raise TypeError(f"a turn does not stage {type(change).__name__}")
    return [by_name[name] for name in sorted(by_name)]
