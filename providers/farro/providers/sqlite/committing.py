"""The group commit: a batch of members in one transaction and about ten statements.

Members of different grains touch different rows, so within a run of distinct grains the statements go kind by
kind: look at all versions, look at all settles, give verdicts, write all that holds.  A grain that comes
twice starts a new run: the order of the batch is kept.

The usual batch has no bad data.  When SQLite refuses a value all the same, the transaction is rolled back and
run again with a savepoint around each member, so that only the bad one is rejected. (A savepoint from the
start would copy every page before its first change.)
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

from farro.providers.checks import rejection
from farro.providers.rows import Commit, Outcome, Verdict
from farro.providers.sqlite.failures import DATA_ERRORS, roll_back, writing
from farro.providers.sqlite.queries import QUERIES, in_statements
from farro.providers.sqlite.staging import Staged

_FENCED = Verdict(Outcome.FENCED)
_CONFLICT = Verdict(Outcome.CONFLICT)


def commit_batch(
    connection: sqlite3.Connection, url: str, service_id: str, batch: Sequence[Commit], owner: int, now: int
) -> list[Verdict]:
    """Verdicts in the order of the batch.  Raises sqlite3.Error when the store did not take it."""
    reasons = [rejection(member) for member in batch]
    with writing(connection, url):
        try:
            verdicts = _Batch(connection, service_id).write_runs(batch, reasons)
        except DATA_ERRORS:
            roll_back(connection)
            connection.execute("BEGIN IMMEDIATE")
            verdicts = _Batch(connection, service_id).write_one_by_one(batch, reasons)
        connection.execute(QUERIES["sign_of_life"], (service_id, owner, now))
    return verdicts


def runs_of_distinct_grains(batch: Sequence[Commit]) -> Iterator[range]:
    """The positions of the batch cut before each member whose grain is already in the run."""
    start = 0
    seen: set[tuple[str, str]] = set()
    for index, member in enumerate(batch):
        grain = (member.grain_type, member.grain_key)
        if grain in seen:
            yield range(start, index)
            start = index
            seen.clear()
        seen.add(grain)
    yield range(start, len(batch))


class _Batch:
    """One attempt at a batch inside an open transaction."""

    def __init__(self, connection: sqlite3.Connection, service_id: str) -> None:
        self._connection = connection
        self._service_id = service_id
        (fences,) = connection.execute(QUERIES["fences"], (service_id,)).fetchone()
        self._epochs: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        for partition, (epoch, sequence) in json.loads(fences).items():
            self._epochs[int(partition)] = epoch
            self._sequences[int(partition)] = sequence

    def write_runs(self, batch: Sequence[Commit], reasons: Sequence[str]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for run in runs_of_distinct_grains(batch):
            verdicts += self._write([batch[i] for i in run], [reasons[i] for i in run])
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
        verdicts: list[Verdict | None] = [
            Verdict(Outcome.REJECTED, reason=reason)
            if reason
            else (None if self._epochs.get(member.partition) == member.epoch else _FENCED)
            for member, reason in zip(members, reasons, strict=True)
        ]
        versions = self._versions(members, verdicts)
        for index, member in enumerate(members):
            write = member.grain
            if write is not None and verdicts[index] is None:
                verdicts[index] = None if versions.get(index, 0) == write.expected_version else _CONFLICT
        settled = self._settled(members, verdicts)
        staged = Staged(self._connection, self._service_id, self._sequences)
        answers = [
            verdict or staged.member(member, index in settled)
            for index, (member, verdict) in enumerate(zip(members, verdicts, strict=True))
        ]
        staged.flush()
        return answers

    def _versions(self, members: Sequence[Commit], verdicts: Sequence[Verdict | None]) -> dict[int, int]:
        asked = [
            (index, self._service_id, member.grain_type, member.grain_key)
            for index, member in enumerate(members)
            if member.grain is not None and verdicts[index] is None
        ]
        found: dict[int, int] = {}
        for statement, values in in_statements("versions", asked):
            (answer,) = self._connection.execute(statement, values).fetchone()
            found.update((int(index), version) for index, version in json.loads(answer).items())
        return found

    def _settled(self, members: Sequence[Commit], verdicts: Sequence[Verdict | None]) -> set[int]:
        asked = [
            (
                index,
                self._service_id,
                member.grain_type,
                member.grain_key,
                member.settle.name,
                member.settle.registration,
                member.settle.occurrence,
            )
            for index, member in enumerate(members)
            if member.settle is not None and verdicts[index] is None
        ]
        found: set[int] = set()
        for statement, values in in_statements("settled", asked):
            (answer,) = self._connection.execute(statement, values).fetchone()
            found.update(json.loads(answer))
        return found
