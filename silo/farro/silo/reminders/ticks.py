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
from farro.silo.reminders.due_queue import Entry
from farro.silo.schedules.missed import Deliver, overrun, settle_delivered

if TYPE_CHECKING:
    from farro.silo.reminders.service import ReminderService


class TickInFlight:
    """The :class:`~farro.silo.activations.invocation.Delivery` of one entry."""

    __slots__ = ("_service", "began_at", "call", "chosen", "entry", "judged", "overrun", "row")

    def __init__(self, service: ReminderService, entry: Entry, judged: Deliver) -> None:
        self._service = service
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
        return self._service.permit(self)

    def begin(self, spec: MethodSpec) -> tuple[Tick, Sequence[Any], dict[str, Any]]:
        self.row = self.entry.row  # an operator may have edited it while it waited
        self.judged = self._service.judge_again(self)
        self.began_at = self._service.now()
        tick = Tick(
            id=tick_id(self.row),
            name=self.row.name,
            due_at=from_us(self.judged.due_at),
            fired_at=from_us(self.began_at),
            occurrence=self.row.occurrence,
            attempt=self.row.attempts + 1,
            missed_count=self.judged.missed_count,
            first_missed_at=_instant(self.judged.first_missed_at),
        )
        if self.row.operation == RECEIVE_REMINDER:
            return tick, (self.row.name, tick_status(self.row, self.judged.due_at)), {}
        wire_args, wire_kwargs = self._service.codec.unpack_wire(self.row.args)
        args, kwargs = spec.decode_call(wire_args, wire_kwargs)
        return tick, args, kwargs

    def code_ended(self) -> None:
        self._service.code_ended(self)

    def consume(self) -> Consumption:
        finished_at = self._service.now()
        progress = settle_delivered(
            self.row,
            judged=self.judged,
            finished_at=finished_at,
            catch_up_max=self._service.options.catch_up_max,
        )
        told: tuple[EventRow, ...] = ()
        passed = overrun(self.row, judged=self.judged, finished_at=finished_at)
        if passed is not None:
            self.overrun = passed.count
            if passed.notify:
                told = (self._service.missed_event(self.row, passed.first_at, passed.count),)
        settle = Settle(self.row.name, self.row.registration, self.row.occurrence, progress)
        return Consumption(settle, told)


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
