"""SQLite and memory, driven by the same random history, answer the same."""

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from farro.providers.conformance.made import NOW, a_reminder
from farro.providers.contracts import Provider
from farro.providers.members import SiloStatus
from farro.providers.memory import MemoryProvider
from farro.providers.rows import (
    Commit,
    DeleteOperation,
    DeleteReminder,
    EditReminder,
    EventRow,
    GrainWrite,
    OutboxRow,
    PollQuery,
    Progress,
    PutMode,
    PutReminder,
    ReminderFilter,
    RequestRow,
    Settle,
    Watermark,
)
from farro.providers.sqlite.store import SqliteProvider

Result = TypeVar("Result")

KEYS = ["a", "b", "c"]
NAMES = ["x", "x:1", "y"]
PARTITIONS = {"a": 1, "b": 2, "c": 1}
SMALL = st.integers(0, 3)
REQUESTS = ["r", "s", "t"]
STATUSES = st.sampled_from(["scheduled", "paused", "failed"])


def instants() -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(NOW - 2, NOW + 2)


def instants_near() -> st.SearchStrategy[int]:
    return st.integers(NOW - 2, NOW + 2)


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    return Progress(
        next_due_at=draw(instants()),
        wake_at=draw(instants()),
        last_fire_at=draw(instants()),
        occurrence=draw(SMALL),
        attempts=draw(SMALL),
        status=draw(STATUSES),
        note=draw(st.sampled_from([None, "n", "\x00"])),
    )


@st.composite
def changes(draw: st.DrawFn, key: str) -> Any:
    name = draw(st.sampled_from(NAMES))
    kind = draw(st.sampled_from(["put", "put", "put", "delete", "operation", "edit"]))
    if kind == "delete":
        return DeleteReminder(name)
    if kind == "operation":
        return DeleteOperation(name.partition(":")[0])
    if kind == "edit":
        return EditReminder(name, draw(st.none() | SMALL), draw(st.none() | SMALL))
    row = a_reminder(
        key,
        name,
        partition=PARTITIONS[key],
        operation=name.partition(":")[0],
        cron=draw(st.sampled_from([None, "0 0 9 * * *", "0 0 8 * * *"])),
        next_due_at=draw(instants()),
        wake_at=draw(instants()),
        priority=draw(st.sampled_from([0, 1, 2, 99])),
        registration=draw(SMALL),
        occurrence=draw(SMALL),
        status=draw(STATUSES),
    )
    return PutReminder(row, draw(st.sampled_from(list(PutMode))))


@st.composite
def members(draw: st.DrawFn) -> Commit:
    key = draw(st.sampled_from(KEYS))
    destroy = draw(st.integers(0, 9)) == 0
    return Commit(
        partition=PARTITIONS[key],
        epoch=draw(st.sampled_from([0, 0, 0, 0, -1])),  # relative: see commit
        grain_type="shipments",
        grain_key=key,
        grain=draw(
            st.none()
            | st.builds(
                GrainWrite,
                expected_version=st.sampled_from([0, 0, 0, 1]),  # relative: see commit
                writes_state=st.booleans(),
                state=st.sampled_from([None, b"", b"s"]),
                layout=SMALL,
                destroy=st.just(destroy),
            )
        ),
        settle=draw(
            st.none()
            | st.builds(
                Settle,
                name=st.sampled_from(NAMES),
                registration=SMALL,
                occurrence=SMALL,
                progress=st.none() | progresses(),
                by_operator=st.booleans(),
            )
        ),
        reminders=tuple(draw(st.lists(changes(key), max_size=0 if destroy else 4))),
        events=tuple(
            draw(
                st.lists(st.builds(EventRow, st.sampled_from("st"), st.just(b"e"), st.just(NOW)), max_size=2)
            )
        ),
        outbox=tuple(draw(st.lists(st.just(OutboxRow("t", "k", "m", b"", NOW)), max_size=1))),
        watermarks=tuple(draw(st.lists(st.builds(Watermark, st.sampled_from("pq"), SMALL), max_size=2))),
        reminders_max=draw(st.sampled_from([0, 0, 2])),
        request=draw(
            st.none()
            | st.builds(RequestRow, st.sampled_from(REQUESTS), st.binary(max_size=1), instants_near())
        ),
    )


