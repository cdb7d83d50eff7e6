"""A batch turned into statements before the writing thread is asked to run them.

The writing thread shares Python's lock with the event loop.  Each of its statements, and each line of Python
between them, may have to wait for the loop and makes the loop wait in turn, some ten microseconds each time.
So whatever needs no answer of the database is done before, and the thread is left with a handful of steps;
with one, when the batch writes nothing but states.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

from farro.providers.checks import is_bounded, rejections
from farro.providers.rows import Commit, Verdict
from farro.providers.sqlite.failures import at_once, writing
from farro.providers.sqlite.queries import QUERIES, ROWS_MAX, in_statements
from farro.providers.sqlite.staging import Missed, NeedsReading, Staged, Statement, run

SIGN_EVERY_US = 100_000  # of schedule time: a batch of states leaves a younger sign of life standing


class Planner:
    """Makes the plans of one service's batches, and knows how old its sign of life is."""

    def __init__(self, service_id: str) -> None:
        self._service_id = service_id
        self._signed = (0, 0)  # the owner that gave the last sign of life, and when

    def plan(self, batch: Sequence[Commit], owner: int, now: int) -> Plan | None:
        """The batch's plan, or None where what to write depends on what is stored."""
        before, at = self._signed
        signs = owner != before or not 0 <= now - at < SIGN_EVERY_US
        try:
            return Plan(self._service_id, batch, owner, now, signs=signs)
        except NeedsReading:
            return None

    def signed(self, owner: int, now: int) -> None:
        """A batch that was written has brought a sign of life."""
        self._signed = (owner, now)


class Plan:
    """The statements of a batch of which every member is taken to hold; ``verdicts`` if they all do."""

    def __init__(
        self, service_id: str, batch: Sequence[Commit], owner: int, now: int, *, signs: bool = True
    ) -> None:
        """``signs``: a sign of life of the owner has to go with it.

        Raises NeedsReading for a batch that cannot be written without reading first.
        """
        if any(rejections(batch)):
            raise NeedsReading
        epochs: dict[int, int] = {}
        for member in batch:
            if epochs.setdefault(member.partition, member.epoch) != member.epoch:
                raise NeedsReading  # of one partition, one of two epochs is refused
        made_under = json.dumps(epochs)
        parts = list(runs_of_distinct_grains(batch))
        room = [each[1:] for each in rooms(batch)]
        if room and len(parts) > 1:
            raise NeedsReading  # what a grain's second member finds was put by its first
        self.verdicts: list[Verdict] = []
        self._writes: list[Statement] = []
        # one statement, which is a transaction of its own
        self._alone: tuple[str, list[object]] | None = None
        for part in parts:
            staged = Staged(service_id)
            members = batch[part.start : part.stop]
            self.verdicts += [staged.member(member, member.settle is not None) for member in members]
            if not signs and len(parts) == 1 and staged.is_states_alone and len(batch) <= ROWS_MAX:
                self._alone = _states_alone(service_id, staged.states, made_under)
                return
            self._writes += staged.statements()
        vouch = (QUERIES["vouch"], (service_id, owner, now, made_under, json.dumps(room)), 1)
        self._writes.insert(0, vouch)

    def write(self, connection: sqlite3.Connection, url: str) -> None:
        """In one transaction.  Raises Missed or one of DATA_ERRORS when something does not hold."""
        if self._alone is not None:
            self._write_alone(connection, url, *self._alone)
            return
        with writing(connection, url):
            run(connection, self._writes)

    def _write_alone(
        self, connection: sqlite3.Connection, url: str, text: str, values: Sequence[object]
    ) -> None:
        before = connection.total_changes
        with at_once(connection, url):
            connection.execute(text, values)
        # All rows or none, and what is there now stays there.  (The count is of 32 bits, and others' triggers
        # count too.)
        if connection.total_changes == before:
            raise Missed(text)

    @property
    def signs(self) -> bool:
        """Does a sign of life go with it?"""
        return self._alone is None


def _states_alone(
    service_id: str, states: Sequence[tuple[object, ...]], made_under: str
) -> tuple[str, list[object]]:
    ((text, values),) = in_statements("write_states_alone", states)
    return text, [*values, len(states), made_under, service_id]


def rooms(members: Sequence[Commit]) -> Iterator[tuple[int, str, str, int]]:
    """Of each member that puts reminders: its position, its grain, and how many that one may have already."""
    for index, member in enumerate(members):
        if member.reminders and is_bounded(member):
            room = member.reminders_max - len(member.reminders)
            yield index, member.grain_type, member.grain_key, room


def runs_of_distinct_grains(batch: Sequence[Commit]) -> Iterator[range]:
    """The positions of the batch cut before each member whose grain is already in the run."""
    grains = [(member.grain_type, member.grain_key) for member in batch]
    start = 0
    if len(set(grains)) < len(grains):
        seen: set[tuple[str, str]] = set()
        for index, grain in enumerate(grains):
            if grain in seen:
                yield range(start, index)
                start = index
                seen.clear()
            seen.add(grain)
    yield range(start, len(batch))
