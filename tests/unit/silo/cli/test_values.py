"""JSON in and out of the shell, and lines that cannot be forged."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import click
import pytest

from farro.silo.cli.call import read_json
from farro.silo.cli.failing import one_line
from farro.silo.cli.jsonable import jsonable
from farro.silo.cli.log_lines import JsonLine, TextLine


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**80, 2**80),
        (float("inf"), "inf"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01T00:00:00+00:00"),
        (date(2026, 3, 1), "2026-03-01"),
        (timedelta(minutes=1), 60.0),
        (b"\x00\xff", "AP8="),
        ((1, {2}), [1, [2]]),
        ({1: Colour.RED}, {"1": "red"}),
    ],
)
def test_every_value_that_grains_exchange_has_a_json_form(value: object, shown: object) -> None:
    assert json.loads(json.dumps(jsonable(value))) == shown


@pytest.mark.parametrize("text", ["5", "-5", "null", '"a"', '{"a": [1, 2.5]}', "12345678901234567890123"])
def test_json_arguments_are_read_as_they_stand(text: str) -> None:
    assert read_json(text, 1) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "argument 3, hello, is not JSON; if it is a text, write '\"hello\"'"),
        ("NaN", "NaN is not a JSON value"),
        ('{"a": 1, "a": 2}', "key twice"),
        ("[" * 100_000, "nested too deeply"),
        ("", "is not JSON"),
        ("\x1b[2J", "is not JSON"),
        ("--nope", "no such option: --nope"),
    ],
)
def test_what_is_not_json_is_refused_with_the_way_out(text: str, says: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        read_json(text, 3)
    assert raised.value.exit_code == 2
    assert says in raised.value.message and raised.value.message.isprintable()


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert one_line("a\nERROR b\x1b[31m\u202e") == "a\\nERROR b\\x1b[31m\\u202e"
    assert one_line("Grüße, 世界") == "Grüße, 世界"


def record() -> logging.LogRecord:
    try:
        raise ValueError("first\nERROR second")
    except ValueError:
        made = logging.LogRecord("farro.x", logging.WARNING, "f.py", 1, "k=%s", ("a\nb",), sys.exc_info())
    made.created = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    made.grain = "counters/a"
    return made


def test_a_log_record_is_one_line_and_its_traceback_is_indented() -> None:
    line, *trace = TextLine().format(record()).splitlines()
    assert line == "2026-03-01T00:00:00.000Z WARNING farro.x: k=a\\nb [grain=counters/a]"
    assert trace and all(each.startswith("    ") for each in trace)


def test_a_json_log_record_is_one_object_a_line() -> None:
    text = JsonLine().format(record())
    assert "\n" not in text
    found = json.loads(text)
    assert (found["at"], found["level"], found["text"]) == ("2026-03-01T00:00:00.000Z", "warning", "k=a\nb")
    assert found["grain"] == "counters/a" and "ValueError" in found["traceback"]