class SqliteLikeMemory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.stores: list[Provider] = [
            SqliteProvider(Path(self.folder.name) / "farro.db", synchronous="normal"),
            MemoryProvider(),
        ]
        self.number = 0
        self.epochs = {1: 1, 2: 1}

    def run(self, action: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(action)

    def same(self, answers: list[Any]) -> None:
        assert answers[0] == answers[1]

    @initialize()
    def join(self) -> None:
        for store in self.stores:
            self.run(store.open(NOW))
            self.number = self.run(store.join("a", NOW)).number
            self.run(store.take(self.number, [1, 2], NOW))

    @rule(batch=st.lists(members(), min_size=1, max_size=6), now=st.integers(NOW, NOW + 9))
    def commit(self, batch: list[Commit], now: int) -> None:
        """Most members name the epoch and version that stand before the batch, so that most commit."""
        rows = self.run(self.stores[1].load([("shipments", key) for key in KEYS]))
        versions = {key: row.version if row else 0 for key, row in zip(KEYS, rows, strict=True)}
        for index, member in enumerate(batch):
            write = member.grain
            if write is not None:
                standing = versions[member.grain_key]
                write = replace(write, expected_version=standing + write.expected_version)
            epoch = self.epochs[member.partition] + member.epoch
            batch[index] = replace(member, epoch=epoch, grain=write)
        self.same([self.run(store.commit(batch, self.number, now)) for store in self.stores])

    @rule(partition=st.sampled_from([1, 2]))
    def take(self, partition: int) -> None:
        self.epochs[partition] += 1
        self.same([self.run(store.take(self.number, [partition], NOW)) for store in self.stores])

    @rule(partition=st.sampled_from([1, 2]), behind=st.sampled_from([0, 0, 1]))
    def take_by_epoch(self, partition: int, behind: int) -> None:
        expected = self.epochs[partition] - behind
        self.epochs[partition] += not behind
        self.same([self.run(store.take(self.number, [partition], NOW, [expected])) for store in self.stores])

    @rule(partitions=st.lists(st.integers(1, 3), max_size=2), now=st.integers(NOW, NOW + 9))
    def release(self, partitions: list[int], now: int) -> None:
        for store in self.stores:
            self.run(store.release(self.number, partitions, now))

    @rule(now=st.integers(NOW, NOW + 9), load=SMALL)
    def renew(self, now: int, load: int) -> None:
        self.same([self.run(store.renew(self.number, now, load)) for store in self.stores])

    @rule(renewals=SMALL, marks=st.booleans())
    def another_comes_and_ends(self, renewals: int, marks: bool) -> None:
        """With a number of partitions that it takes from nobody."""
        for store in self.stores:
            silo = self.run(store.join("b", NOW))
            self.run(store.take(silo.number, [3, 4], NOW, [0, 0]))
            for _ in range(renewals):
                self.run(store.renew(silo.number, NOW))
            if marks:
                self.run(store.mark_dead(silo.number, 2, NOW + 1))
            self.run(store.set_status(silo.number, SiloStatus.ACTIVE, NOW + 2))
            if not marks:
                self.run(store.leave(silo.number, NOW + 3))

    @rule(before=instants_near())
    def forget(self, before: int) -> None:
        self.same([self.run(store.forget_requests(before, 100)) for store in self.stores])

    @rule(until=st.integers(0, 5))
    def trim(self, until: int) -> None:
        self.same([self.run(store.trim_events("s", 1, until)) for store in self.stores])

    @rule()
    def reopen(self) -> None:
        for store in self.stores:
            self.run(store.close())
            self.run(store.open(NOW))

    @invariant()
    def answers_are_the_same(self) -> None:
        if not self.number:
            return
        queries = [
            PollQuery(p, NOW, 3, partitions) for p in (0, 1, 99) for partitions in (None, frozenset({1}))
        ]
        answers: list[list[Any]] = []
        for store in self.stores:
            answers.append(
                [
                    self.run(store.load([("shipments", key) for key in KEYS])),
                    self.run(store.poll(queries)),
                    self.run(store.list_reminders(ReminderFilter(), 100)),
                    self.run(store.count_reminders(ReminderFilter())),
                    self.run(store.unpollable(100)),
                    [self.run(store.watermarks("shipments", key)) for key in KEYS],
                    [self.run(store.events(partition, "s", 0, 100)) for partition in (1, 2)],
                    [self.run(store.outbox(partition, 0, 100)) for partition in (1, 2)],
                    self.run(store.stream_heads("s")),
                    self.run(store.cluster()),
                    [
                        self.run(store.answer_to("shipments", key, request))
                        for key in KEYS
                        for request in REQUESTS
                    ],
                ]
            )
        self.same(answers)

    def teardown(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.loop.close()
        self.folder.cleanup()


# (hypothesis traces what it runs, and Python 3.13 pays more for that)
TestSqliteLikeMemory = pytest.mark.timeout(240)(SqliteLikeMemory.TestCase)
TestSqliteLikeMemory.settings = settings(
    max_examples=25,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
