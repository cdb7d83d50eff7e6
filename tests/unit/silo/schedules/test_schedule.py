"""Schedules: what is accepted, and the grid each kind lays."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.client.clock import to_us
from farro.client.errors import InvalidSchedule
from farro.silo.schedules.cron import LAST_US, Cron
from farro.silo.schedules.schedule import (
    Schedule,
    count_between,
    jitter_offset_us,
    make_named_schedule,
    make_schedule,
    next_due,
)

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
NOW = to_us(NOON)
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def made(**asked: Any) -> Schedule:
    return make_schedule(now_us=NOW, **asked)


def named(**asked: Any) -> Schedule:
    return make_named_schedule(now_us=NOW, **asked)


def test_at_alone_is_due_once_at_its_instant() -> None:
    schedule = made(at=NOON + timedelta(hours=2))
    assert schedule.is_one_shot
    assert schedule.first_due_at == NOW + 2 * HOUR
    assert next_due(schedule, NOW) == NOW + 2 * HOUR
    assert next_due(schedule, NOW + 2 * HOUR) is None


def test_at_keeps_its_instant_whatever_zone_it_is_written_in() -> None:
    in_kolkata = datetime(2026, 7, 1, 19, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert made(at=in_kolkata).start_at == NOW + 90 * MINUTE


def test_a_past_at_and_an_after_of_zero_are_due_now() -> None:
    assert made(at=NOON - timedelta(days=3)).first_due_at == NOW
    assert made(after=timedelta(0)).first_due_at == NOW


def test_every_begins_after_one_period_unless_at_or_after_say_otherwise() -> None:
    assert made(every=timedelta(minutes=5)).start_at == NOW + 5 * MINUTE
    assert made(every=timedelta(minutes=5), after=timedelta(minutes=1)).start_at == NOW + MINUTE
    assert made(every=timedelta(minutes=5), at=NOON + timedelta(hours=1)).start_at == NOW + HOUR


def test_a_past_at_with_every_is_due_now_and_then_stays_on_its_old_grid() -> None:
    schedule = made(at=NOON - timedelta(minutes=50), every=timedelta(hours=1))
    assert schedule.first_due_at == NOW
    assert next_due(schedule, NOW) == NOW + 10 * MINUTE


def test_rem_008_and_065_the_grid_is_counted_from_the_due_instant_never_from_now() -> None:
    schedule = made(every=timedelta(minutes=1))
    dues, due = [], schedule.first_due_at
    for _ in range(3):
        dues.append(due)
        following = next_due(schedule, due)
        assert following is not None
        assert next_due(schedule, due + 400) == following  # the handler was done 0.4 ms after the due instant
        due = following
    assert dues == [NOW + MINUTE, NOW + 2 * MINUTE, NOW + 3 * MINUTE]


def test_rem_007_thirty_seconds_are_accepted_by_default() -> None:
    schedule = named(due=timedelta(seconds=30), period=timedelta(seconds=30))
    assert [next_due(schedule, NOW + k * 30 * SECOND) for k in range(3)] == [
        NOW + 30 * SECOND,
        NOW + 60 * SECOND,
        NOW + 90 * SECOND,
    ]


def test_rem_003_any_horizon_is_one_number() -> None:
    schedule = named(due=timedelta(days=60), period=timedelta(days=1))
    assert schedule.first_due_at == NOW + 60 * DAY


def test_cron_falls_due_after_now_and_keeps_zone_and_day_rule() -> None:
    schedule = made(cron="0 30 9 * * MON", timezone="Europe/Berlin", day_match="or")
    assert schedule.start_at == to_us(datetime(2026, 7, 6, 7, 30, tzinfo=UTC))
    assert (schedule.timezone, schedule.day_match) == ("Europe/Berlin", "or")
    assert next_due(schedule, schedule.start_at) == schedule.start_at + 7 * DAY


def test_a_cron_value_brings_its_own_zone_and_day_rule() -> None:
    value = Cron("0 0 9 * * *", "America/New_York", "or")
    schedule = made(cron=value)
    assert (schedule.cron, schedule.timezone, schedule.day_match) == (
        value.text,
        value.timezone,
        value.day_match,
    )
    assert made(cron=value, timezone="America/New_York") == schedule


def test_until_is_inclusive_and_ends_the_grid() -> None:
    schedule = made(every=timedelta(minutes=10), until=NOON + timedelta(minutes=30))
    assert next_due(schedule, NOW + 20 * MINUTE) == NOW + 30 * MINUTE
    assert next_due(schedule, NOW + 30 * MINUTE) is None
    assert count_between(schedule, NOW, NOW + DAY) == 3


def test_the_grid_ends_with_the_year_9999() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    schedule = made(at=last, every=timedelta(minutes=1))
    assert schedule.first_due_at == to_us(last)
    assert next_due(schedule, schedule.start_at) is None
    assert count_between(schedule, NOW, LAST_US * 2) == 1
    assert next_due(made(cron="59 59 23 31 12 *"), to_us(last)) is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "nothing says when; choose one"),
        ({"at": NOON, "after": timedelta(1)}, "at= and after= were both given; choose one"),
        ({"at": NOON, "cron": "@daily"}, "choose one"),
        ({"after": timedelta(1), "cron": "@daily"}, "choose one"),
        ({"every": timedelta(1), "cron": "@daily"}, "choose one"),
        ({"at": datetime(2026, 7, 2)}, "at: 2026-07-02T00:00:00 has no time zone"),
        ({"at": date(2026, 7, 2)}, "at: a date is no instant"),
        ({"at": "2026-07-02T00:00:00Z"}, "at: a str is no instant"),
        ({"at": 1_790_000_000}, "at: a int is no instant"),
        ({"at": True}, "at: a bool is no instant"),
        ({"at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))}, "outside the years 1 to 9999"),
        ({"after": timedelta(microseconds=-1)}, "after: .* is negative"),
        ({"after": 5}, r"after: a int is no duration; .* timedelta\(seconds=5\)"),
        ({"after": 1.5}, r"after: a float is no duration; .* timedelta\(seconds=1.5\)"),
        ({"after": True}, "after: a bool is no duration"),
        ({"after": timedelta.max}, "after: .* beyond the year 9999"),
        ({"after": timedelta(days=365 * 7990)}, "after: the first tick would fall beyond the year 9999"),
        ({"every": timedelta(days=365 * 7990)}, "every: the first tick would fall beyond the year 9999"),
        ({"every": timedelta(0)}, "every: a period of 0 never moves on"),
        ({"every": -timedelta(1)}, "every: .* is negative"),
        ({"every": 60}, "every: a int is no duration"),
        ({"every": False}, "every: a bool is no duration"),
        ({"every": timedelta(milliseconds=999)}, "every: .* shorter than the minimum period, 0:00:01"),
        ({"at": NOON, "every": timedelta.max}, "every: .* beyond the year 9999"),
        ({"cron": "0 0 0 30 2 *"}, "can never fire: no allowed month has day 30; .* pause it"),
        ({"cron": "0 0 0 1 * MON#2"}, "can never fire: no date .* both day 1 and weekday MON#2"),
        ({"cron": "61 * * * * *"}, "second: 61 is not in 0..59"),
        ({"cron": "@daily", "timezone": "Mars/Olympus"}, "timezone: 'Mars/Olympus'"),
        ({"cron": "@daily", "timezone": ""}, "timezone: ''"),
        ({"cron": "@daily", "day_match": "xor"}, "day_match: 'xor'"),
        ({"cron": Cron("@daily"), "timezone": "Europe/Berlin"}, "timezone='Europe/Berlin' contradicts 'UTC'"),
        ({"every": timedelta(1), "timezone": "Europe/Berlin"}, "belong to cron="),
        ({"every": timedelta(1), "day_match": "or"}, "belong to cron="),
        ({"every": timedelta(1), "until": datetime(2027, 1, 1)}, "until: .* has no time zone"),
        ({"every": timedelta(1), "until": NOON - timedelta(1)}, "until: .* is before the first tick"),
        ({"every": timedelta(2), "until": NOON + timedelta(1)}, "until: .* is before the first tick"),
        ({"cron": "@yearly", "until": NOON + timedelta(1)}, "until: .* is before the first tick"),
        ({"after": timedelta(1), "until": NOON + timedelta(2)}, "add every= or cron="),
        ({"after": timedelta(1), "times": 3}, "add every= or cron="),
        ({"every": timedelta(1), "times": 0}, "times: 0 is no number of ticks"),
        ({"every": timedelta(1), "times": True}, "times: True is no number of ticks"),
        ({"every": timedelta(1), "times": 2.0}, "times: 2.0 is no number of ticks"),
        ({"every": timedelta(1), "times": 1 << 31}, "times: 2147483648 is no number of ticks"),
        ({"every": timedelta(1), "jitter": -timedelta(1)}, "jitter: .* is negative"),
        ({"every": timedelta(1), "jitter": 5}, "jitter: a int is no duration"),
        ({"every": timedelta(hours=1), "jitter": timedelta(hours=2)}, "jitter: .* longer than the period"),
    ],
)
def test_a_bad_schedule_is_refused_naming_argument_rule_and_way_out(
    asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        made(**asked)


def test_a_cron_that_the_end_of_the_calendar_leaves_nothing_to_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="does not fire again before the year 10000"):
        make_schedule(now_us=LAST_US - HOUR, cron="@daily")


@pytest.mark.parametrize("cron", [5, b"@daily", ["@daily"], True])
def test_a_cron_of_a_wrong_type_is_named(cron: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(cron).__name__}"):
        made(cron=cron)


def test_the_minimum_period_is_the_service_s() -> None:
    with pytest.raises(InvalidSchedule, match=r"shorter than the minimum period, 0:01:00"):
        made(every=timedelta(seconds=59), minimum_period_us=MINUTE)
    assert made(every=timedelta(milliseconds=10), minimum_period_us=1000).period_us == 10_000


def test_the_named_form_takes_due_as_duration_or_instant_and_a_period() -> None:
    assert named(due=timedelta(minutes=1), period=timedelta(hours=1)) == Schedule(NOW + MINUTE, HOUR)
    assert named(due=NOON + timedelta(minutes=1), period=timedelta(hours=1)) == Schedule(NOW + MINUTE, HOUR)
    assert named(due=timedelta(minutes=1)) == Schedule(NOW + MINUTE)
    assert named(period=timedelta(hours=1)) == Schedule(NOW + HOUR, HOUR)
    assert named(cron="@hourly") == Schedule(NOW + HOUR, cron="@hourly")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "nothing says when"),
        ({"due": timedelta(1), "cron": "@daily"}, "choose one: due and period, or cron="),
        ({"period": timedelta(1), "cron": "@daily"}, "choose one: due and period, or cron="),
        ({"due": 60, "period": timedelta(1)}, "after: a int is no duration"),
        ({"due": timedelta(1), "period": timedelta(0)}, "every: a period of 0"),
    ],
)
def test_a_bad_named_schedule_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        named(**asked)


@given(
    st.integers(1, 10**7), st.integers(-(10**9), 10**9), st.integers(-(10**8), 10**9), st.integers(0, 10**6)
)
def test_counting_an_interval_is_stepping_through_it(period: int, start: int, after: int, span: int) -> None:
    schedule = Schedule(start, period)
    until = after + min(span, 300 * period)
    steps, due = 0, next_due(schedule, after)
    while due is not None and due <= until:
        steps, due = steps + 1, next_due(schedule, due)
    assert count_between(schedule, after, until) == steps
    assert count_between(schedule, after, until, cap=2) == min(steps, 2)


def test_counting_a_one_shot_finds_it_once() -> None:
    schedule = made(after=timedelta(minutes=1))
    assert count_between(schedule, NOW, NOW + HOUR) == 1
    assert count_between(schedule, NOW + MINUTE, NOW + HOUR) == 0
    assert count_between(schedule, NOW, NOW + SECOND) == 0


def test_counting_a_year_of_seconds_in_a_zone_does_not_step_through_them() -> None:
    schedule = made(cron="* * * * * *", timezone="America/New_York")
    assert count_between(schedule, NOW, NOW + 365 * DAY) == 365 * 86_400
    assert count_between(schedule, NOW, NOW + 365 * DAY, cap=1000) == 1000


def test_jitter_is_stable_within_its_bound_and_spreads() -> None:
    offsets = [jitter_offset_us("shipments", "s-1", "chase", occurrence, MINUTE) for occurrence in range(200)]
    assert offsets == [jitter_offset_us("shipments", "s-1", "chase", n, MINUTE) for n in range(200)]
    assert all(0 <= offset < MINUTE for offset in offsets)
    assert max(offsets) > 50 * SECOND
    assert min(offsets) < 10 * SECOND
    assert len(set(offsets)) > 190
    assert jitter_offset_us("shipments", "s-2", "chase", 0, MINUTE) != offsets[0]
    assert jitter_offset_us("shipments", "s-1", "chase", 0, 0) == 0
    # the very number is stored in the due times of running systems: it must never change
    assert jitter_offset_us("shipments", "s-1", "chase", 0, MINUTE) == 46_783_088
