"""``farro cron`` at the shell: what is printed where, and with which exit code."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from farro.silo.cli.cron import cron


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cron, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_next_prints_utc_instants_strictly_after_the_start() -> None:
    result = run("next", "0 0 9 * * MON", "--from", "2026-01-05T09:00:00Z", "--count", "2")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "2026-01-12T09:00:00Z\n2026-01-19T09:00:00Z\n",
        "",
    )


def test_next_without_a_start_gives_five_future_instants() -> None:
    result = run("next", "* * * * * *")
    assert result.exit_code == 0
    assert len(set(result.stdout.split())) == 5


def test_next_takes_zone_and_day_rule() -> None:
    zone = ["--timezone", "America/New_York", "--from", "2026-03-08T05:00:00Z", "--count", "1"]
    assert run("next", "0 30 2 * * *", *zone).stdout == "2026-03-08T07:00:00Z\n"
    start = ["--from", "2026-01-01T00:00:00Z", "--count", "1"]
    assert run("next", "0 0 0 13 * FRI", *start).stdout == "2026-02-13T00:00:00Z\n"
    assert run("next", "0 0 0 13 * FRI", *start, "--day-match", "or").stdout == "2026-01-02T00:00:00Z\n"


def test_cli_001_an_impossible_date_prints_never_and_exits_with_1() -> None:
    result = run("next", "0 0 0 30 2 *")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "never\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["61 * * * * *"], "second: 61 is not in 0..59"),
        ([""], "it is empty"),
        (["0 0 0 * * *\n0 0 0 * * *"], "control character '\\n'"),
        (["1" * 5000 + " * * * * *"], "too long"),
        (["@daily", "--timezone", "Mars/Olympus"], "timezone: 'Mars/Olympus'"),
        (["@daily", "--timezone", ""], "timezone: ''"),
        (["@daily", "--from", "tomorrow"], "--from: 'tomorrow' is no ISO date and time"),
        (["@daily", "--from", ""], "--from: ''"),
        (["@daily", "--from", "10000-01-01"], "--from: '10000-01-01'"),
        (["@daily", "--from", "2026-02-30"], "--from: '2026-02-30'"),
    ],
)
def test_cli_001_bad_input_is_one_line_on_stderr_and_exit_code_2(arguments: list[str], words: str) -> None:
    result = run("next", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--count", "0"], ["--count", "x"], ["--day-match", "xor"], ["--nope"]]
)
def test_a_bad_option_is_a_usage_error(arguments: list[str]) -> None:
    result = run("next", "@daily", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert arguments[0] in result.stderr


@pytest.mark.parametrize("start", ["2026-01-01", "2026-01-01T00:00:00"])
def test_cli_004_a_start_without_a_zone_is_utc_and_says_so(start: str) -> None:
    result = run("next", "@daily", "--from", start, "--count", "1")
    assert (result.exit_code, result.stdout) == (0, "2026-01-02T00:00:00Z\n")
    assert result.stderr == "--from has no time zone; read as 2026-01-01T00:00:00+00:00\n"


def test_cli_004_a_start_with_an_offset_is_its_instant() -> None:
    result = run("next", "@hourly", "--from", "2026-01-01T00:00:00+02:00", "--count", "1")
    assert (result.stdout, result.stderr) == ("2025-12-31T23:00:00Z\n", "")


def test_cli_004_the_end_of_the_calendar_prints_no_more_and_exits_with_0() -> None:
    result = run("next", "@daily", "--from", "9999-12-31T23:59:59Z")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "no more\n", "")
    result = run("next", "@daily", "--from", "9999-12-30T12:00:00Z")
    assert (result.exit_code, result.stdout) == (0, "9999-12-31T00:00:00Z\nno more\n")


def test_next_as_json_is_one_object() -> None:
    result = run("next", " 0 0  9 * * *", "--from", "2026-01-01T00:00:00Z", "--count", "1", "--json")
    assert json.loads(result.stdout) == {
        "text": "0 0 9 * * *",
        "timezone": "UTC",
        "day_match": "and",
        "next": ["2026-01-01T09:00:00Z"],
        "never": False,
        "no_more": False,
    }
    never = run("next", "0 0 0 30 2 *", "--json")
    assert never.exit_code == 1
    assert json.loads(never.stdout)["never"] is True


def test_explain_prints_the_day_rule_in_force() -> None:
    both = run("explain", "0 0 2 1-7 * FRI")
    assert both.exit_code == 0
    assert "DAY RULE: BOTH day fields must match" in both.stdout
    assert "DAY RULE: EITHER" in run("explain", "0 0 2 1-7 * FRI", "--day-match", "or").stdout
    assert "NEVER FIRES" in run("explain", "0 0 0 30 2 *").stdout
    assert run("explain", "61 * * * * *").exit_code == 2


@pytest.mark.parametrize("command", ["next", "explain"])
def test_every_option_shows_its_default(command: str) -> None:
    help_text = run(command, "--help").stdout
    options = help_text[help_text.index("Options:") :].replace("\n", " ").split(" --")[1:-1]
    assert len(options) == {"next": 5, "explain": 2}[command]
    for option in options:
        assert "[default: " in option
