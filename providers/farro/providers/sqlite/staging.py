"""What the members of one run write, gathered by statement and written in as few steps as there are kinds."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from farro.providers.rows import (
    Commit,
    DeleteReminder,
    EditReminder,
    GrainWrite,
    Outcome,
    Progress,
    PutMode,
    PutReminder,
    ReminderChange,
    ReminderRow,
    Settle,
    Verdict,
    put_over,
)
from farro.providers.sqlite.queries import MANY_ROWS, QUERIES, ROWS_MAX, in_statements, with_rows

Address = tuple[str, str, str]  # service id, grain type, grain key
Values = tuple[object, ...]

reminder_values: Callable[[ReminderRow], Values] = attrgetter(*ReminderRow.__dataclass_fields__)
progress_values: Callable[[Progress], Values] = attrgetter(*Progress.__dataclass_fields__)

# before the reminder changes and after them, in this order
_SETTLES = ("move_reminders", "move_by_operator", "delete_settled")
_GRAINS = ("add_grains", "write_states", "touch_grains", "destroy_grains")
_FIRST = ("add_requests", *_SETTLES, *_GRAINS, "delete_reminders_of")
_LAST = ("add_events", "add_messages")

# writes whose condition is part of the verdicts: each row must find what its member expects
_EXPECTING = frozenset(_FIRST) - {"delete_reminders_of"}

# looked up once: an attribute of an Enum class costs as much as two calls
_COMMITTED = Outcome.COMMITTED
_REPLACE = PutMode.REPLACE


class Missed(Exception):
    """What a batch that was written without a look takes for granted does not hold."""


Statement = tuple[
    str, Sequence[object], int | None
]  # text, values, and how many rows it must find if that matters


def run(connection: sqlite3.Connection, statements: Iterable[Statement]) -> None:
    """Execute them in order.  Raises Missed at the first that does not find the rows it must find."""
    for text, values, expected in statements:
        found = connection.execute(text, values).rowcount  # without what another program's triggers wrote
        if expected is not None and found != expected:
            raise Missed(text)


class NeedsReading(Exception):
    """A member's writes depend on what is stored, and no transaction is open to read it in."""


class Staged:
    """The writes of members whose grains are distinct and whose verdict is COMMITTED.

    Kinds are written in the order in which a commit applies them; of the reminder changes, every grain's
    first goes before any grain's second, so that each grain sees its own order.  ``within`` is the open
    transaction, for members whose writes depend on what is stored; without one they raise NeedsReading.
    """

    def __init__(self, service_id: str, within: Transaction | None = None) -> None:
        self._service_id = service_id
        self._within = within
        self._watermarks: dict[tuple[str, ...], int] = {}
        self._heads: dict[tuple[str, int], int] = {}
        self._rows: dict[str, list[Values]] = {name: [] for name in (*_FIRST, *_LAST)}
        self.states = self._rows["write_states"]
        self._steps: list[defaultdict[str, list[Values]]] = []

    def member(self, member: Commit, settled: bool) -> Verdict:
        """Stage one member.  ``settled``: its settle is to match the stored row."""
        address = service_id, grain_type, grain_key = (
            self._service_id,
            member.grain_type,
            member.grain_key,
        )
        version = 0
        kept: tuple[str, ...] = ()
        if (request := member.request) is not None:
            answered = (*address, request.request_id, request.answer, request.at)
            self._rows["add_requests"].append(answered)
        if member.watermarks:
            self._needed()  # whether the message was consumed before
            for mark in member.watermarks:
                self._watermarks[(*address, mark.source)] = mark.position
        if settled and member.settle is not None:
            self._settle(address, member.settle)
        if (write := member.grain) is not None:
            version = write.expected_version + 1
            if write.writes_state and version > 1 and not write.destroy:
                state = (service_id, grain_type, grain_key, version - 1, write.layout, write.state)
                self.states.append(state)
            else:
                self._grain(address, member.partition, write)
        if member.reminders:
            kept = self._changes(address, member.reminders)
        if member.events or member.outbox:
            self._append(member)
        return Verdict(_COMMITTED, version, settled, kept)

    @property
    def is_states_alone(self) -> bool:
        """Are next states of grains all that is staged?"""
        others = (rows for name, rows in self._rows.items() if name != "write_states")
        return bool(self.states) and not (any(others) or self._steps or self._watermarks or self._heads)

    def statements(self) -> Iterator[Statement]:
        """What is staged, in the order in which it has to be written; it is staged no more."""
        yield from self._take(_FIRST)
        for step in self._steps:
            for name, rows in step.items():
                yield from _statements(name, rows)
        self._steps.clear()
        yield from self._take(_LAST)
        marks = [(*key, position) for key, position in self._watermarks.items()]
        yield from _statements("move_watermarks", marks)
        heads = [(self._service_id, *key, number) for key, number in self._heads.items()]
        yield from _statements("move_stream_heads", heads)
        if self._within is not None:
            moved = [(self._service_id, *moved) for moved in self._within.sequences.moved()]
            yield from _statements("move_sequences", moved)

    def _take(self, names: Sequence[str]) -> Iterator[Statement]:
        for name in names:
            if rows := self._rows[name]:
                yield from _statements(name, rows)
                rows.clear()

    def _settle(self, address: Address, settle: Settle) -> None:
        consumed = (*address, settle.name, settle.registration, settle.occurrence)
        if settle.progress is None:
            self._rows["delete_settled"].append(consumed)
        else:
            query = "move_by_operator" if settle.by_operator else "move_reminders"
            self._rows[query].append(consumed + progress_values(settle.progress))

    def _grain(self, address: Address, partition: int, write: GrainWrite) -> None:
        """Every write but the usual one, the next state of a grain."""
        version, layout = write.expected_version, write.layout
        if write.destroy:
            self._rows["delete_reminders_of"].append(address)
        if version == 0:
            state = write.state if write.writes_state and not write.destroy else None
            incarnation = 2 if write.destroy else 1
            self._rows["add_grains"].append((*address, partition, 1, incarnation, layout, state))
        elif write.destroy:
            self._rows["destroy_grains"].append((*address, version, layout))
        elif write.writes_state:
            self._rows["write_states"].append((*address, version, layout, write.state))
        else:
            self._rows["touch_grains"].append((*address, version))

    def _changes(self, address: Address, changes: Sequence[ReminderChange]) -> tuple[str, ...]:
        """Stage the changes; the names of puts that leave a row, or its progress, standing."""
        for change in changes:
            if isinstance(change, PutReminder) and change.mode is not _REPLACE:
                within = self._needed()
                # such a put must see its own grain's settle and changes before it
                run(within.connection, self._take(_SETTLES))
                return tuple(
                    [name for change in changes for name in _change_now(within.connection, address, change)]
                )
        for index, change in enumerate(changes):
            if index == len(self._steps):
                self._steps.append(defaultdict(list))
            name, values = _statement(address, change)
            self._steps[index][name].append(values)
        return ()

    def _append(self, member: Commit) -> None:
        sequences, partition = self._needed().sequences, member.partition
        numbered = (self._service_id, partition)
        for event in member.events:
            sequence = sequences.next(partition)
            self._heads[event.stream, partition] = sequence
            values = (sequence, event.stream, event.payload, event.at)
            self._rows["add_events"].append((*numbered, *values))
        for message in member.outbox:
            sequence = sequences.next(partition)
            sender = (member.grain_type, member.grain_key)
            target = (message.target_type, message.target_key, message.method, message.args, message.at)
            self._rows["add_messages"].append((*numbered, sequence, *sender, *target))

    def _needed(self) -> Transaction:
        if self._within is None:
            raise NeedsReading
        return self._within


