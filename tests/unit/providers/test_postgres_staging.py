"""Which changes of a grain go together, and the order that must stay."""

from __future__ import annotations

from farro.providers.conformance.made import a_reminder
from farro.providers.postgres.staging import Staged, runs_of_distinct_grains, steps
from farro.providers.rows import (
    Commit,
    DeleteOperation,
    DeleteReminder,
    EditReminder,
    PutReminder,
    Watermark,
)


def _member(key: str, **fields: object) -> Commit:
    return Commit(3, 1, "shipments", key, **fields)  # type: ignore[arg-type]


def test_changes_of_different_names_go_in_one_step() -> None:
    changes = (PutReminder(a_reminder(name="a")), DeleteReminder("b"), EditReminder("c"))
    assert steps(changes) == [0, 0, 0]


def test_changes_of_one_name_keep_their_order() -> None:
    changes = (DeleteReminder("a"), DeleteReminder("b"), PutReminder(a_reminder(name="a")), EditReminder("a"))
    assert steps(changes) == [0, 0, 1, 2]


def test_deleting_an_operation_comes_after_everything_before_it_and_before_everything_after() -> None:
    changes = (
        PutReminder(a_reminder(name="a")),
        DeleteReminder("a"),
        DeleteOperation("x"),
        PutReminder(a_reminder(name="b")),
        DeleteOperation("y"),
    )
    assert steps(changes) == [0, 1, 2, 3, 4]


def test_a_grain_that_comes_twice_starts_a_new_run() -> None:
    batch = [_member(key) for key in "abacb"]
    assert list(runs_of_distinct_grains(range(5), batch)) == [[0, 1], [2, 3, 4]]
    assert list(runs_of_distinct_grains([], batch)) == []


def test_watermarks_out_of_order_have_no_first_position() -> None:
    staged = Staged()
    staged.add(
        _member("a", watermarks=(Watermark("s", 1), Watermark("t", 5), Watermark("s", 3))), bounded=True
    )
    staged.add(_member("b", watermarks=(Watermark("s", 2), Watermark("s", 2))), bounded=True)
    assert [(mark[0], *mark[3:]) for mark in staged.marks] == [
        (1, "s", 1, 3),
        (1, "t", 5, 5),
        (2, "s", None, 2),
    ]
