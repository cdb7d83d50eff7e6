import sys
from typing import Any

import pytest

from farro.providers.checks import is_duplicate, is_storable, rejections, too_many
from farro.providers.conformance.made import NOW, PARTITION, a_reminder, writing
from farro.providers.rows import (
    Commit,
    DeleteReminder,
    EditReminder,
    EventRow,
    OutboxRow,
    Progress,
    PutReminder,
    Settle,
    Watermark,
)

BYTEARRAY: Any = bytearray()


def member(**fields: Any) -> Commit:
    whole: dict[str, Any] = {
        "partition": PARTITION, "epoch": 1, "grain_type": "shipments", "grain_key": "k",
    }  # fmt: skip
    return Commit(**(whole | fields))


def test_a_member_with_everything_in_it_is_fine() -> None:
    full = member(
        grain=writing(0),
        settle=Settle("chase", 1, 1, Progress(None, None, None, 2)),
        reminders=(PutReminder(a_reminder()), DeleteReminder("x"), EditReminder("y", priority=0)),
        events=(EventRow("s", b"", NOW),),
        outbox=(OutboxRow("t", "k", "m", b"", NOW),),
        watermarks=(Watermark("s", -1),),
        reminders_max=1000,
    )
    assert rejections([full, full]) == ["", ""]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"epoch": True}, "Commit.epoch must be int, not bool"),
        ({"epoch": 1.0}, "Commit.epoch must be int, not float"),
        ({"grain_key": "a\x00b"}, "Commit.grain_key has a NUL or a lone surrogate: 'a\\x00b'"),
        ({"grain": writing(2**63)}, "GrainWrite.expected_version does not fit in 64 bits"),
        ({"grain": writing(0, "text")}, "GrainWrite.state must be bytes or None, not str"),  # type: ignore[arg-type]
        ({"settle": Settle("\ud83d", 1, 1, None)}, "Settle.name has a NUL or a lone surrogate"),
        (
            {"settle": Settle("a", 1, 1, Progress(None, -(2**63) - 1, None, 1))},
            "Progress.wake_at does not fit in 64 bits",
        ),
        ({"reminders": (PutReminder(a_reminder(note=5)),)}, "ReminderRow.note must be str or None, not int"),
        ({"reminders": ("delete",)}, "a commit cannot hold a str"),
        ({"events": (EventRow("s", BYTEARRAY, 1),)}, "EventRow.payload must be bytes, not bytearray"),
        ({"watermarks": (Watermark("\x00", 1),)}, "Watermark.source has a NUL"),
    ],
)
def test_what_no_store_keeps_is_named_by_row_and_field(fields: dict[str, Any], says: str) -> None:
    # the second time the types have been seen: the answer is the same
    assert [says in reason for reason in rejections([member(**fields), member()])] == [True, False]


def test_a_type_once_seen_good_does_not_hide_a_bad_value_of_that_type() -> None:
    assert rejections([member(epoch=1)]) == [""]
    assert rejections([member(epoch=2**64)]) != [""]


@pytest.mark.parametrize("text", ["", "a", "ä", "😀", "\ud800", "a\x00", "\udfff\ud800"])
def test_text_is_storable_when_it_has_a_utf_8_form_and_no_nul(text: str) -> None:
    assert is_storable(text) == ("\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text))


def test_watermarks_of_one_member_rise_among_themselves() -> None:
    def found(*positions: int, stored: int | None = None) -> bool:
        marks = tuple(Watermark("s", position) for position in positions)
        return is_duplicate(member(watermarks=marks), {} if stored is None else {"s": stored})

    assert not found(-sys.maxsize)
    assert not found(1, 2, stored=0)
    assert found(2, 1)
    assert found(1, 1)
    assert found(5, stored=5)
    assert not found(6, stored=5)


def test_a_settle_that_moves_makes_no_room() -> None:
    put = PutReminder(a_reminder(name="new"))
    held = {"chase": "chase"}
    for progress, allowed in ((None, True), (Progress(None, None, None, 2), False)):
        asked = member(settle=Settle("chase", 1, 1, progress), reminders=(put,), reminders_max=1)
        assert (too_many(asked, True, held) == "") == allowed
        assert too_many(asked, False, held) != ""
