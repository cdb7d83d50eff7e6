"""The public cron cases: what other schedulers got wrong, and real crontab lines, with the right instants."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.client.errors import InvalidSchedule
from farro.silo.schedules.calendar import PLANS_MAX, plan_of
from farro.silo.schedules.cron import Cron
from farro.silo.schedules.schedule import make_schedule

DATA = Path(__file__).parent / "data"
REFUSAL_S_MAX = 0.010


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


CASES = {case["id"]: case for case in _lines("cron.jsonl")}
INSTANT_CASES = [case for case in CASES.values() if "next" in case["right"]]
REAL_LINES = _lines("real_life_cron.jsonl")


def iso(at: datetime | None) -> str:
    return "none" if at is None else at.isoformat().replace("+00:00", "Z")


def upcoming(cron: Cron, start: datetime) -> Iterator[datetime | None]:
    at: datetime | None = start
    while at is not None:
        at = cron.next(at)
        yield at


def first(cron: Cron, start: str, count: int) -> list[str]:
    """Up to ``count`` instants; a "none" ends them."""
    found = []
    for at in upcoming(cron, datetime.fromisoformat(start)):
        found.append(iso(at))
        if len(found) == count:
            break
    return found


def quickest(action: Callable[[], object]) -> float:
    """Seconds of the fastest of three runs: the machine's pauses are not the code's."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.parametrize("case", INSTANT_CASES, ids=lambda case: case["id"])
def test_a_case_gives_exactly_the_right_instants(case: dict[str, Any]) -> None:
    given, right = case["input"], case["right"]["next"]
    assert first(Cron(given["expr"], given["tz"]), given["start"], len(right)) == right


@pytest.mark.parametrize(
    "case",
    [case for case in INSTANT_CASES if "day_match=or" in case["right"].get("alt", {})],
    ids=lambda case: case["id"],
)
def test_a_case_gives_the_crontab_instants_under_the_or_rule(case: dict[str, Any]) -> None:
    given, right = case["input"], case["right"]["alt"]["day_match=or"]
    assert first(Cron(given["expr"], given["tz"], day_match="or"), given["start"], len(right)) == right


@pytest.mark.parametrize("line", REAL_LINES, ids=lambda line: line["expr"].replace(" ", "_"))
def test_a_real_crontab_line_gives_the_right_instants_in_both_spellings(line: dict[str, Any]) -> None:
    right = line["next"] or ["none"]
    for text in (line["expr"], line["six"]):
        assert first(Cron(text, line["tz"]), line["start"], len(right)) == right


# Texts too long to be stored: the data hold them as Python expressions.
LONG_TEXTS = {
    "CRON-183": "0 0" + " 0" * 10_000 + " 1 jan *",
    "CRON-184": ",".join(["0-59"] * 20_000) + " * * * * *",
    "CRON-185": "1" * 1_000_000 + " * * * * *",
    "CRON-185-again": "1" * 5_000 + " * * * * *",
}
REFUSED = [
    "CRON-173",
    "CRON-175",
    "CRON-178",
    "CRON-179",
    "CRON-181",
    "CRON-190",
    "CRON-192",
    "CRON-193",
    "CRON-194",
    "CRON-197",
    "CRON-198",
    "CRON-199",
    "CRON-201",
    "CRON-202",
    "CRON-203",
    "CRON-205",
    "CRON-206",
]
REFUSED_TEXTS = [
    pytest.param(text, id=f"{case_id}-{number}")
    for case_id in REFUSED
    for number, text in enumerate(CASES[case_id]["input"]["exprs"])
] + [pytest.param(text, id=case_id) for case_id, text in LONG_TEXTS.items()]


@pytest.mark.parametrize("text", REFUSED_TEXTS)
def test_a_bad_text_is_refused_quickly_and_by_name(text: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"^cron text"):
        Cron(text)

    def refuse() -> None:
        with pytest.raises(InvalidSchedule):
            Cron(text)

    assert quickest(refuse) < REFUSAL_S_MAX


@pytest.mark.parametrize(
    ("case_id", "words"),
    [
        ("CRON-173", ["4 fields found, 6 wanted", "second minute hour day month weekday"]),
        ("CRON-181", ["minute: step 90 is larger than the 60 minutes", "every=timedelta(minutes=90)"]),
        ("CRON-190", ["in the second field", r"'\xb9'"]),
        ("CRON-197", ["FRIL"]),
        ("CRON-199", ["? is only for the day and weekday fields"]),
        ("CRON-201", ["every=timedelta"]),
        ("CRON-202", ["@yearly", "@hourly"]),
        ("CRON-203", ["timezone="]),
        ("CRON-205", ["control character '\\n' is not allowed", "only space and tab"]),
        ("CRON-206", [r"'\xa0'"]),
    ],
)
def test_a_refusal_says_what_the_case_asks_for(case_id: str, words: list[str]) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        Cron(CASES[case_id]["input"]["exprs"][0])
    for word in words:
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("number", range(8))
def test_cron_175_one_past_each_limit_names_field_value_and_range(number: int) -> None:
    texts = CASES["CRON-175"]["input"]["exprs"]
    rules = (
        "second: 60 is not in 0..59",
        "minute: 60 is not in 0..59",
        "hour: 24 is not in 0..23",
        "day: 0 is not in 1..31",
        "day: 32 is not in 1..31",
        "month: 0 is not in 1..12",
        "month: 13 is not in 1..12",
        "weekday: 8 is not in 0..7",
    )
    with pytest.raises(InvalidSchedule, match=rules[number].replace(".", r"\.")):
        Cron(texts[number])


