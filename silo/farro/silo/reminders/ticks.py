"""A tick in flight: from the due queue through a permit and a turn to its settle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from farro.client.clock import from_us
from farro.client.codec import Codec
from farro.client.identity import GrainId
from farro.client.interface import MethodSpec
from farro.client.reminders import Tick, TickStatus
from farro.client.streams import pack_event
from farro.providers.rows import EventRow, ReminderRow, Settle
from farro.silo.activations.invocation import Admission, Consumption, Invocation
from farro.silo.grains.grain_class import RECEIVE_REMINDER
from farro.silo.ownership import Owned
from farro.silo.reminders.due_queue import Entry
from farro.silo.schedules.missed import Deliver, overrun, settle_delivered

if TYPE_CHECKING:
    from farro.silo.reminders.firing import Firing


class TickInFlight:
    """The :class:`~farro.silo.activations.invocation.Delivery` of one entry."""

    __slots__ = (
        "_firing",
        "_gap",
        "_judged_at",
        "_owned",
        "began_at",
        "call",
        "chosen",
        "entry",
        "judged",
        "overrun",
        "row",
    )

    def __init__(self, firing: Firing, entry: Entry, judged: Deliver, judged_at: int, owned: Owned) -> None:
        self._firing = firing
        self._judged_at = judged_at
        self._owned = owned
        self._gap = firing.judging.gap
        self.entry = entry
        self.row = entry.row
        self.judged = judged
        self.began_at = 0
        self.overrun = 0
        self.call: Invocation | None = None
        self.chosen = False  # from among those that waited for a permit

    def admit(self) -> Admission:
        if self.entry.dead:
            return Admission.DROP
        if self.entry.edited:
            self._firing.look_again(self.entry)
            return Admission.DROP
        return self._firing.permit(self)

    def go_on(self) -> None:
        self._firing.go_on(self)

    def begin(self, spec: MethodSpec) -> tuple[Tick, Sequence[Any], dict[str, Any]]:
        firing = self._firing
        row = self.entry.row  # an operator may have edited it while it waited
        self.began_at = now = firing.now()
        self.judged = judged = firing.judging.judge_again(
            row,
            self.judged,
            judged_at=self._judged_at,
            judged_row=self.row,
            owned_then=self._owned,
            gap_then=self._gap,
            now=now,
        )
        self.row = row
        tick = Tick(
            tick_id(row),
            row.name,
            from_us(judged.due_at),
            from_us(now),
            row.occurrence,
            row.attempts + 1,
            judged.missed_count,
            _instant(judged.first_missed_at),
        )
        if row.operation == RECEIVE_REMINDER:
            return tick, (row.name, tick_status(row, judged.due_at)), {}
        wire_args, wire_kwargs = firing.codec.unpack_wire(row.args)
        args, kwargs = spec.decode_call(wire_args, wire_kwargs)
        return tick, args, kwargs

    def code_ended(self) -> None:
        self._firing.code_ended(self)

    def consume(self) -> Consumption:
        row, judged, firing = self.row, self.judged, self._firing
        firing.check_still_owned(row, self._owned)
        finished_at = firing.now()
        progress = settle_delivered(
            row, judged=judged, finished_at=finished_at, catch_up_max=firing.options.catch_up_max
        )
        told: tuple[EventRow, ...] = ()
        passed = overrun(row, judged=judged, finished_at=finished_at)
        if passed is not None:
            self.overrun = passed.count
            if passed.notify:
                told = (firing.missed_event(row, passed.first_at, passed.count),)
        return Consumption(Settle(row.name, row.registration, row.occurrence, progress), told)


def missed_event(
    codec: Codec, stream: str, row: ReminderRow, first_due_at: int, count: int, detected_at: int
) -> EventRow:
    """The one event that NOTIFY publishes for occurrences that were passed over."""
    value = {
        "grain_type": row.grain_type,
        "grain_key": row.grain_key,
        "name": row.name,
        "first_due_at": from_us(first_due_at),
        "count": count,
        "detected_at": from_us(detected_at),
    }
    payload = pack_event(codec, GrainId(row.grain_type, row.grain_key), value)
    return EventRow(stream=stream, payload=payload, at=detected_at)


def tick_id(row: ReminderRow) -> str:
    """The same for every delivery of one occurrence, different for every other: an idempotency key."""
    return f"{row.grain_type}/{row.grain_key}/{row.name}#{row.registration}.{row.occurrence}"


def tick_status(row: ReminderRow, due_at: int) -> TickStatus:
    return TickStatus(
        first_tick_at=from_us(row.start_at),
        period=None if row.period_us is None else from_us(row.period_us) - from_us(0),
        cron=row.cron,
        current_tick_at=from_us(due_at),
    )


def _instant(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)
