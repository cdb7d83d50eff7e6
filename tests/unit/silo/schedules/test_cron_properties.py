"""Cron against a brute-force model and against croniter."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from croniter import CroniterBadDateError, croniter
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from farro.silo.schedules.cron import FIRST_US, LAST_US, SECOND_US, Cron
from farro.silo.schedules.zones import zone_of
from tests.unit.silo.schedules.cron_model import (
    Column,
    Days,
    Expression,
    columns,
    day_fields,
    due_instants,
    expressions,
    switches,
    weekday_fields,
)

HOUR = 3600
DAY = 86_400
# Zones with their years: shifts of an hour, half an hour, two hours, gaps at midnight, negative daylight
# saving, Ramadan, days that never were or came twice.
ZONE_YEARS = [
    ("America/New_York", 2026, 2026),
    ("Europe/Berlin", 2040, 2040),
    ("Europe/Dublin", 2026, 2026),
    ("Australia/Lord_Howe", 2026, 2026),
    ("Antarctica/Troll", 2026, 2026),
    ("Africa/Casablanca", 2026, 2026),
    ("America/Santiago", 2025, 2026),
    ("America/Nuuk", 2024, 2024),
    ("America/Havana", 2026, 2026),
    ("Asia/Amman", 2014, 2017),
    ("Pacific/Chatham", 2026, 2026),
    ("America/St_Johns", 1988, 2006),
    ("Asia/Pyongyang", 2015, 2018),
    ("Pacific/Apia", 2011, 2012),
    ("Pacific/Kwajalein", 1993, 1993),
    ("Pacific/Kiritimati", 1994, 1995),
]
SWITCHES = [(name, at) for name, first, last in ZONE_YEARS for at in switches(zone_of(name), first, last)]
EVERY_MONTH = Column("*", frozenset(range(1, 13)), True)
ON_THE_MINUTE = Column("0", frozenset({0}), False)

starts = st.datetimes(datetime(1, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC))


def next_of(cron: Cron, after: int) -> int | None:
    due = cron.next_us(after * SECOND_US)
    return None if due is None else due // SECOND_US


@settings(max_examples=200, deadline=None)
@given(expressions(), starts)
def test_the_next_date_is_the_first_that_the_model_allows(expression: Expression, start: datetime) -> None:
    cron = Cron(expression.text, day_match=expression.day_match)
    due = cron.next(start)
    if due is not None:
        assert expression.matches(due.replace(tzinfo=None))
        assert due > start
    on, steps = start.date() + timedelta(days=1), 0
    last = date(9999, 12, 31) if due is None else due.date()
    while on < last and steps < 800:
        assert not expression.allows_date(on)
        on, steps = on + timedelta(days=1), steps + 1


@settings(max_examples=150, deadline=None)
@given(columns(0, 59), columns(0, 59), columns(0, 23), st.integers(0, DAY - 1))
def test_the_next_time_of_day_is_the_first_that_the_model_allows(
    second: Column, minute: Column, hour: Column, start: int
) -> None:
    cron = Cron(f"{second.text} {minute.text} {hour.text} * * *")
    times = sorted(h * 3600 + m * 60 + s for h in hour.values for m in minute.values for s in second.values)
    following = [time for time in times if time > start]
    assert next_of(cron, start) == (following[0] if following else DAY + times[0])
    assert cron.count(start * SECOND_US, (DAY - 1) * SECOND_US) == len(following)


@settings(max_examples=50, deadline=None)
@given(day_fields(), weekday_fields(), st.sampled_from(("and", "or")), st.integers(1, 9990))
def test_a_text_never_fires_exactly_when_no_date_of_the_cycle_matches(
    day: Days, weekday: Days, day_match: str, year: int
) -> None:
    february = Column("2", frozenset({2}), False)
    expression = Expression(ON_THE_MINUTE, ON_THE_MINUTE, ON_THE_MINUTE, day, february, weekday, day_match)
    cycle = (date(y, 2, 1) + timedelta(days=d) for y in range(2000, 2400) for d in range(29))
    possible = any(expression.allows_date(on) for on in cycle)
    cron = Cron(expression.text, day_match=day_match)
    assert cron.never_fires is not possible
    if not possible:
        assert cron.next(datetime(year, 1, 1, tzinfo=UTC)) is None


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SWITCHES), columns(0, 59), columns(0, 23), day_fields(), st.integers(-3 * HOUR, 3 * HOUR)
)
def test_around_a_switch_every_instant_is_the_model_s(
    switch: tuple[str, int], minute: Column, hour: Column, day: Days, shift: int
) -> None:
    name, at = switch
    zone, any_weekday = zone_of(name), Days("?", lambda on: True)
    begin = (at + shift) // 60 * 60 - 26 * HOUR
    end = begin + 54 * HOUR
    for days in (day, any_weekday):
        expression = Expression(ON_THE_MINUTE, minute, hour, days, EVERY_MONTH, any_weekday, "and")
        cron = Cron(expression.text, name)
        expected = due_instants(expression, zone, begin, end, 60)
        found, after = [], next_of(cron, begin)
        while after is not None and after <= end:
            found.append(after)
            after = next_of(cron, after)
        assert found == expected
        assert cron.count(begin * SECOND_US, end * SECOND_US) == len(expected)


@pytest.mark.parametrize(
    "text", ["0 0 * * * *", "*/20 10-50/7 * * * *", "5 15,44 * * * *", "30 0 0 * * *", "0 44 0 7 1 *"]
)
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("Africa/Monrovia", 1972, 1972), ("America/New_York", 1883, 1883), ("Asia/Kolkata", 1905, 1906)],
)
def test_a_shift_of_odd_seconds_is_exact(text: str, name: str, first: int, last: int) -> None:
    second, minute, hour, day, _, _ = text.split()
    sets = {
        "*": frozenset(range(60)), "*/20": frozenset({0, 20, 40}), "10-50/7": frozenset(range(10, 51, 7)),
        "15,44": frozenset({15, 44}),
    }  # fmt: skip
    month = Column("1", frozenset({1}), False) if day == "7" else EVERY_MONTH

    def column(word: str) -> Column:
        return Column(word, sets.get(word) or frozenset({int(word)}), any(mark in word for mark in "*-/"))

    days = Days(day, lambda on: day == "*" or on.day == int(day))
    expression = Expression(
        column(second), column(minute), column(hour), days, month, Days("*", lambda on: True), "and"
    )
    cron, found_switches = Cron(text, name), switches(zone_of(name), first, last)
    assert found_switches
    for at in found_switches:
        begin, end = at - 2 * HOUR, at + 2 * HOUR
        found, after = [], next_of(cron, begin)
        while after is not None and after <= end:
            found.append(after)
            after = next_of(cron, after)
        assert found == due_instants(expression, zone_of(name), begin, end, 1)


@settings(max_examples=100, deadline=None)
@given(expressions(), st.sampled_from(ZONE_YEARS), starts)
def test_previous_and_next_are_neighbours(
    expression: Expression, zone: tuple[str, int, int], start: datetime
) -> None:
    cron = Cron(expression.text, zone[0], expression.day_match)
    previous, following = cron.previous(start), cron.next(start)
    if previous is not None:
        assert previous < start
        after_previous = cron.next(previous)
        assert after_previous is None or after_previous >= start
    if following is not None:
        before_following = cron.previous(following)
        assert before_following is None or before_following <= start


@settings(max_examples=100, deadline=None)
@given(expressions(), st.sampled_from(("UTC", "America/New_York", "Pacific/Apia")), st.integers(0, 200 * DAY))
def test_a_count_is_the_number_of_nexts(expression: Expression, name: str, span: int) -> None:
    cron = Cron(expression.text, name, expression.day_match)
    begin = int(datetime(2011, 10, 1, tzinfo=UTC).timestamp())
    steps, due = 0, next_of(cron, begin)
    while due is not None and due <= begin + span:
        steps += 1
        if steps == 3000:
            span = due - begin
        due = next_of(cron, due)
        if steps == 3000:
            break
    assert cron.count(begin * SECOND_US, (begin + span) * SECOND_US) == steps


def plain_columns(low: int, high: int) -> st.SearchStrategy[str]:
    """What croniter reads as we do: no wrapped or one-value ranges, no long steps."""
    value = st.integers(low, high).map(str)
    spans = st.tuples(st.integers(low, high - 1), st.integers(1, high - low)).map(
        lambda pair: f"{pair[0]}-{min(pair[0] + pair[1], high)}"
    )
    stepped = st.tuples(spans, st.integers(1, 5)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    star = st.integers(1, min(high - low, 30)).map(lambda step: f"*/{step}")
    element = st.one_of(value, spans, stepped, star, st.just("*"))
    return st.lists(element, min_size=1, max_size=2).map(",".join)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(
        plain_columns(0, 59),
        plain_columns(0, 59),
        plain_columns(0, 23),
        st.one_of(plain_columns(1, 31), st.just("L")),
        plain_columns(1, 12),
        st.one_of(plain_columns(0, 6), st.just("FRI#2"), st.just("3L")),
    ),
    st.datetimes(datetime(1970, 1, 2), datetime(2090, 1, 1), timezones=st.just(UTC)),
)
def test_croniter_agrees_on_the_language_we_share(fields: tuple[str, ...], start: datetime) -> None:
    text = " ".join(fields)
    oracle = croniter(  # which writes the last Wednesday the other way round
        text.replace("3L", "L3"), start, ret_type=datetime, second_at_beginning=True, day_or=False,
        max_years_between_matches=45,
    )  # fmt: skip
    cron, at = Cron(text), start
    for _ in range(3):
        try:
            expected = oracle.get_next()
        except CroniterBadDateError:
            assume(False)
        due = cron.next(at)
        assert due == expected
        assert due is not None
        at = due


def test_both_ends_of_the_calendar_are_clean_in_every_direction_of_offset() -> None:
    for zone in ("UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "Pacific/Niue"):
        cron = Cron("0 0 * * * *", zone)
        after, count = LAST_US - 40 * HOUR * SECOND_US, 0
        due = cron.next_us(after)
        while due is not None:
            assert after < due <= LAST_US
            after, count = due, count + 1
            due = cron.next_us(after)
        assert 20 <= count <= 41
        first = cron.next_us(FIRST_US - 1)
        assert first is not None
        assert FIRST_US <= first <= FIRST_US + 16 * HOUR * SECOND_US
        assert cron.previous_us(FIRST_US) is None
        assert cron.next_us(LAST_US) is None
        assert cron.next_us(LAST_US * 10) is None
        assert cron.next_us(FIRST_US * 10) == first
