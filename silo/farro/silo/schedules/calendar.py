"""Six fields on the wall calendar: which local seconds match, found by stepping over months.

A *wall second* is a count of seconds from 1970-01-01T00:00:00 as a clock on the wall shows it, without any
time zone: plain integers, negative before 1970.  The calendar is the proleptic Gregorian one of ``datetime``,
years 1 to 9999.  :mod:`farro.silo.schedules.zones` lays walls onto instants.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import date
from functools import lru_cache

from farro.silo.schedules.fields import Field, parse_fields

DAY_S = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST_DAY = date.min.toordinal() - _EPOCH_DAY
_LAST_DAY = date.max.toordinal() - _EPOCH_DAY
FIRST_WALL = _FIRST_DAY * DAY_S
LAST_WALL = _LAST_DAY * DAY_S + DAY_S - 1

PLANS_MAX = 1_024  # parsed texts kept; a service has far fewer different ones, a flood must not grow memory

AND = "and"
OR = "or"

_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Plan:
    """A cron text compiled for one day rule.  Immutable to its users; it remembers months it has laid out.

    ``interval`` says that ``*``, a range or a step stands in the second, minute or hour, which decides what
    an autumn overlap does.  ``never`` is None, or why no date at all can match.
    """

    def __init__(self, fields: tuple[Field, ...], day_match: str) -> None:
        second, minute, hour, day, month, weekday = fields
        self.fields = fields
        self.interval = second.repeats or minute.repeats or hour.repeats
        self._seconds, self._minutes, self._hours = second.values, minute.values, hour.values
        self._months = month.values
        self._day, self._weekday = day, weekday
        self.either_day = day_match == OR and not (day.begins_with_star or weekday.begins_with_star)
        self._times_per_day = len(second.values) * len(minute.values) * len(hour.values)
        self._first_time = hour.values[0] * 3600 + minute.values[0] * 60 + second.values[0]
        self._layouts: dict[tuple[int, int], tuple[int, ...]] = {}  # at most 4 lengths of 7 weekdays
        self.never = self._why_never()

    def next_wall(self, wall: int) -> int | None:
        """The first matching wall second at or after ``wall``; None when the calendar ends before one."""
        if self.never is not None or wall > LAST_WALL:
            return None
        day, second = divmod(max(wall, FIRST_WALL), DAY_S)
        on = date.fromordinal(day + _EPOCH_DAY)
        days = self._days(on.year, on.month)
        at = bisect_left(days, on.day)
        if at < len(days) and days[at] == on.day:
            time = self._time_from(second)
            if time is not None:
                return day * DAY_S + time
            at += 1
        if at < len(days):
            return (day + days[at] - on.day) * DAY_S + self._first_time
        return self._first_after(on.year, on.month)

    def count(self, after: int, until: int) -> int:
        """How many matching wall seconds lie in (``after``, ``until``].  Steps over months, not seconds."""
        first, last = max(after + 1, FIRST_WALL), min(until, LAST_WALL)
        if self.never is not None or last < first:
            return 0
        (day, second), (end_day, end_second) = divmod(first, DAY_S), divmod(last + 1, DAY_S)
        total = self._days_between(day, end_day) * self._times_per_day
        if second and self._days_between(day, day + 1):
            total -= self._times_before(second)
        if end_second and self._days_between(end_day, end_day + 1):
            total += self._times_before(end_second)
        return total

    def _days_between(self, day: int, end: int) -> int:
        """Matching days in [``day``, ``end``), counted from the epoch."""
        total = 0
        while day < end:
            on = date.fromordinal(day + _EPOCH_DAY)
            days = self._days(on.year, on.month)
            next_month = day - on.day + 1 + _length(on.year, on.month)
            until = min(end, next_month) - day + on.day
            total += bisect_left(days, until) - bisect_left(days, on.day)
            day = next_month
        return total

    def _times_before(self, second: int) -> int:
        """Matching seconds of a day before ``second``."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        hours, minutes = bisect_left(self._hours, hour), bisect_left(self._minutes, minute)
        total = hours * len(self._minutes) * len(self._seconds)
        if hour in self._hours:
            total += minutes * len(self._seconds)
            if minute in self._minutes:
                total += bisect_left(self._seconds, second)
        return total

    def _first_after(self, year: int, month: int) -> int | None:
        """The first match in a later month.  At most the 400-year cycle away, but the year 9999 ends it."""
        index = bisect_right(self._months, month)
        while True:
            if index == len(self._months):
                year, index = year + 1, 0
                if year > 9999:
                    return None
            days = self._days(year, self._months[index])
            if days:
                ordinal = date(year, self._months[index], days[0]).toordinal()
                return (ordinal - _EPOCH_DAY) * DAY_S + self._first_time
            index += 1

    def _time_from(self, second: int) -> int | None:
        """The first matching second of a day at or after ``second``."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        at = bisect_left(hours, hour)
        if at == len(hours):
            return None
        if hours[at] != hour:
            return hours[at] * 3600 + minutes[0] * 60 + seconds[0]
        in_hour = bisect_left(minutes, minute)
        if in_hour < len(minutes) and minutes[in_hour] == minute:
            in_minute = bisect_left(seconds, second)
            if in_minute < len(seconds):
                return hour * 3600 + minute * 60 + seconds[in_minute]
            in_hour += 1
        if in_hour < len(minutes):
            return hour * 3600 + minutes[in_hour] * 60 + seconds[0]
        if at + 1 < len(hours):
            return hours[at + 1] * 3600 + minutes[0] * 60 + seconds[0]
        return None

    def _days(self, year: int, month: int) -> tuple[int, ...]:
        """The matching days of a month, ascending."""
        if month not in self._months:
            return ()
        length, first = _length(year, month), date(year, month, 1).isoweekday() % 7
        days = self._layouts.get((length, first))
        if days is None:
            days = self._layouts[length, first] = self._lay_out(length, first)
        return days

    def _lay_out(self, length: int, first: int) -> tuple[int, ...]:
        """The matching days of a month of ``length`` days whose 1st is weekday ``first`` (0 is Sunday)."""
        by_day, by_weekday = (
            _days_by_day(self._day, length, first),
            _days_by_weekday(self._weekday, length, first),
        )
        return tuple(sorted(by_day | by_weekday if self.either_day else by_day & by_weekday))

    def _why_never(self) -> str | None:
        # every month begins on each weekday, and every 29 February too, within the 400-year cycle
        lengths = {_length(year, month) for month in self._months for year in (1999, 2000)}
        shapes = [(length, first) for length in lengths for first in range(7)]
        if any(self._lay_out(length, first) for length, first in shapes):
            return None
        if not any(_days_by_day(self._day, length, first) for length, first in shapes):
            return f"no allowed month has day {self._day.text}"
        return f"no date in the allowed months is both day {self._day.text} and weekday {self._weekday.text}"


def _length(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _LENGTHS[month - 1]


def _days_by_day(field: Field, length: int, first: int) -> set[int]:
    days = {day for day in field.values if day <= length}
    days.update(length - back for back in field.from_end if back < length)
    days.update(_near(day, length, first) for day in field.near if day <= length)
    days.update(_near(length - back, length, first) for back in field.near_end if back < length)
    return days


def _days_by_weekday(field: Field, length: int, first: int) -> set[int]:
    days = {day for day in range(1, length + 1) if (first + day - 1) % 7 in field.values}
    for weekday, nth in field.nth:
        day = (weekday - first) % 7 + 1 + 7 * (nth - 1)
        if day <= length:
            days.add(day)
    days.update(length - (first + length - 1 - weekday) % 7 for weekday in field.last)
    return days


def _near(day: int, length: int, first: int) -> int:
    """The weekday (Monday to Friday) nearest to ``day`` that does not leave the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


@lru_cache(PLANS_MAX)
def plan_of(text: str, day_match: str) -> Plan:
    """The compiled form of a normal text (:func:`~farro.silo.schedules.fields.normal_text`).

    Raises :class:`~farro.client.errors.InvalidSchedule` for texts that break the rules.
    """
    return Plan(parse_fields(text), day_match)
