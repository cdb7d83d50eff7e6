"""Cron text → fields: what each of the six columns allows, checked before anything is expanded.

croniter does not expand the fields: it reads ``5-5`` as every minute, ``*/70`` as minute 0, ``6/1`` as
Saturday alone, wrapped steps one off, clamps ``31W`` into short months, draws ``R`` at random and knows no
``L-n`` or ``LW``.  Each of these has to be recognised and checked first, and once an element is recognised
its expansion is one ``range``.  The tests hold this file against croniter wherever both read one language.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from farro.client.errors import InvalidSchedule

TEXT_CHARACTERS_MAX = 200  # the longest real line seen has 47; checked before anything else looks at the text

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

MACROS = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}

_ELEMENT = re.compile(
    r"(?:(?P<star>\*)|(?P<low>[0-9]+|[A-Z]{3})(?:-(?P<high>[0-9]+|[A-Z]{3}))?)(?:/(?P<step>[0-9]+))?"
)
_LAST_DAY = re.compile(r"L(?:-(?P<back>[0-9]+))?(?P<near>W)?")
_NEAR_DAY = re.compile(r"(?P<day>[0-9]+)W")
_LAST_WEEKDAY = re.compile(r"(?P<day>[0-9]+|[A-Z]{3})L")
_NTH_WEEKDAY = re.compile(r"(?P<day>[0-9]+|[A-Z]{3})#(?P<nth>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Column:
    """One of the six positions: its name, what it may hold, and how many values its cycle has."""

    name: str
    low: int
    high: int
    cycle: int
    names: tuple[str, ...] = ()
    unit: str = ""


SECOND = Column("second", 0, 59, 60, unit="seconds")
MINUTE = Column("minute", 0, 59, 60, unit="minutes")
HOUR = Column("hour", 0, 23, 24, unit="hours")
DAY = Column("day", 1, 31, 31, unit="days")
MONTH = Column("month", 1, 12, 12, MONTHS, unit="months")
WEEKDAY = Column("weekday", 0, 7, 7, WEEKDAYS, unit="days")  # 7 is Sunday again
COLUMNS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True)
class Field:
    """What one column allows.  ``values`` is ascending, without doubles, weekdays with 0 for Sunday.

    The other sets hold what depends on the month: ``from_end`` days before the last one (``L``, ``L-3``),
    ``near`` (``15W``) and ``near_end`` (``LW``, ``L-3W``) a weekday close to a day, ``nth`` (weekday, n) and
    ``last`` (weekday) for ``FRI#3`` and ``FRIL``.
    """

    text: str
    values: tuple[int, ...]
    from_end: tuple[int, ...] = ()
    near: tuple[int, ...] = ()
    near_end: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()
    last: tuple[int, ...] = ()

    @property
    def begins_with_star(self) -> bool:
        """crontab(5)'s test for an unrestricted day field."""
        return self.text[0] in "*?"

    @property
    def repeats(self) -> bool:
        """Written with ``*``, a range or a step: in a time column this makes an interval expression."""
        return any(mark in self.text for mark in "*-/")


@dataclass(slots=True)
class _Found:
    values: set[int] = field(default_factory=set)
    from_end: set[int] = field(default_factory=set)
    near: set[int] = field(default_factory=set)
    near_end: set[int] = field(default_factory=set)
    nth: set[tuple[int, int]] = field(default_factory=set)
    last: set[int] = field(default_factory=set)


def normal_text(text: str) -> str:
    """``text`` with single spaces; refuses what is too long, empty, or holds other blanks or characters.

    Raises ``TypeError`` for what is no ``str``, else :class:`InvalidSchedule`.
    """
    if not isinstance(text, str):
        raise TypeError(f"a cron text must be str, not {type(text).__name__}")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidSchedule(
            f"cron text: {len(text)} characters is too long; at most {TEXT_CHARACTERS_MAX} are allowed"
        )
    for character in text:
        if character != "\t" and not " " <= character <= "~":
            kind = "control" if ord(character) < 32 or ord(character) == 127 else "non-ASCII"
            raise InvalidSchedule(
                f"cron text {text!a}: {kind} character {character!a} is not allowed{_place(text, character)};"
                " only space and tab separate fields, and only ASCII digits and letters fill them"
            )
    words = text.split()
    if not words:
        raise InvalidSchedule(
            "cron text: it is empty; write six fields: second minute hour day month weekday"
        )
    return " ".join(words)


def _place(text: str, character: str) -> str:
    """The field a stray character stands in, when the text has a known number of fields."""
    if character.isspace():
        return ""
    columns = {5: COLUMNS[1:], 6: COLUMNS}.get(len(text.split(" ")), ())
    for column, word in zip(columns, text.split(" "), strict=False):
        if character in word:
            return f" in the {column.name} field"
    return ""


def parse_fields(text: str) -> tuple[Field, ...]:
    """The six fields of a normal text (:func:`normal_text`).  Raises :class:`InvalidSchedule`."""
    words = _expanded(text)
    return tuple(
        _parse_field(text, column, word.upper()) for column, word in zip(COLUMNS, words, strict=True)
    )


def _expanded(text: str) -> Sequence[str]:
    """Six words: macros written out, a second of 0 put before five."""
    words = text.split()
    if text.startswith("@"):
        macro = MACROS.get(text.lower())
        if macro is None:
            _refuse_macro(text)
        return macro.split()
    if "=" in words[0]:
        raise InvalidSchedule(
            f"cron text {text!r}: a time zone is not part of the text; give it as timezone='Europe/Berlin'"
        )
    if len(words) == 5:
        return ["0", *words]
    if len(words) != 6:
        hint = "; there is no year field" if len(words) == 7 else ""
        raise InvalidSchedule(
            f"cron text {text!r}: {len(words)} fields found, 6 wanted (second minute hour day month weekday),"
            f" or 5 (minute hour day month weekday){hint}"
        )
    return words