class Transaction:
    """An open transaction, and the numbers that events and messages got in it."""

    def __init__(self, connection: sqlite3.Connection, service_id: str) -> None:
        self.connection = connection
        self.sequences = Sequences(connection, service_id)


class Sequences:
    """The numbers of the partitions' events and messages, within one transaction; read when one is needed."""

    def __init__(self, connection: sqlite3.Connection, service_id: str) -> None:
        self._connection = connection
        self._service_id = service_id
        self._last: dict[int, int] = {}
        self._moved: set[int] = set()

    def next(self, partition: int) -> int:
        if not self._last:
            self._last = dict(by_partition(self._connection, "sequences", self._service_id))
        self._last[partition] += 1
        self._moved.add(partition)
        return self._last[partition]

    def moved(self) -> list[tuple[int, int]]:
        """The partitions that gave numbers since this was asked, each with its last."""
        moved = [(partition, self._last[partition]) for partition in self._moved]
        self._moved.clear()
        return moved


def by_partition(connection: sqlite3.Connection, query: str, service_id: str) -> Mapping[int, int]:
    """What a query says now of all partitions in two lists."""
    return _paired(*connection.execute(QUERIES[query], (service_id,)).fetchone())


@lru_cache(maxsize=8)
def _paired(partitions: str, values: str) -> Mapping[int, int]:
    """The meaning of the two texts; those of the fences are the same for hours."""
    return dict(zip(json.loads(partitions), json.loads(values), strict=True))


def _statements(name: str, rows: Sequence[Values]) -> Iterator[Statement]:
    """The query ``name`` for all rows, in as few steps as it allows."""
    expecting = name in _EXPECTING
    if name in MANY_ROWS:
        for start, (text, values) in enumerate(in_statements(name, rows)):
            count = min(ROWS_MAX, len(rows) - start * ROWS_MAX)
            yield text, values, count if expecting else None
    else:
        for row in rows:
            yield QUERIES[name], row, 1 if expecting else None


def _change_now(connection: sqlite3.Connection, address: Address, change: ReminderChange) -> list[str]:
    """Make one change; the name of a put that leaves a row, or its progress, standing."""
    if not isinstance(change, PutReminder) or change.mode is _REPLACE:
        name, values = _statement(address, change)
        run(connection, _statements(name, [values]))
        return []
    row = change.row
    values = (address[0], *reminder_values(row))
    if change.mode is PutMode.IF_MISSING:
        put = connection.execute(with_rows("put_reminder_if_missing", len(values), 1), values)
        return [] if put.rowcount == 1 else [row.name]
    found = connection.execute(QUERIES["reminder"], (*address, row.name)).fetchone()
    standing = put_over(ReminderRow(*found) if found else None, row, change.mode)
    run(connection, _statements("put_reminders", [(address[0], *reminder_values(standing))]))
    return [] if standing is row else [row.name]


def _statement(address: Address, change: ReminderChange) -> tuple[str, Values]:
    """The query of a change that needs no answer, and its values."""
    if isinstance(change, PutReminder):
        return "put_reminders", address[:1] + reminder_values(change.row)
    if isinstance(change, DeleteReminder):
        return "delete_reminders", (*address, change.name)
    if isinstance(change, EditReminder):
        edit = (*address, change.name, change.priority, change.action)
        return "edit_reminder", edit
    return "delete_operation", (*address, change.operation)
