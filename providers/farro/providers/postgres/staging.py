"""Members of a batch as the values of the commit's functions: tuples in the order of its types.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from farro.providers.checks import is_bounded
from farro.providers.rows import (
    Commit,
    DeleteOperation,
    EditReminder,
    GrainWrite,
    Progress,
    PutMode,
    PutReminder,
    ReminderChange,
    ReminderRow,
    Settle,
    Watermark,
)

Values = tuple[Any, ...]

_ROWS_ONLY, _KEEP, _WRITE, _DESTROY = range(4)
_REPLACE = PutMode.REPLACE
_PUTS = {_REPLACE: 0, PutMode.IF_MISSING: 1, PutMode.KEEP_PROGRESS: 2}
_EDIT, _DELETE, _DELETE_OPERATION = range(3, 6)

_COLUMNS = tuple(ReminderRow.__dataclass_fields__)
_row_values = attrgetter(*_COLUMNS)
_progress_values = attrgetter(*Progress.__dataclass_fields__)
_NO_PROGRESS = (None,) * len(Progress.__dataclass_fields__)


def runs_of_distinct_grains(members: Sequence[int], batch: Sequence[Commit]) -> Iterator[list[int]]:
    """The members (positions in the batch) cut before each whose grain is already in the run."""
    run: list[int] = []
    seen: set[tuple[str, str]] = set()
    for index in members:
        grain = (batch[index].grain_type, batch[index].grain_key)
        if grain in seen:
            yield run
            run = []
            seen.clear()
        seen.add(grain)
        run.append(index)
    if run:
        yield run


@dataclass(slots=True)
class Staged:
    """One call of ``commit_1``, or of ``commit_2`` when there are requests.

    Positions in the answer count from 1 in these lists.
    """

    members: list[Values] = field(default_factory=list)
    settles: list[Values] = field(default_factory=list)
    changes: list[Values] = field(default_factory=list)
    marks: list[Values] = field(default_factory=list)
    events: list[Values] = field(default_factory=list)
    messages: list[Values] = field(default_factory=list)
    requests: list[Values] = field(default_factory=list)
    _used: Counter[int] = field(default_factory=Counter)

    def add(self, member: Commit, bounded: bool) -> None:
        """``bounded`` False: the member's bound was looked at and holds."""
        number = len(self.members) + 1
        grain = (member.grain_type, member.grain_key)
        bound = member.reminders_max - len(member.reminders) if bounded and is_bounded(member) else None
        self.members.append((member.partition, member.epoch, *grain, *_write(member.grain), bound))
        if member.settle is not None:
            self.settles.append((number, *grain, *_settle(member.settle)))
        if member.reminders:
            for step, change in zip(steps(member.reminders), member.reminders, strict=True):
                self.changes.append((number, step, *_change(grain, change)))
        if member.watermarks:
            self.marks += [(number, *grain, *mark) for mark in _marks(member.watermarks)]
        if (request := member.request) is not None:
            self.requests.append((number, *grain, request.request_id, request.answer, request.at))
        for event in member.events:
            counted = self._count(member.partition)
            self.events.append((number, *counted, event.stream, event.payload, event.at))
        for sent in member.outbox:
            counted = self._count(member.partition)
            target = (sent.target_type, sent.target_key, sent.method, sent.args, sent.at)
            self.messages.append((number, *counted, *grain, *target))

    def _count(self, partition: int) -> tuple[int, int]:
        self._used[partition] += 1
        return partition, self._used[partition]

    def partitions(self) -> list[int]:
        """In the order in which everybody takes their locks."""
        return sorted({values[0] for values in self.members})


def steps(changes: Sequence[ReminderChange]) -> list[int]:
    """Which changes of one grain may go together: a change comes a step after the last it could meet."""
    found: list[int] = []
    by_name: dict[str, int] = {}
    after_all = 0  # the first step that an operation's deletion leaves
    for change in changes:
        if isinstance(change, DeleteOperation):
            step = max(found, default=-1) + 1
            after_all = step + 1
        else:
            name = change.row.name if isinstance(change, PutReminder) else change.name
            step = max(by_name.get(name, 0), after_all)
            by_name[name] = step + 1
        found.append(step)
    return found


def _write(write: GrainWrite | None) -> Values:
    if write is None:
        return (_ROWS_ONLY, 0, 0, None)
    if write.destroy:
        return (_DESTROY, write.expected_version, write.layout, None)
    if write.writes_state:
        return (_WRITE, write.expected_version, write.layout, write.state)
    return (_KEEP, write.expected_version, write.layout, None)


def _settle(settle: Settle) -> Values:
    progress = _NO_PROGRESS if settle.progress is None else _progress_values(settle.progress)
    consumed = (settle.name, settle.registration, settle.occurrence)
    return (*consumed, settle.by_operator, settle.progress is None, *progress)


def _change(grain: tuple[str, str], change: ReminderChange) -> Values:
    if isinstance(change, PutReminder):
        # the usual mode without the hash of an Enum, which is a function of Python
        kind = 0 if change.mode is _REPLACE else _PUTS[change.mode]
        return (kind, *_row_values(change.row))
    values: dict[str, Any] = {"grain_type": grain[0], "grain_key": grain[1]}
    if isinstance(change, DeleteOperation):
        kind = _DELETE_OPERATION
        values["operation"] = change.operation
    else:
        kind = _EDIT if isinstance(change, EditReminder) else _DELETE
        values["name"] = change.name
    if isinstance(change, EditReminder):
        values.update(priority=change.priority, action=change.action)
    return (kind, *map(values.get, _COLUMNS))


def _marks(watermarks: Sequence[Watermark]) -> Iterator[Values]:
    """(source, first, last) of each source; first None when the member itself is out of order."""
    first: dict[str, int | None] = {}
    last: dict[str, int] = {}
    for mark in watermarks:
        if mark.source in last and mark.position <= last[mark.source]:
            first[mark.source] = None
        first.setdefault(mark.source, mark.position)
        last[mark.source] = max(mark.position, last.get(mark.source, mark.position))
    for source, lowest in first.items():
        yield source, lowest, last[source]
