"""What to do with a row that is due: whether this silo can, and what the schedule, the clock and the owner's
record say of it.

A judgement is made when an entry leaves the due queue and stands until its turn begins, unless time, an
operator, the clocks or a change of owner have made another one of it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from farro.client.clock import Clock, duration_us
from farro.client.reminders import MissedReminderAction
from farro.providers.rows import ReminderRow
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.failures import printable
from farro.silo.grains.grain_class import RECEIVE_REMINDER
from farro.silo.options import ReminderOptions
from farro.silo.ownership import Owned, Ownership
from farro.silo.reminders.gaps import Gap, GapWatch
from farro.silo.schedules import schedule
from farro.silo.schedules.missed import Deliver, Judgement, judge, still_stands

log = logging.getLogger("farro.reminders")

UNKNOWN_TYPE_WAIT = timedelta(minutes=10)
ACTIONS = frozenset(map(int, MissedReminderAction))


class Judging:
    def __init__(
        self, clock: Clock, catalog: Catalog, ownership: Ownership, options: ReminderOptions
    ) -> None:
        self.grace_us = duration_us(options.missed_grace)
        self._clock = clock
        self._catalog = catalog
        self._ownership = ownership
        self._catch_up_max = options.catch_up_max
        self._gaps = GapWatch(clock.now(), clock.steady(), self.grace_us)
        self._warned: set[str] = set()

    @property
    def gap(self) -> Gap | None:
        """The latest time in which nobody was there."""
        return self._gaps.latest

    def watch_clocks(self, now: int) -> None:
        gap = self._gaps.look(now, self._clock.steady())
        if gap is not None:
            log.warning(
                "the wall clock moved %.0f s ahead of the monotonic one (the machine slept, or its clock was "
                "set): what fell due meanwhile counts as missed",
                (gap.began_at - gap.last_seen_at) / 1e6,
            )

    # ---- the schedule

    def judge(self, row: ReminderRow, owned: Owned, now: int) -> Judgement:
        """Raises ``ValueError`` for a row that owes nothing or cannot be read."""
        if row.action not in ACTIONS:
            MissedReminderAction(row.action)  # says so
        alive_until, began_at = owned.alive_until, owned.began_at
        gap = self._gaps.latest
        if gap is not None and gap.began_at < began_at:
            gap = None  # another silo, or this one before a thaw, lived through it
        if gap is not None and row.next_due_at is not None and row.next_due_at > gap.last_seen_at:
            alive_until, began_at = gap.last_seen_at, gap.began_at
        return judge(
            row,
            now=now,
            grace_us=self.grace_us,
            alive_until=alive_until,
            ownership_began=began_at,
            catch_up_max=self._catch_up_max,
        )

    def judge_again(
        self,
        row: ReminderRow,
        judged: Deliver,
        *,
        judged_at: int,
        judged_row: ReminderRow,
        owned_then: Owned,
        gap_then: Gap | None,
        now: int,
    ) -> Deliver:
        """The judgement as of now, when the turn begins: instants that passed in the queue are folded in."""
        owned = self._ownership.owned(row.partition)
        if (
            row is judged_row
            and owned is owned_then
            and self._gaps.latest is gap_then
            and still_stands(row, judged, judged_at=judged_at, now=now, grace_us=self.grace_us)
        ):
            return judged
        again = judged if owned is None else self.judge(row, owned, now)
        return again if isinstance(again, Deliver) else judged

    # ---- the code

    def operation_of(self, row: ReminderRow) -> str | None:
        """The method a row is delivered to, if this silo has it."""
        known = self._catalog.known(row.grain_type)
        if known is None:
            return None
        if row.operation == RECEIVE_REMINDER:
            return None if known.receive_reminder is None else row.operation
        return known.canonical_operation(row.operation)

    def known_operation(self, row: ReminderRow) -> str | None:
        """The method a row is delivered to; None, with one warning per kind, when this code has none."""
        name = self.operation_of(row)
        if name is not None:
            return name
        known = self._catalog.known(row.grain_type)
        kind = row.grain_type if known is None else f"{row.grain_type}.{row.operation}"
        if known is None:
            way_out = "serve the type again"
        elif row.operation == RECEIVE_REMINDER:
            way_out = "give the class its receive_reminder again"
        else:
            way_out = f'if the method was renamed, mark it @operation("{row.operation}")'
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(
                "reminders of %s wait: this silo does not serve it (first: grain=%s/%s name=%s); %s and "
                "start again, or delete them; they are kept and looked at every %s",
                printable(kind),
                printable(row.grain_type),
                printable(row.grain_key),
                printable(row.name),
                printable(way_out),
                UNKNOWN_TYPE_WAIT,
            )
        return None

    def freed(self, row: ReminderRow, now: int) -> ReminderRow:
        """A row that other code put off as unknown is due at once where it is known.

        Nothing but that leaves a row that is due, was not tried and wakes later than its jitter allows.
        """
        due = row.next_due_at
        if row.wake_at is None or due is None or row.attempts or not due < now < row.wake_at:
            return row
        due = schedule.wake_at(row, due, row.occurrence)
        return replace(row, wake_at=now) if due < now and self.operation_of(row) is not None else row

    def freed_until(self, rows: list[ReminderRow], now: int, until: int) -> list[ReminderRow]:
        """What wakes by ``until``, the rows that this silo frees among it."""
        freed = (self.freed(row, now) for row in rows)
        return [row for row in freed if row.wake_at is not None and row.wake_at <= until]
