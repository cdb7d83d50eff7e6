"""Cron as a value: what it accepts, keeps, refuses and says."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from farro.client.errors import InvalidSchedule
from farro.silo.schedules.cron import CRONS_MAX, Cron, cron_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def days(text: str, year: int, day_match: str = "and") -> list[str]:
    """The dates of a year on which a text fires."""
    cron, at, found = Cron(text, day_match=day_match), datetime(year - 1, 12, 31, 23, 59, 59, tzinfo=UTC), []
    due = cron.next(at)
    while due is not None and due.year == year:
        found.append(f"{due:%m-%d}")
        due = cron.next(due.replace(hour=23, minute=59, second=59))
    return found


def times(text: str, timezone_name: str, start: str, count: int) -> list[str]:
    cron, due, found = Cron(text, timezone_name), datetime.fromisoformat(start), []
    for _ in range(count):
        following = cron.next(due)
        assert following is not None
        due = following
        found.append(f"{due:%m-%dT%H:%M:%S}")
    return found


_opened: list[Any] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(arguments[0])


@cache
def _watch_once() -> None:
    sys.addaudithook(_watch)  # an audit hook cannot be taken away again


@contextmanager
def files_opened() -> Iterator[list[Any]]:
    """The paths that anything in this process opens meanwhile."""
    global _opened
    _watch_once()
    opened: list[Any] = []
    _opened = opened
    try:
        yield opened
    finally:
        _opened = None


def test_the_watch_sees_a_file_that_is_opened() -> None:
    with files_opened() as opened:
        Path(__file__).read_bytes()
    assert opened == [__file__]


def test_a_cron_is_a_frozen_value_equal_by_text_zone_and_day_rule() -> None:
    cron = Cron("  0 0\t9 * * MON ")
    assert cron.text == "0 0 9 * * MON"
    assert cron == Cron("0 0 9 * * MON")
    assert hash(cron) == hash(Cron("0 0 9 * * MON"))
    assert cron != Cron("0 0 9 * * MON", "Europe/Berlin")
    assert cron != Cron("0 0 9 * * MON", day_match="or")
    assert cron != Cron("0 0 9 * * 1")
    assert repr(cron) == "Cron(text='0 0 9 * * MON', timezone='UTC', day_match='and')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        cron.text = "@daily"  # type: ignore[misc]


def test_a_cron_survives_copying_and_pickling() -> None:
    cron = Cron("0 30 2 L * ?", "America/New_York", "or")
    for twin in (copy.copy(cron), copy.deepcopy(cron), pickle.loads(pickle.dumps(cron))):
        assert twin == cron
        assert twin.next(START) == cron.next(START)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 0 1,15,L 2 ?", ["02-01", "02-15", "02-28"]),
        ("0 0 0 L,L-1 2 ?", ["02-27", "02-28"]),
        ("0 0 0 l-2,10-12/2 2 ?", ["02-10", "02-12", "02-26"]),
        ("0 0 0 L,28 2 ?", ["02-28"]),
        ("0 0 0 LW 1-6 ?", ["01-30", "02-27", "03-31", "04-30", "05-29", "06-30"]),
        ("0 0 0 L-3W 1-3 ?", ["01-28", "02-25", "03-27"]),
        ("0 0 0 L-30W 1-3 ?", ["01-01", "03-02"]),
        ("0 0 0 1w 8,11 ?", ["08-03", "11-02"]),
        ("0 0 0 15W 8,11 ?", ["08-14", "11-16"]),
        ("0 0 0 31W 1,2,5 ?", ["01-30", "05-29"]),
        ("0 0 0 ? 5 FRIL", ["05-29"]),
        ("0 0 0 ? 5 5L,0L,7L", ["05-29", "05-31"]),
        ("0 0 0 ? 5 MON#1,MON#5", ["05-04"]),
        ("0 0 0 ? 5 SUN#5,7#1,0#2", ["05-03", "05-10", "05-31"]),
        ("0 0 0 ? 5 TUE#2,SATL,4-5/5", ["05-07", "05-12", "05-14", "05-21", "05-28", "05-30"]),
        ("0 0 0 L 5 SUN", ["05-31"]),
        ("0 0 0 LW 5 FRIL", ["05-29"]),
        ("0 0 0 1-7 5 7-1", ["05-03", "05-04"]),
        ("0 0 0 ? 5/6 MON#2", ["05-11", "11-09"]),
        ("0 0 0 13 NOV-feb/3 *", ["02-13", "11-13"]),
        ("0 0 0 30-2/2 9,10 *", ["09-01", "09-30", "10-01", "10-30"]),
        ("@yearly", ["01-01"]),
        ("@ANNUALLY", ["01-01"]),
    ],
)
def test_special_days_lists_names_and_wraps_fall_on_the_right_dates(text: str, expected: list[str]) -> None:
    assert days(text, 2026) == expected


@pytest.mark.parametrize(
    ("weekdays", "expected"),
    [
        ("6/1", "SUN SAT"), ("5/2", "SUN FRI"), ("4/2", "THU SAT"), ("0/3", "SUN WED SAT"), ("7/2", "SUN"),
        ("7-2", "SUN MON TUE"), ("5-7", "SUN FRI SAT"), ("0-7/7", "SUN"), ("1-7/3", "SUN MON THU"),
        ("SAT-TUE/2", "MON SAT"), ("fri-fri/3", "FRI"), ("MON/3", "SUN MON THU"),
        ("1-0", "SUN MON TUE WED THU FRI SAT"),
    ],
)  # fmt: skip
def test_weekday_ranges_and_steps_count_to_the_second_sunday(weekdays: str, expected: str) -> None:
    week = [f"{date(2026, 3, int(day[3:])):%a}".upper() for day in days(f"0 0 0 1-7 3 {weekdays}", 2026)]
    assert sorted(week) == sorted(expected.split())


def test_both_day_fields_must_match_unless_the_crontab_rule_is_asked_for() -> None:
    assert days("0 0 0 13 2 FRI", 2026) == ["02-13"]
    assert days("0 0 0 13 2 FRI", 2026, "or") == ["02-06", "02-13", "02-20", "02-27"]
    assert days("0 0 0 L 2 MON#1", 2026, "or") == ["02-02", "02-28"]


@pytest.mark.parametrize("text", ["0 0 0 */10 2 MON", "0 0 0 1/10 2 */6,1", "0 0 0 ? 2 MON", "0 0 0 5 2 ?"])
def test_a_day_field_that_begins_with_a_star_joins_under_either_rule(text: str) -> None:
    assert days(text, 2026, "or") == days(text, 2026, "and")


def test_a_leap_day_on_a_weekday_spans_the_long_gaps_of_the_cycle() -> None:
    cron = Cron("0 0 0 29 2 SAT")
    found, due = [], datetime(2000, 1, 1, tzinfo=UTC)
    for _ in range(15):
        following = cron.next(due)
        assert following is not None
        due = following
        found.append(due.year)
    assert found[:5] == [2020, 2048, 2076, 2116, 2144]
    assert found[-1] - found[0] == 400
    assert max(later - sooner for sooner, later in pairwise(found)) == 40


@pytest.mark.parametrize("text", ["0 0 0 29 2 ?", "0 0 0 ? 2 MON#5", "0 0 0 29W 2 ?", "0 0 0 L-28 2 ?"])
def test_what_only_leap_years_have_does_fire(text: str) -> None:
    assert not Cron(text).never_fires
    assert Cron(text).next(START) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 0 0 30 2 *", "no allowed month has day 30"),
        ("0 0 0 L-29 2 *", "no allowed month has day L-29"),
        ("0 0 0 31W 4,6 ?", "no allowed month has day 31W"),
        ("0 0 0 L-30W 4,6,9,11 ?", "no allowed month has day L-30W"),
        ("0 0 0 8 * FRI#1", "no date in the allowed months is both day 8 and weekday FRI#1"),
        ("0 0 0 LW * SUN", "no date in the allowed months is both day LW and weekday SUN"),
    ],
)
def test_a_date_that_cannot_be_never_fires_and_says_why(text: str, reason: str) -> None:
    cron = Cron(text)
    assert cron.never_fires
    assert cron.never_reason == reason
    assert cron.next(START) is None
    assert cron.previous(START) is None
    assert cron.count(0, 10**18) == 0
    assert f"NEVER FIRES: {reason}." in cron.explain()


def test_a_day_that_a_zone_skipped_fires_when_the_next_one_begins() -> None:
    # Samoa went from the end of 29 December 2011 to the beginning of the 31st
    assert times("0 0 12 * * *", "Pacific/Apia", "2011-12-28T23:00Z", 3) == [
        "12-29T22:00:00",
        "12-30T10:00:00",
        "12-30T22:00:00",
    ]
    assert times("0 0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00Z", 2) == [
        "12-30T10:00:00",
        "12-29T22:00:00",
    ]


def test_a_day_that_a_zone_had_twice_counts_once_unless_it_is_an_interval() -> None:
    # Alaska, bought from Russia, lived through 18 October 1867 a second time at Sitka
    fixed = times("0 0 12 * * *", "America/Sitka", "1867-10-16T00:00Z", 4)
    assert len({day[:5] for day in fixed}) == 4
    every_six_hours = times("0 0 */6 * * *", "America/Sitka", "1867-10-18T00:00Z", 8)
    assert len(every_six_hours) == len(set(every_six_hours)) == 8


def test_an_offset_with_seconds_is_kept_to_the_second() -> None:
    # New York's sun: 4 h 56 min 2 s behind Greenwich until noon of 18 November 1883
    assert times("0 0 12 * * *", "America/New_York", "1883-11-17T00:00Z", 3) == [
        "11-17T16:56:02",
        "11-18T16:56:02",
        "11-19T17:00:00",
    ]


def test_starts_before_1970_and_in_year_one_are_ordinary() -> None:
    assert Cron("0 0 0 1 1 *").next(datetime(1965, 6, 1, tzinfo=UTC)) == datetime(1966, 1, 1, tzinfo=UTC)
    assert Cron("@daily").next(datetime(1, 1, 1, tzinfo=UTC)) == datetime(1, 1, 2, tzinfo=UTC)
    west = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))
    assert Cron("@daily").next(west) == datetime(1, 1, 1, tzinfo=UTC)
    east = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
    assert Cron("@daily").next(east) is None
    assert Cron("@daily").previous(east) == datetime(9999, 12, 31, tzinfo=UTC)


def test_the_start_s_fold_decides_which_pass_it_stands_in() -> None:
    cron = Cron("0 45 1 * * *", "America/New_York")
    first = datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York"))
    assert cron.next(first) == datetime(2026, 11, 1, 5, 45, tzinfo=UTC)
    assert cron.next(first.replace(fold=1)) == datetime(2026, 11, 2, 6, 45, tzinfo=UTC)


def test_a_count_that_begins_in_the_second_pass_leaves_fixed_times_out() -> None:
    begin, end = (1_793_514_600_000_000, 1_793_534_400_000_000)  # 06:30 and 12:00 UTC on 1 November 2026
    assert Cron("0 45 1 * * *", "America/New_York").count(begin, end) == 0
    assert Cron("0 45 1-1 * * *", "America/New_York").count(begin, end) == 1
    assert Cron("0 45 1 * * *", "America/New_York").count(begin - 2 * 3_600_000_000, end) == 1


@pytest.mark.parametrize("text", ["0 30 1 * * *", "0 30 1,2 * * *", "15 30 1 1 11 SUN"])
def test_a_list_of_values_is_a_fixed_time_and_counts_one_pass(text: str) -> None:
    due = Cron(text, "America/New_York").next(datetime(2026, 11, 1, 5, 40, tzinfo=UTC))
    assert due is not None
    assert due >= datetime(2026, 11, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize("text", ["0 30 1-1 * * *", "0 30 1,5-6 * * *", "0/30 30 1 * * *", "0 30/60 1 * * *"])
def test_a_range_or_step_anywhere_in_the_time_runs_both_passes(text: str) -> None:
    due = Cron(text, "America/New_York").next(datetime(2026, 11, 1, 5, 40, tzinfo=UTC))
    assert due == datetime(2026, 11, 1, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        (" \t ", "it is empty"),
        ("0 0 0 * * * 2026", "7 fields found, 6 wanted .* there is no year field"),
        ("0 0 9 * * MONDAY", "weekday: 'MONDAY' is not understood"),
        ("0 0 9 * * JAN", "weekday: JAN is not a name here; the names are SUN MON"),
        ("0 0 9 * MON *", "month: MON is not a name here; the names are JAN"),
        ("0 0 MON * * *", "hour: MON is not a name here; this field takes numbers only"),
        ("H 0 9 * * *", r"second: H: hashed \(H\) and random \(R\)"),
        ("0 R(1-5) 9 * * *", r"minute: R\(1-5\): hashed"),
        ("0 0 9 ?,1 * *", r"day: \? stands alone"),
        ("0 0 9 ?/2 * *", r"day: '\?/2' is not understood"),
        ("0 0 9 15,LW * ?", "day: LW: W takes a single day, not a list"),
        ("0 0 9 32W * ?", "day: 32 is not in 1..31"),
        ("0 0 9 W15 * ?", "day: W15: W goes behind"),
        ("0 0 9 L-W * ?", "day: L-W: W goes behind"),
        ("0 0 9 ? * 8L", "weekday: 8 is not in 0..7"),
        ("0 0 9 ? * FOO#1", "weekday: FOO is not a name here"),
        ("0 0 9 ? * #1", "weekday: #1: # goes between"),
        ("0 */0 9 * * *", "minute: a step of 0 never moves on"),
        ("0 0 9 * * */8", "weekday: step 8 is larger than the 7 days of the field"),
        ("0 0 9 1/32 * *", r"day: step 32 is larger .* every=timedelta\(days=32\)"),
        ("0 0 9 1 */13 *", "month: step 13 is larger than the 12 months of the field"),
        ("@reboot", "not a known macro .* on_activate"),
        ("0 0 9 * * *\r", r"control character '\\r' is not allowed"),
        ("0 0 9 * * *\x00", r"control character '\\x00' is not allowed"),
        ("0 0 9 * * m\u00f6n", r"non-ASCII character '\\xf6' is not allowed in the weekday field"),
        ("0 " * 101, "202 characters is too long; at most 200"),
    ],
)
def test_a_bad_text_is_refused_naming_field_and_rule(text: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words) as refusal:
        Cron(text)
    assert isinstance(refusal.value, ValueError)
    assert len(str(refusal.value)) < 600


def test_two_hundred_characters_are_accepted() -> None:
    text = "0 0 9 * * 1" + ",1" * 94 + " "
    assert len(text) == 200
    assert Cron(text).next(START) == datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize("value", [None, 5, b"UTC", UTC])
def test_zone_and_day_rule_of_a_wrong_type_are_named(value: Any) -> None:
    with pytest.raises(TypeError, match=f"timezone must be str, not {type(value).__name__}"):
        Cron("@daily", value)
    with pytest.raises(TypeError, match=f"day_match must be str, not {type(value).__name__}"):
        Cron("@daily", day_match=value)


@pytest.mark.parametrize(
    "zone",
    ["utc", "europe/berlin", "Europe/", "/Europe/Berlin", "Europe//Berlin", "Europe/Berlin\x00", "posixrules",
     "right/UTC", "posix/UTC", "localtime", "Factory", "UTC\n", "Europe/\u0392erlin", "tzdata.zi", "..", "."],
)  # fmt: skip
def test_a_name_outside_the_database_is_refused_without_opening_any_file(zone: str) -> None:
    with files_opened() as opened, pytest.raises(InvalidSchedule, match=r"^timezone: "):
        Cron("@daily", zone)
    assert opened == []


def test_a_zone_in_the_wrong_case_is_told_its_right_name() -> None:
    with pytest.raises(InvalidSchedule, match="write a name such as 'Europe/Berlin'"):
        Cron("@daily", "EUROPE/BERLIN")


@pytest.mark.parametrize("value", ["2026-01-01", date(2026, 1, 1), 1_790_000_000, None])
def test_a_start_of_a_wrong_type_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=f"after must be a datetime, not {type(value).__name__}"):
        Cron("@daily").next(value)
    with pytest.raises(TypeError, match=f"before must be a datetime, not {type(value).__name__}"):
        Cron("@daily").previous(value)


def test_crons_of_rows_are_kept_within_a_bound() -> None:
    assert cron_of("@daily", "UTC", "and") is cron_of("@daily", "UTC", "and")
    for number in range(CRONS_MAX + 50):
        cron_of(f"{number % 60} {number // 60} * * * *", "UTC", "and")
    assert cron_of.cache_info().currsize == CRONS_MAX


@pytest.mark.parametrize(
    ("cron", "lines"),
    [
        (
            Cron("0 0 2 1-7 * FRI"),
            ["DAY RULE: BOTH day fields must match", "crontab(5) would fire on either"],
        ),
        (Cron("0 0 2 1-7 * FRI", day_match="or"), ["DAY RULE: EITHER day field may match"]),
        (
            Cron("0 0 2 */2 * FRI", day_match="or"),
            ["DAY RULE: BOTH day fields must match", "changes nothing"],
        ),
        (Cron("0 0 2 * * FRI"), ["DAY RULE: only the weekday field restricts the days", "weekday  Friday"]),
        (Cron("0 0 2 5 * ?"), ["DAY RULE: only the day field restricts the days"]),
        (Cron("@daily"), ["DAY RULE: every day", "CLOCK CHANGES: none in UTC"]),
        (Cron("0 30 1 * * *", "Europe/London"), ["counts once, at its first pass (a fixed time)"]),
        (Cron("0 */30 * * * *", "Europe/London"), ["runs through both passes", "from 0 in steps of 30"]),
        (
            Cron("0 5/15 22-2 L-3,1 JAN-mar,12 TUE#3,FRIL"),
            [
                "minute   from 5 in steps of 15",
                "hour     22 to 2",
                "day      3 before the last day of the month, 1",
                "month    January to March, December",
                "weekday  the third Tuesday of the month, the last Friday of the month",
            ],
        ),
        (Cron("0 0 0 LW * ?"), ["the weekday (Monday to Friday) nearest to the last day of the month"]),
        (Cron("0 0 0 15W * ?"), ["the weekday (Monday to Friday) nearest to day 15, within the month"]),
        (Cron("0 0 0 L-1W * ?"), ["nearest to 1 before the last day of the month"]),
        (Cron("0 0 0 ? * 6/1"), ["weekday  from Saturday in steps of 1"]),
    ],
)
def test_an_explanation_says_it_in_words_and_names_the_day_rule(cron: Cron, lines: list[str]) -> None:
    explanation = cron.explain()
    for line in lines:
        assert line in explanation
    assert explanation.splitlines()[0] == f"{cron.text}   (time zone {cron.timezone})"
