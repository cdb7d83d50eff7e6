"""The statements of listings and polls, and rows made of records.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farro.providers.checks import INTEGER_MIN
from farro.providers.rows import GrainRow, PollQuery, ReminderFilter, ReminderRow

Parameters = tuple[Any, ...]

_BEFORE_ALL = (INTEGER_MIN, INTEGER_MIN, "", "", "")
_EQUAL = ("grain_type", "grain_key", "operation", "priority", "action", "status")


def reminders(records: Iterable[Any]) -> list[ReminderRow]:
    return [ReminderRow(*record) for record in records]


def grain(record: Any) -> GrainRow | None:
    return None if record[0] is None else GrainRow(*record)


def poll_parameters(service_id: str, query: PollQuery) -> Parameters:
    after = query.after
    return (
        service_id,
        query.priority,
        query.wake_until,
        *(
            _BEFORE_ALL
            if after is None
            else (after.wake_at, after.registration, after.grain_type, after.grain_key, after.name)
        ),
        max(query.limit, 0),
        None if query.partitions is None else sorted(query.partitions),
    )


def listing(
    service_id: str, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None
) -> tuple[str, Parameters]:
    """The filters and values of one page.

    Within one grain type the cursor compares (grain_key, name) only: a range on the whole key beside an
    equality on its first column would be read from the start of the type on every page.
    """
    values: list[Any] = [service_id, max(limit, 0)]
    filters = _filters(where, values)
    if after is not None:
        if where.grain_type is None:
            filters += f" AND (grain_type, grain_key, name) > {_row(after, values)}"
        elif where.grain_type == after[0]:
            filters += f" AND (grain_key, name) > {_row(after[1:], values)}"
        elif where.grain_type < after[0]:
            values[1] = 0
    return filters, tuple(values)


def counting(service_id: str, where: ReminderFilter) -> tuple[str, Parameters]:
    values: list[Any] = [service_id]
    return _filters(where, values), tuple(values)


def _filters(where: ReminderFilter, values: list[Any]) -> str:
    text = ""
    for name in _EQUAL:
        if (wanted := getattr(where, name)) is not None:
            values.append(wanted)
            text += f" AND {name} = ${len(values)}"
    if where.due_until is not None:
        values.append(where.due_until)
        text += f" AND next_due_at <= ${len(values)}"
    return text


def _row(key: tuple[str, ...], values: list[Any]) -> str:
    first = len(values) + 1
    values += key
    return "(" + ", ".join(f"${number}" for number in range(first, len(values) + 1)) + ")"
