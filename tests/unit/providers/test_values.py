"""Row values: at run time they are no frozen dataclasses, and all else of a dataclass holds."""

import copy
import pickle
from dataclasses import asdict, fields, replace

import pytest

from farro.providers.conformance.made import a_reminder
from farro.providers.rows import Commit, Outcome, PutReminder, ReminderRow, Verdict


def test_a_value_is_equal_hashed_and_shown_by_its_fields() -> None:
    row, same, other = a_reminder(), a_reminder(), a_reminder(name="other")
    assert row == same != other
    assert hash(row) == hash(same)
    assert {row, same, other} == {row, other}
    assert repr(Verdict(Outcome.COMMITTED, 3)) == (
        "Verdict(outcome=<Outcome.COMMITTED: 0>, version=3, settled=False, kept=(), reason='', answer=None)"
    )


def test_a_value_is_replaced_copied_pickled_and_listed() -> None:
    row = a_reminder()
    assert replace(row, name="x") == a_reminder(name="x")
    member = Commit(1, 2, "t", "k", reminders=(PutReminder(row),))
    for again in (pickle.loads(pickle.dumps(member)), copy.copy(member), copy.deepcopy(member)):
        assert again == member
    assert list(asdict(row)) == [field.name for field in fields(ReminderRow)]


def test_a_value_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        a_reminder().nmae = "typo"  # type: ignore[attr-defined]
