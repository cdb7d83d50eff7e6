"""The group commit: a batch of members in one transaction and about five statements.

Members of different grains touch different rows, so within a run of distinct grains the statements go kind by
kind.  A grain that comes twice starts a new run: the order of the batch is kept.

Nearly always every grain has the version that its member expects, and every settle matches.  So a batch is
first written without a look: the writes carry the condition, and are counted.  Most batches are even planned
(``planning``) before they reach this thread.  When one misses, the transaction is rolled back and run again
with a look at all versions and settles before each run, so that only the members concerned are refused.

The usual batch has no bad data either.  When SQLite refuses a value all the same, the transaction is rolled
back and run again with a savepoint around each member, so that only the bad one is rejected. (A savepoint
from the start would copy every page before its first change.)
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from farro.providers.checks import is_duplicate, rejections, too_many
from farro.providers.rows import Commit, Outcome, Verdict
from farro.providers.sqlite.failures import DATA_ERRORS, roll_back, writing
from farro.providers.sqlite.planning import Plan, rooms, runs_of_distinct_grains
from farro.providers.sqlite.queries import QUERIES, in_statements
from farro.providers.sqlite.reading import fetch
from farro.providers.sqlite.staging import Missed, Staged, Transaction, by_partition, run

_FENCED = Verdict(Outcome.FENCED)
_CONFLICT = Verdict(Outcome.CONFLICT)
_DUPLICATE = Verdict(Outcome.DUPLICATE)


def commit_batch(
    connection: sqlite3.Connection,
    url: str,
    service_id: str,
    batch: Sequence[Commit],
    owner: int,
    now: int,
    plan: Plan | None,
) -> list[Verdict]:
    """Verdicts in the order of the batch, of which ``plan`` is the plan if it has one.

    Raises sqlite3.Error when the store did not take it.
    """
    if plan is not None:
        try:
            plan.write(connection, url)
            return plan.verdicts
        except (Missed, *DATA_ERRORS):
            pass  # of some member, which has to be found
    with writing(connection, url):
        verdicts = _written(connection, service_id, batch, looks=plan is not None)
        connection.execute(QUERIES["sign_of_life"], (service_id, owner, now))
    return verdicts


def _written(
    connection: sqlite3.Connection, service_id: str, batch: Sequence[Commit], *, looks: bool
) -> list[Verdict]:
    reasons = rejections(batch)
    try:
        try:
            return _Batch(connection, service_id, looks=looks).write_runs(batch, reasons)
        except Missed:
            _begin_again(connection)
            return _Batch(connection, service_id, looks=True).write_runs(batch, reasons)
    except DATA_ERRORS:
        _begin_again(connection)
        return _Batch(connection, service_id, looks=True).write_one_by_one(batch, reasons)


def _begin_again(connection: sqlite3.Connection) -> None:
    roll_back(connection)
    connection.execute("BEGIN IMMEDIATE")


def trim_events(
    connection: sqlite3.Connection, url: str, service_id: str, stream: str, partition: int, until: int
) -> int:
    with writing(connection, url):
        values = (service_id, stream, partition, until)
        return connection.execute(QUERIES["trim_events"], values).rowcount


def forget_requests(
    connection: sqlite3.Connection, url: str, service_id: str, before: int, limit: int
) -> int:
    with writing(connection, url):
        return connection.execute(QUERIES["forget_requests"], (service_id, before, max(limit, 0))).rowcount


class _Batch:
    """One attempt at a batch inside an open transaction."""

    def __init__(self, connection: sqlite3.Connection, service_id: str, *, looks: bool) -> None:
        self._connection = connection
        self._service_id = service_id
        self._looks = looks
        self._epochs = by_partition(connection, "fences", service_id)
        self._transaction = Transaction(connection, service_id)

    def write_runs(self, batch: Sequence[Commit], reasons: Sequence[str]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for part in runs_of_distinct_grains(batch):
            verdicts += self._write(batch[part.start : part.stop], reasons[part.start : part.stop])
        return verdicts

    def write_one_by_one(self, batch: Sequence[Commit], reasons: Sequence[str]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for member, reason in zip(batch, reasons, strict=True):
            self._connection.execute("SAVEPOINT member")
            try:
                verdicts += self._write([member], [reason])
            except DATA_ERRORS as error:
                self._connection.execute("ROLLBACK TO member")
                refused = f"the store cannot hold a value: {error}"
                verdicts.append(Verdict(Outcome.REJECTED, reason=refused))
            self._connection.execute("RELEASE member")
        return verdicts

    def _write(self, members: Sequence[Commit], reasons: Sequence[str]) -> list[Verdict]:
        """One run: give verdicts, then write all that holds.  Raises Missed unless it looks first."""
        verdicts: dict[int, Verdict] = {}  # of the members that are refused; the others hold so far
        epochs = self._epochs
        for index, member in enumerate(members):
            if reasons[index]:
                verdicts[index] = Verdict(Outcome.REJECTED, reason=reasons[index])
            elif epochs.get(member.partition) != member.epoch:
                verdicts[index] = _FENCED
        settled = {index for index, member in enumerate(members) if member.settle is not None}
        if self._looks:
            self._refuse_repeated(members, verdicts)
            self._refuse_conflicts(members, verdicts)
            settled = self._settled(members, verdicts)
        refused = len(verdicts)
        self._refuse_duplicates(members, verdicts)
        self._refuse_too_many(members, verdicts, settled)
        if len(verdicts) > refused and not self._looks:
            raise Missed  # it may also be a conflict, which is told first
        staged = Staged(self._service_id, self._transaction)
        stage = staged.member
        answers = [
            verdicts.get(index) or stage(member, index in settled) for index, member in enumerate(members)
        ]
        run(self._connection, staged.statements())
        return answers

    def _ask(self, name: str, asked: Sequence[tuple[object, ...]]) -> Iterator[Any]:
        """The JSON answers of a query that tells in one value what it found for many."""
        for statement, values in in_statements(name, asked):
            (answer,) = self._connection.execute(statement, values).fetchone()
            yield json.loads(answer)

    def _address(self, index: int, member: Commit) -> tuple[int, str, str, str]:
        return index, self._service_id, member.grain_type, member.grain_key

    def _refuse_repeated(self, members: Sequence[Commit], verdicts: dict[int, Verdict]) -> None:
        asked = [
            (*self._address(index, member), request.request_id)
            for index, member in enumerate(members)
            if (request := member.request) is not None and index not in verdicts
        ]
        for statement, values in in_statements("answers", asked):
            for index, answer in self._connection.execute(statement, values).fetchall():
                verdicts[index] = Verdict(Outcome.REPEATED, answer=answer)

    def _refuse_conflicts(self, members: Sequence[Commit], verdicts: dict[int, Verdict]) -> None:
        expected = {
            index: member.grain.expected_version
            for index, member in enumerate(members)
            if member.grain is not None and index not in verdicts
        }
        stored: dict[str, int] = {}
        for answer in self._ask("versions", [self._address(index, members[index]) for index in expected]):
            stored.update(answer)
        for index, version in expected.items():
            if stored.get(str(index), 0) != version:
                verdicts[index] = _CONFLICT

    def _refuse_duplicates(self, members: Sequence[Commit], verdicts: dict[int, Verdict]) -> None:
        asked = [
            (*self._address(index, member), watermark.source)
            for index, member in enumerate(members)
            if member.watermarks and index not in verdicts
            for watermark in member.watermarks
        ]
        reached: dict[int, dict[str, int]] = {row[0]: {} for row in asked}
        for answer in self._ask("positions", asked):
            for index, source, position in answer:
                reached[index][source] = position
        for index, positions in reached.items():
            if is_duplicate(members[index], positions):
                verdicts[index] = _DUPLICATE

    def _settled(self, members: Sequence[Commit], verdicts: dict[int, Verdict]) -> set[int]:
        asked = [
            (*self._address(index, member), settle.name, settle.registration, settle.occurrence)
            for index, member in enumerate(members)
            if (settle := member.settle) is not None and index not in verdicts
        ]
        return {index for answer in self._ask("settled", asked) for index in answer}

    def _refuse_too_many(
        self, members: Sequence[Commit], verdicts: dict[int, Verdict], settled: set[int]
    ) -> None:
        """Only a grain that comes near its bound is looked at name by name."""
        service_id = self._service_id
        asked = [(at, service_id, *room) for at, *room in rooms(members) if at not in verdicts]
        for answer in self._ask("crowded", asked):
            for index in answer:
                member = members[index]
                held = fetch(
                    self._connection, QUERIES["reminder_operations"], self._address(index, member)[1:]
                )
                if reason := too_many(member, index in settled, dict(held)):
                    verdicts[index] = Verdict(Outcome.REJECTED, reason=reason)