def _refuse_macro(text: str) -> NoReturn:
    known = " ".join(MACROS)
    if text.lower().startswith("@every"):
        way_out = "for a fixed interval schedule with every=timedelta(…) instead of cron"
    elif text.lower() == "@reboot":
        way_out = "there is no boot of a grain; use on_activate for work at its start"
    else:
        way_out = "a macro stands alone"
    raise InvalidSchedule(f"cron text {text!r}: not a known macro ({known}); {way_out}")


def _parse_field(text: str, column: Column, word: str) -> Field:
    found = _Found()
    elements = word.split(",")
    try:
        for element in elements:
            _parse_element(column, element, found, alone=len(elements) == 1)
    except ValueError as error:
        raise InvalidSchedule(f"cron text {text!r}: {column.name}: {error}") from None
    return Field(
        word,
        tuple(sorted(found.values)),
        tuple(sorted(found.from_end)),
        tuple(sorted(found.near)),
        tuple(sorted(found.near_end)),
        tuple(sorted(found.nth)),
        tuple(sorted(found.last)),
    )


def _parse_element(column: Column, element: str, found: _Found, *, alone: bool) -> None:
    if not element:
        raise ValueError("an empty element; every comma needs a value on both sides")
    if element == "?":
        _check_question_mark(column, alone)
        found.values.update(_cycle_values(column))
    elif column is DAY and (match := _LAST_DAY.fullmatch(element)):
        back = int(match["back"] or 0)
        if back > 30:
            raise ValueError(f"{element}: {back} days before the last is not in 0..30")
        if match["near"]:
            _check_near(element, alone)
            found.near_end.add(back)
        else:
            found.from_end.add(back)
    elif column is DAY and (match := _NEAR_DAY.fullmatch(element)):
        _check_near(element, alone)
        found.near.add(_value(column, match["day"]))
    elif column is WEEKDAY and (match := _LAST_WEEKDAY.fullmatch(element)):
        found.last.add(_value(column, match["day"]) % 7)
    elif column is WEEKDAY and (match := _NTH_WEEKDAY.fullmatch(element)):
        nth = int(match["nth"])
        if not 1 <= nth <= 5:
            raise ValueError(f"{element}: a month has no weekday number {nth}; # takes 1..5")
        found.nth.add((_value(column, match["day"]) % 7, nth))
    elif match := _ELEMENT.fullmatch(element):
        found.values.update(_plain_values(column, match))
    else:
        raise ValueError(_what_is_wrong(column, element))


def _check_question_mark(column: Column, alone: bool) -> None:
    if column not in (DAY, WEEKDAY):
        raise ValueError("? is only for the day and weekday fields; write *")
    if not alone:
        raise ValueError("? stands alone in its field")


def _check_near(element: str, alone: bool) -> None:
    if not alone:
        raise ValueError(f"{element}: W takes a single day, not a list; schedule the other days apart")


def _plain_values(column: Column, match: re.Match[str]) -> set[int]:
    """The values of ``*``, ``n``, ``a-b`` and each with ``/step``; ranges run upwards and may wrap."""
    step = 1
    if match["step"] is not None:
        step = int(match["step"])
        _check_step(column, step)
    if match["star"]:
        low, high = column.low, column.high
    else:
        low = _value(column, match["low"])
        if match["high"] is not None:
            high = _value(column, match["high"])
        else:
            high = low if match["step"] is None else column.high
    if low > high:  # a wrapped range: 22-2, FRI-MON, and 7-2, which starts on the second Sunday
        high += column.cycle
    return {(value - column.low) % column.cycle + column.low for value in range(low, high + 1, step)}


def _cycle_values(column: Column) -> range:
    return range(column.low, column.low + column.cycle)


def _check_step(column: Column, step: int) -> None:
    if step == 0:
        raise ValueError("a step of 0 never moves on; the smallest step is 1")
    if step > column.cycle:
        advice = "write the values out"
        if column in (SECOND, MINUTE, HOUR, DAY):
            advice = f"for every {step} {column.unit} schedule with every=timedelta({column.unit}={step})"
        raise ValueError(
            f"step {step} is larger than the {column.cycle} {column.unit} of the field; {advice}"
        )


def _value(column: Column, word: str) -> int:
    if word.isdigit():
        value = int(word)
        if not column.low <= value <= column.high:
            raise ValueError(f"{value} is not in {column.low}..{column.high}")
        return value
    if word in column.names:
        return column.names.index(word) + (1 if column is MONTH else 0)
    known = f"the names are {' '.join(column.names)}" if column.names else "this field takes numbers only"
    raise ValueError(f"{word} is not a name here; {known}")


def _what_is_wrong(column: Column, element: str) -> str:
    if element == "L" and column is WEEKDAY:
        return "L needs a weekday here, e.g. FRIL for the last Friday of the month"
    if re.fullmatch(r"[HR](\(.*\))?(/[0-9]+)?", element):
        return f"{element}: hashed (H) and random (R) values are not taken; spread load with jitter= instead"
    if "W" in element and column is DAY:
        return f"{element}: W goes behind one day or L: 15W, LW, L-3W"
    if "L" in element and column is DAY:
        return f"{element}: L stands for the last day: L, L-3, LW, L-3W"
    if "#" in element and column is WEEKDAY:
        return f"{element}: # goes between a weekday and 1..5: FRI#3"
    if element.startswith("-") or "/-" in element or "--" in element:
        return f"{element!r} is not understood; numbers have no sign"
    return f"{element!r} is not understood; write *, a number, a range a-b, a step a-b/n, or a list of these"
