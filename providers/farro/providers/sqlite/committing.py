"""The group commit: a batch of members in one transaction, as few statements as their verdicts allow.

Members of different grains touch different rows, so within a run of distinct grains the statements may go
kind by kind.  A grain that comes twice starts a new run: the order of the batch is kept.

The usual batch has no bad data.  When SQLite refuses a value all the same, the transaction is rolled back and
run again with a savepoint around each member, so that only the bad one is rejected. (A savepoint from the
start would copy every page before its first change.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from operator import attrgetter

from farro.providers.checks import rejection
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
from farro.providers.sqlite.failures import DATA_ERRORS, roll_back, writing
from farro.providers.sqlite.queries import QUERIES

reminder_values = attrgetter(*ReminderRow.__dataclass_fields__)
progress_values = attrgetter(*Progress.__dataclass_fields__)

_PUT = QUERIES["put_reminder"]
_FENCED = Verdict(Outcome.FENCED)
_CONFLICT = Verdict(Outcome.CONFLICT)


def commit_batch(
    connection: sqlite3.Connection, url: str, service_id: str, batch: Sequence[Commit], owner: int, now: int
) -> list[Verdict]:
    """Verdicts in the order of the batch.  Raises sqlite3.Error when the store did not take it."""
    with writing(connection, url):
        try:
            verdicts = _write_runs(connection, service_id, batch)
        except DATA_ERRORS:
            roll_back(connection)
            connection.execute("BEGIN IMMEDIATE")
            verdicts = _write_one_by_one(connection, service_id, batch)
        connection.execute(QUERIES["sign_of_life"], (service_id, owner, now))
    return verdicts


def _write_runs(connection: sqlite3.Connection, service_id: str, batch: Sequence[Commit]) -> list[Verdict]:
    writer = _Writer(connection, service_id)
    verdicts: list[Verdict] = []
    for run in runs_of_distinct_grains(batch):
        verdicts += [writer.write(member) for member in run]
        writer.flush()
    writer.finish()
    return verdicts


def _write_one_by_one(
    connection: sqlite3.Connection, service_id: str, batch: Sequence[Commit]
) -> list[Verdict]:
    writer = _Writer(connection, service_id)
    verdicts: list[Verdict] = []
    for member in batch:
        connection.execute("SAVEPOINT member")
        try:
            verdict = writer.write(member)
            writer.flush()
        except DATA_ERRORS as error:
            connection.execute("ROLLBACK TO member")
            writer.forget()
            verdict = Verdict(Outcome.REJECTED, reason=f"the store cannot hold a value: {error}")
        connection.execute("RELEASE member")
        verdicts.append(verdict)
    writer.finish()
    return verdicts


def runs_of_distinct_grains(batch: Sequence[Commit]) -> Iterator[Sequence[Commit]]:
    """The batch cut before each member whose grain is already in the run."""
    start = 0
    seen: set[tuple[str, str]] = set()
    for index, member in enumerate(batch):
        grain = (member.grain_type, member.grain_key)
        if grain in seen:
            yield batch[start:index]
            start = index
            seen.clear()
        seen.add(grain)
    yield batch[start:]


class _Writer:
    """Writes members inside an open transaction; what needs no answer is queued and flushed by kind."""

    def __init__(self, connection: sqlite3.Connection, service_id: str) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._service_id = service_id
        self._epochs: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        for partition, epoch, sequence in connection.execute(QUERIES["fences"], (service_id,)):
            self._epochs[partition] = epoch
            self._sequences[partition] = sequence
        self._moved: set[int] = set()
        # the changes that the members asked for first, second, …, each by statement
        self._steps: list[dict[str, list[tuple[object, ...]]]] = []

    def write(self, member: Commit) -> Verdict:
        if reason := rejection(member):
            return Verdict(Outcome.REJECTED, reason=reason)
        if self._epochs.get(member.partition) != member.epoch:
            return _FENCED
        address = (self._service_id, member.grain_type, member.grain_key)
        version = 0
        if member.grain is not None:
            if not self._write_grain(address, member.partition, member.grain):
                return _CONFLICT
            version = member.grain.expected_version + 1
        settled = member.settle is not None and self._settle(address, member.settle)
        if member.grain is not None and member.grain.destroy:
            self._execute(QUERIES["delete_reminders_of"], address)
        kept = self._change(address, member.reminders) if member.reminders else ()
        if member.events or member.outbox:
            self._append(member)
        return Verdict(Outcome.COMMITTED, version=version, settled=settled, kept=kept)

    def flush(self) -> None:
        """Run what is queued: every grain's first change before its second, and so on."""
        for step in self._steps:
            for statement, rows in step.items():
                self._executemany(statement, rows)
        self._steps.clear()

    def forget(self) -> None:
        """Drop what is queued.  Sequence numbers already given stay given: a gap harms nobody."""
        self._steps.clear()

    def finish(self) -> None:
        for partition in self._moved:
            self._execute(QUERIES["move_sequence"], (self._service_id, partition, self._sequences[partition]))

    def _write_grain(self, address: tuple[str, str, str], partition: int, write: GrainWrite) -> bool:
        expected, layout = write.expected_version, write.layout
        if expected == 0:
            incarnation = 2 if write.destroy else 1
            state = write.state if write.writes_state and not write.destroy else None
            cursor = self._execute(QUERIES["insert_grain"], (*address, partition, incarnation, layout, state))
        elif write.destroy:
            cursor = self._execute(QUERIES["destroy_grain"], (*address, expected, layout))
        elif write.writes_state:
            cursor = self._execute(QUERIES["update_state"], (*address, expected, layout, write.state))
        else:
            cursor = self._execute(QUERIES["touch_grain"], (*address, expected))
        return cursor.rowcount == 1

    def _settle(self, address: tuple[str, str, str], settle: Settle) -> bool:
        consumed = (*address, settle.name, settle.registration, settle.occurrence)
        if settle.progress is None:
            cursor = self._execute(QUERIES["settle_last"], consumed)
        else:
            cursor = self._execute(QUERIES["settle_to"], consumed + progress_values(settle.progress))
        return cursor.rowcount == 1

    def _change(self, address: tuple[str, str, str], changes: Sequence[ReminderChange]) -> tuple[str, ...]:
        if any(isinstance(change, PutReminder) and change.mode is not PutMode.REPLACE for change in changes):
            return tuple(name for change in changes for name in self._change_now(address, change))
        for index, change in enumerate(changes):
            if index == len(self._steps):
                self._steps.append({})
            statement, values = _statement(address, change)
            self._steps[index].setdefault(statement, []).append(values)
        return ()

    def _change_now(self, address: tuple[str, str, str], change: ReminderChange) -> list[str]:
        """Apply one change and say whether it left a row, or its progress, standing."""
        if not isinstance(change, PutReminder) or change.mode is PutMode.REPLACE:
            self._execute(*_statement(address, change))
            return []
        row = change.row
        if change.mode is PutMode.IF_MISSING:
            put = self._execute(QUERIES["put_reminder_if_missing"], (address[0], *reminder_values(row)))
            return [] if put.rowcount == 1 else [row.name]
        found = self._execute(QUERIES["reminder"], (*address, row.name)).fetchone()
        standing = put_over(ReminderRow(*found) if found else None, row, change.mode)
        self._execute(_PUT, (address[0], *reminder_values(standing)))
        return [] if standing is row else [row.name]

    def _append(self, member: Commit) -> None:
        partition = member.partition
        sequence = self._sequences[partition]
        for event in member.events:
            sequence += 1
            self._execute(
                QUERIES["add_event"],
                (self._service_id, partition, sequence, event.stream, event.payload, event.at),
            )
        for message in member.outbox:
            sequence += 1
            target = (message.target_type, message.target_key, message.method, message.args, message.at)
            self._execute(
                QUERIES["add_message"],
                (self._service_id, partition, sequence, member.grain_type, member.grain_key, *target),
            )
        self._sequences[partition] = sequence
        self._moved.add(partition)


def _statement(address: tuple[str, str, str], change: ReminderChange) -> tuple[str, tuple[object, ...]]:
    """The statement of a change that needs no answer, and its values."""
    if isinstance(change, PutReminder):
        return _PUT, (address[0], *reminder_values(change.row))
    if isinstance(change, DeleteReminder):
        return QUERIES["delete_reminder"], (*address, change.name)
    if isinstance(change, EditReminder):
        edit = (*address, change.name, change.priority, change.action)
        if change.progress is None:
            return QUERIES["edit_reminder"], edit
        return QUERIES["edit_progress"], edit + progress_values(change.progress)
    return QUERIES["delete_operation"], (*address, change.operation)
