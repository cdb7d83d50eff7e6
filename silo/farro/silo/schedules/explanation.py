"""A cron expression in plain English."""

from __future__ import annotations

import re

from farro.silo.schedules.calendar import OR, Plan
from farro.silo.schedules.fields import COLUMNS, DAY, MONTH, WEEKDAY, Column

_MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_WEEKDAY_NAMES = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


def explain(plan: Plan, text: str, timezone: str, day_match: str) -> str:
    """Several lines: the text, each column, the day rule, the zone and what its clock changes do."""
    lines = [f"{text}   (time zone {timezone})", ""]
    for column, field in zip(COLUMNS, plan.fields, strict=True):
        lines.append(f"  {column.name:8} {_column_in_words(column, field.text)}")
    lines += ["", *_day_rule(plan, day_match), *_clock_changes(plan, timezone)]
    if plan.never is not None:
        lines += ["", f"NEVER FIRES: {plan.never}."]
    return "\n".join(lines)


def _day_rule(plan: Plan, day_match: str) -> list[str]:
    day, weekday = plan.fields[3].text, plan.fields[5].text
    if day in "*?" and weekday in "*?":
        return ["DAY RULE: every day of the allowed months; neither day field restricts anything."]
    if day in "*?" or weekday in "*?":
        restricting = "weekday" if day in "*?" else "day"
        return [f"DAY RULE: only the {restricting} field restricts the days."]
    if plan.either_day:
        return [
            'DAY RULE: EITHER day field may match (day_match="or", the rule of crontab(5)): '
            f"it fires on day {day} AND ALSO on weekday {weekday}."
        ]
    both = f"DAY RULE: BOTH day fields must match: it fires only on day {day} that is also weekday {weekday}."
    if day_match == OR:
        return [
            both,
            '  (day_match="or" changes nothing here: a day field that begins with * always joins.)',
        ]
    return [both, '  (day_match="and". crontab(5) would fire on either; day_match="or" asks for that.)']


def _clock_changes(plan: Plan, timezone: str) -> list[str]:
    if timezone == "UTC":
        return ["CLOCK CHANGES: none in UTC."]
    autumn = "runs through both passes (an interval: *, a range or a step in second, minute or hour)"
    return [
        "CLOCK CHANGES: a time that a spring change skips fires when the gap ends, several of them once;",
        "  an hour that an autumn change repeats "
        + (f"{autumn}." if plan.interval else "counts once, at its first pass (a fixed time)."),
    ]


def _column_in_words(column: Column, text: str) -> str:
    return ", ".join(_element_in_words(column, element) for element in text.split(","))


def _element_in_words(column: Column, element: str) -> str:
    if element in "*?":
        return f"every {column.name}"
    if column is DAY and ("L" in element or "W" in element):
        return _special_day(element)
    if column is WEEKDAY and "#" in element:
        weekday, _, nth = element.partition("#")
        return f"the {_ORDINALS[int(nth) - 1]} {_value_in_words(column, weekday)} of the month"
    if column is WEEKDAY and element.endswith("L"):
        return f"the last {_value_in_words(column, element[:-1])} of the month"
    span, _, step = element.partition("/")
    low, _, high = span.partition("-")
    if span == "*":
        words = f"from {_value_in_words(column, str(column.low))}"
    elif high:
        words = f"{_value_in_words(column, low)} to {_value_in_words(column, high)}"
    else:
        words = f"from {_value_in_words(column, low)}" if step else _value_in_words(column, low)
    return f"{words} in steps of {int(step)}" if step else words


def _special_day(element: str) -> str:
    weekday = "the weekday (Monday to Friday) nearest to " if element.endswith("W") else ""
    match = re.fullmatch(r"(?:L(?:-([0-9]+))?|([0-9]+))W?", element)
    if match is None:
        return element
    back, day = match.groups()
    if day:
        return f"{weekday}day {int(day)}, within the month"
    before = f"{int(back)} before the last day of the month" if back else "the last day of the month"
    return f"{weekday}{before}"


def _value_in_words(column: Column, word: str) -> str:
    if column is MONTH:
        return _MONTH_NAMES[int(word) - 1 if word.isdigit() else column.names.index(word)]
    if column is WEEKDAY:
        return _WEEKDAY_NAMES[int(word) if word.isdigit() else column.names.index(word)]
    return str(int(word))
