"""A brute-force cron: every second or minute is asked whether it matches.

Independent of the code under test: texts are *made* together with the sets they stand for, never parsed, and
zones are walked instant by instant.  Weekdays are 0 (Sunday) to 6.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

DayTest = Callable[[date], bool]


@dataclass(frozen=True)
class Column:
    """A generated field: its text, the numbers it stands for, and whether it is written as an interval."""

    text: str
    values: frozenset[int]
    repeats: bool


@dataclass(frozen=True)
class Days:
    """A generated day field: its text and which dates it allows."""

    text: str
    allows: DayTest


@dataclass(frozen=True)
class Expression:
    second: Column
    minute: Column
    hour: Column
    day: Days
    month: Column
    weekday: Days
    day_match: str

    @property
    def text(self) -> str:
        columns = (self.second, self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join(column.text for column in columns)

    @property
    def interval(self) -> bool:
        return self.second.repeats or self.minute.repeats or self.hour.repeats

    def allows_date(self, on: date) -> bool:
        if on.month not in self.month.values:
            return False
        starred = self.day.text[0] in "*?" or self.weekday.text[0] in "*?"
        if self.day_match == "or" and not starred:
            return self.day.allows(on) or self.weekday.allows(on)
        return self.day.allows(on) and self.weekday.allows(on)

    def matches(self, wall: datetime) -> bool:
        return (
            wall.second in self.second.values
            and wall.minute in self.minute.values
            and wall.hour in self.hour.values
            and self.allows_date(wall.date())
        )


def walk(first: int, last: int, step: int, low: int, high: int) -> frozenset[int]:
    """The values of first-last/step, walking up and wrapping from high to low."""
    found, value, steps = set(), first, 0
    while True:
        if steps % step == 0:
            found.add(value)
        if value == last:
            return frozenset(found)
        value = low if value == high else value + 1
        steps += 1


@st.composite
def elements(draw: st.DrawFn, low: int, high: int, names: tuple[str, ...] = ()) -> Column:
    """One list element of a field whose values run from low to high."""

    def spelled(value: int) -> str:
        spellings = [str(value), f"{value:02}"]
        if names:
            name = names[value - low]
            spellings += [name, name.lower(), name.title()]
        return draw(st.sampled_from(spellings))

    size = high - low + 1
    first, last = draw(st.integers(low, high)), draw(st.integers(low, high))
    step: int | None = draw(st.one_of(st.none(), st.integers(1, size)))
    tail = "" if step is None else f"/{step}"
    form: str = draw(st.sampled_from(["star", "value", "value", "range"]))
    if form == "star":
        return Column(f"*{tail}", walk(low, high, step or 1, low, high), True)
    if form == "range":
        return Column(
            f"{spelled(first)}-{spelled(last)}{tail}", walk(first, last, step or 1, low, high), True
        )
    until = first if step is None else high
    return Column(f"{spelled(first)}{tail}", walk(first, until, step or 1, low, high), step is not None)


def columns(low: int, high: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[Column]:
    def joined(parts: list[Column]) -> Column:
        return Column(
            ",".join(part.text for part in parts),
            frozenset().union(*(part.values for part in parts)),
            any(part.repeats for part in parts),
        )

    return st.lists(elements(low, high, names), min_size=1, max_size=3).map(joined)


def weekday_number(on: date) -> int:
    return on.isoweekday() % 7


def length(on: date) -> int:
    return monthrange(on.year, on.month)[1]


def nearest(on: date, target: int) -> bool:
    """Whether ``on`` is the weekday nearest to day ``target`` of its month, without leaving the month."""
    if not 1 <= target <= length(on) or weekday_number(on) in (0, 6):
        return False
    workdays = [day for day in range(1, length(on) + 1) if weekday_number(on.replace(day=day)) not in (0, 6)]
    distance = min(abs(day - target) for day in workdays)
    return abs(on.day - target) == distance


def _listed(parts: list[Days]) -> Days:
    return Days(",".join(part.text for part in parts), lambda on: any(part.allows(on) for part in parts))


def day_fields() -> st.SearchStrategy[Days]:
    plain = elements(1, 31).map(lambda c: Days(c.text, lambda on: on.day in c.values))
    last = st.integers(0, 30).map(
        lambda back: Days(f"L-{back}" if back else "L", lambda on: on.day == length(on) - back)
    )
    near = st.integers(1, 31).map(lambda day: Days(f"{day}W", lambda on: nearest(on, day)))
    near_last = st.integers(0, 30).map(
        lambda back: Days(f"L-{back}W" if back else "lw", lambda on: nearest(on, length(on) - back))
    )
    lists = st.lists(st.one_of(plain, last), min_size=1, max_size=3).map(_listed)
    return st.one_of(st.just(Days("?", lambda on: True)), lists, near, near_last)


NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def weekday_fields() -> st.SearchStrategy[Days]:
    plain = elements(0, 6, NAMES).map(_weekday_element)
    last = st.integers(0, 7).map(
        lambda n: Days(f"{n}L", lambda on: weekday_number(on) == n % 7 and on.day + 7 > length(on))
    )
    nth = st.tuples(st.sampled_from(NAMES), st.integers(1, 5)).map(
        lambda pair: Days(
            f"{pair[0]}#{pair[1]}",
            lambda on: weekday_number(on) == NAMES.index(pair[0]) and (on.day + 6) // 7 == pair[1],
        )
    )
    lists = st.lists(st.one_of(plain, plain, last, nth), min_size=1, max_size=3).map(_listed)
    return st.one_of(st.just(Days("?", lambda on: True)), st.just(Days("*", lambda on: True)), lists)


def _weekday_element(column: Column) -> Days:
    # a/n runs to 7, which is Sunday again: one more value when the steps land on it
    values = set(column.values)
    span, _, step = column.text.partition("/")
    if step and "-" not in span and span != "*" and (7 - min(values)) % int(step) == 0:
        values.add(0)
    return Days(column.text, lambda on: weekday_number(on) in values)


MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


def expressions() -> st.SearchStrategy[Expression]:
    return st.builds(
        Expression,
        columns(0, 59),
        columns(0, 59),
        columns(0, 23),
        day_fields(),
        columns(1, 12, MONTHS),
        weekday_fields(),
        st.sampled_from(("and", "or")),
    )


def due_instants(expression: Expression, zone: ZoneInfo, begin: int, end: int, step: int) -> list[int]:
    """Every due instant in (begin, end], by looking at each ``step``-th second.

    ``step`` must divide the walls' granularity: 60 needs second 0 only and offsets of whole minutes.
    """
    found = []
    offset = _offset(zone, begin)
    for instant in range(begin + step, end + 1, step):
        local = datetime.fromtimestamp(instant, zone)
        wall = local.replace(tzinfo=None, fold=0)
        before, offset = offset, _offset(zone, instant)
        due = expression.matches(wall) and (local.fold == 0 or expression.interval)
        skipped = range(before, offset, step)  # empty unless a gap ends here
        gap = (wall - timedelta(seconds=offset - lost) for lost in skipped)
        if due or any(expression.matches(lost) for lost in gap):
            found.append(instant)
    return found


def switches(zone: ZoneInfo, first_year: int, last_year: int) -> list[int]:
    """Every instant at which the zone's offset changes, by probing days and then seconds."""
    found = []
    day = int(datetime(first_year, 1, 1, tzinfo=UTC).timestamp())
    end = int(datetime(last_year, 12, 31, tzinfo=UTC).timestamp())
    while day < end:
        if _offset(zone, day) != _offset(zone, day + 86_400):
            low, high = day, day + 86_400
            while high - low > 1:
                middle = (low + high) // 2
                if _offset(zone, middle) == _offset(zone, low):
                    low = middle
                else:
                    high = middle
            found.append(high)
        day += 86_400
    return found


def _offset(zone: ZoneInfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())
