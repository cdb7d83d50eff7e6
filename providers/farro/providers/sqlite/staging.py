"""What the members of one run write, gathered by statement and written in as few steps as there are kinds."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
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
from farro.providers.sqlite.queries import QUERIES, in_statements, with_rows

Address = tuple[str, str, str]  # service id, grain type, grain key
Values = tuple[object, ...]

_PROGRESS = tuple(Progress.__dataclass_fields__)
reminder_values = attrgetter(*ReminderRow.__dataclass_fields__)
progress_values = attrgetter(*_PROGRESS)


class Staged:
    """The writes of members whose grains are distinct and whose verdict is COMMITTED.

    Kinds are flushed in the order in which a commit applies them; of the reminder changes, every grain's
    first goes before any grain's second, so that each grain sees its own order.
    """

    def __init__(self, connection: sqlite3.Connection, service_id: str, sequences: dict[int, int]) -> None:
        self._connection = connection
        self._service_id = service_id
        self._sequences = sequences
        self._moved: set[int] = set()
        self._watermarks: dict[tuple[str, ...], int] = {}
        self._heads: dict[tuple[str, int], int] = {}
        settles = ("move_reminders", "move_by_operator", "delete_reminders")
        self._first: dict[str, list[Values]] = {name: [] for name in settles}
        self._grains: dict[str, list[Values]] = {"write_states": [], "touch_grains": []}
        self._steps: list[dict[str, list[Values]]] = []
        self._last: dict[str, list[Values]] = {"add_events": [], "add_messages": []}

    def member(self, member: Commit, settled: bool) -> Verdict:
        """Stage one member.  ``settled``: its settle matches the stored row."""
        address = (self._service_id, member.grain_type, member.grain_key)
        version = 0
        for mark in member.watermarks:
            self._watermarks[(*address, mark.source)] = mark.position
        if settled and member.settle is not None:
            self._settle(address, member.settle)
        if member.grain is not None:
            self._grain(address, member.partition, member.grain)
            version = member.grain.expected_version + 1
        kept = self._changes(address, member) if member.reminders else ()
        if member.events or member.outbox:
            self._append(member)
        return Verdict(Outcome.COMMITTED, version=version, settled=settled, kept=kept)

    def flush(self) -> None:
        for kinds in (self._first, self._grains, *self._steps, self._last):
            for name, rows in kinds.items():
                self._run(name, rows)
        self._run("move_watermarks", [(*key, position) for key, position in self._watermarks.items()])
        self._run("move_stream_heads", [(self._service_id, *key, n) for key, n in self._heads.items()])
        self._run("move_sequences", [(self._service_id, p, self._sequences[p]) for p in self._moved])

    def _run(self, name: str, rows: Sequence[Values]) -> None:
        if "{rows}" in QUERIES[name]:
            for statement, values in in_statements(name, rows):
                self._connection.execute(statement, values)
        else:
            self._connection.executemany(QUERIES[name], rows)

    def _settle(self, address: Address, settle: Settle) -> None:
        if settle.progress is None:
            self._first["delete_reminders"].append((*address, settle.name))
        else:
            query = "move_by_operator" if settle.by_operator else "move_reminders"
            self._first[query].append((*address, settle.name, *progress_values(settle.progress)))

    def _grain(self, address: Address, partition: int, write: GrainWrite) -> None:
        if write.destroy:
            # at once, for both statements must follow each other and the case is rare; a staged settle then
            # finds no row, which is what it would have left
            if write.expected_version == 0:
                self._run("write_states", [(*address, partition, 1, 2, write.layout, None)])
            else:
                self._connection.execute(QUERIES["destroy_grain"], (*address, write.layout))
            self._connection.execute(QUERIES["delete_reminders_of"], address)
        elif write.writes_state or write.expected_version == 0:
            state = write.state if write.writes_state else None
            self._grains["write_states"].append((*address, partition, 1, 1, write.layout, state))
        else:
            self._grains["touch_grains"].append(address)

    def _changes(self, address: Address, member: Commit) -> tuple[str, ...]:
        """Stage the changes; the names of puts that leave a row, or its progress, standing."""
        changes = member.reminders
        if any(isinstance(change, PutReminder) and change.mode is not PutMode.REPLACE for change in changes):
            # such a put must see its own grain's settle and changes before it
            self._flush_settles()
            return tuple(name for change in changes for name in self._change_now(address, change))
        for index, change in enumerate(changes):
            if index == len(self._steps):
                self._steps.append({})
            name, values = _statement(address, change)
            self._steps[index].setdefault(name, []).append(values)
        return ()

    def _flush_settles(self) -> None:
        for name, rows in self._first.items():
            self._run(name, rows)
            rows.clear()

    def _change_now(self, address: Address, change: ReminderChange) -> list[str]:
        if not isinstance(change, PutReminder) or change.mode is PutMode.REPLACE:
            name, values = _statement(address, change)
            self._run(name, [values])
            return []
        row = change.row
        values = (address[0], *reminder_values(row))
        if change.mode is PutMode.IF_MISSING:
            put = self._connection.execute(with_rows("put_reminder_if_missing", len(values), 1), values)
            return [] if put.rowcount == 1 else [row.name]
        found = self._connection.execute(QUERIES["reminder"], (*address, row.name)).fetchone()
        standing = put_over(ReminderRow(*found) if found else None, row, change.mode)
        self._run("put_reminders", [(address[0], *reminder_values(standing))])
        return [] if standing is row else [row.name]

    def _append(self, member: Commit) -> None:
        partition = member.partition
        sequence = self._sequences[partition]
        for event in member.events:
            sequence += 1
            self._heads[event.stream, partition] = sequence
            self._last["add_events"].append(
                (self._service_id, partition, sequence, event.stream, event.payload, event.at)
            )
        for message in member.outbox:
            sequence += 1
            sender = (member.grain_type, member.grain_key)
            target = (message.target_type, message.target_key, message.method, message.args, message.at)
            self._last["add_messages"].append((self._service_id, partition, sequence, *sender, *target))
        self._sequences[partition] = sequence
        self._moved.add(partition)


def _statement(address: Address, change: ReminderChange) -> tuple[str, Values]:
    """The query of a change that needs no answer, and its values."""
    if isinstance(change, PutReminder):
        return "put_reminders", (address[0], *reminder_values(change.row))
    if isinstance(change, DeleteReminder):
        return "delete_reminders", (*address, change.name)
    if isinstance(change, EditReminder):
        edit = (*address, change.name, change.priority, change.action)
        return "edit_reminder", edit
    return "delete_operation", (*address, change.operation)