@pytest.mark.parametrize(
    "value", [None, b"0 0 0 * * *", 0, ["0", "0", "0", "*", "*", "*"], True], ids=lambda value: repr(value)
)
def test_cron_172_a_wrong_type_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=f"must be str, not {type(value).__name__}$"):
        Cron(value)


def test_cron_179_a_huge_range_is_refused_before_it_is_expanded() -> None:
    tracemalloc.start()
    try:
        for text in CASES["CRON-179"]["input"]["exprs"]:
            with pytest.raises(InvalidSchedule):
                Cron(text)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", CASES["CRON-182"]["input"]["exprs"])
def test_cron_182_a_step_as_large_as_the_field_keeps_its_first_value(text: str) -> None:
    cron, start = Cron(text), datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)
    got = [at for at, _ in zip(upcoming(cron, start), range(3), strict=False) if at is not None]
    spread = {(at.minute, at.hour) if "*/60" in text or "/24" in text else at.day for at in got}
    wanted = {
        "0 */60 * * * *": {(0, 0), (0, 1), (0, 2)},
        "0 0 2-23/24 * * *": {(0, 2)},
        "0 0 0 */31 * *": {1},
        "0 0 0 1 */12 *": {1},
    }
    assert spread == wanted[text]


@pytest.mark.parametrize("text", CASES["CRON-186"]["input"]["exprs"] + CASES["CRON-187"]["input"]["exprs"])
def test_cron_186_and_187_an_impossible_date_parses_and_is_refused_at_registration(text: str) -> None:
    cron = Cron(text)
    assert cron.never_fires
    assert cron.next(datetime(2026, 1, 1, tzinfo=UTC)) is None
    with pytest.raises(InvalidSchedule, match=r"can never fire: no allowed month has day .* pause"):
        make_schedule(now_us=0, cron=text)


def test_cron_189_both_day_fields_step_over_years_without_recursion() -> None:
    assert first(Cron("0 0 0 1 1 1"), "2020-10-08T00:00:00Z", 2) == [
        "2024-01-01T00:00:00Z",
        "2029-01-01T00:00:00Z",
    ]


@pytest.mark.parametrize("zone", CASES["CRON-209"]["input"]["zones"])
def test_cron_209_an_unknown_or_hostile_zone_is_refused_by_name(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"^timezone: ") as refusal:
        Cron("0 0 9 * * *", zone)
    assert zone[:60] in str(refusal.value)


def test_cron_210_a_naive_start_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match=r"has no time zone"):
        Cron("0 0 9 * * *").next(datetime(2026, 1, 1))


def test_cron_211_a_start_in_another_zone_is_its_instant() -> None:
    given = CASES["CRON-211"]["input"]
    assert first(Cron(given["expr"], given["tz"]), given["start"], 1) == ["2026-06-02T13:00:00Z"]


SWITCHES = {
    "America/New_York": ("2026-03-08T07:00Z", "2026-11-01T06:00Z"),
    "Australia/Lord_Howe": ("2026-04-04T15:00Z", "2026-10-03T15:30Z"),
    "Europe/Dublin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "Africa/Casablanca": ("2026-02-15T02:00Z", "2026-03-22T02:00Z"),
    "America/Santiago": ("2026-04-05T03:00Z", "2026-09-06T04:00Z"),
}


@pytest.mark.parametrize("zone", CASES["CRON-213"]["input"]["zones"])
@pytest.mark.parametrize("text", CASES["CRON-213"]["input"]["exprs"])
def test_cron_213_every_instant_is_later_than_the_one_before(text: str, zone: str) -> None:
    cron = Cron(text, zone)
    for switch in SWITCHES[zone]:
        before = datetime.fromisoformat(switch) - timedelta(hours=3)
        for at, _ in zip(upcoming(cron, before), range(400), strict=False):
            assert at is not None
            assert at > before
            assert at.microsecond == 0
            assert at.tzinfo is UTC
            before = at


@pytest.mark.parametrize("pair", CASES["CRON-215"]["input"]["pairs"], ids=" = ".join)
def test_cron_215_two_spellings_of_one_schedule_agree(pair: list[str]) -> None:
    one, other = (first(Cron(text), "2026-01-01T00:00:00Z", 50) for text in pair)
    assert one == other
    assert len(one) == 50


def test_cron_216_previous_is_the_leap_day() -> None:
    given = CASES["CRON-216"]["input"]
    cron, start = Cron(given["expr"]), datetime.fromisoformat(given["start"])
    assert iso(cron.previous(start)) == "2020-02-29T23:59:59Z"
    following = cron.next(start)
    assert following is not None
    assert cron.previous(following) == datetime(2020, 2, 29, 23, 59, 59, tzinfo=UTC)


def test_cron_217_a_sparse_text_is_found_by_stepping_over_months() -> None:
    given = CASES["CRON-217"]["input"]
    cron, start = Cron(given["expr"], given["tz"]), datetime.fromisoformat(given["start"])
    assert iso(cron.next(start)) == "2060-02-29T05:00:00Z"
    assert quickest(lambda: cron.next(start)) < 0.050


def test_cron_219_the_cache_of_parsed_texts_is_bounded() -> None:
    for number in range(PLANS_MAX + 200):
        Cron(f"{number % 60} {number // 60 % 60} {number // 3600} * * *")
    assert plan_of.cache_info().currsize == PLANS_MAX
