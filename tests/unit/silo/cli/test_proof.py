"""The demo's proof holds for a true history, and fails for each way a history can be wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farro.client.clock import to_us
from farro.providers.rows import ReminderRow
from farro.silo.cli.demo import proof
from farro.silo.cli.demo.crontabs import CrontabLine, crontab_lines
from farro.silo.cli.demo.grains import Account, Runs
from farro.silo.schedules.cron import Cron

START = datetime(2026, 2, 28, tzinfo=UTC)
HOURS = [START + timedelta(hours=number) for number in range(1, 11)]
HORIZON = START + timedelta(hours=10)
LINE = CrontabLine("line-001", "0 * * * *", "a test", START, tuple(HOURS[:3]))


def row(last: datetime, due: datetime) -> ReminderRow:
    return ReminderRow(
        "demo.cron-jobs", "line-001", 0, "run", "run", None, b"", to_us(HOURS[0]), None, "0 * * * *", "UTC",
        "and", None, None, 0, to_us(due), to_us(due), to_us(last), 1, 3, 1, 11,
    )  # fmt: skip


def history(ran: list[datetime], *, passed_over: int = 0, due: datetime | None = None) -> proof.OnFile:
    runs = Runs([to_us(at) for at in ran], passed_over)
    stands = row(HOURS[-1], due or HORIZON + timedelta(hours=1))
    return proof.OnFile({"line-001": runs}, {"line-001": stands}, {}, {})


def judged(file: proof.OnFile) -> proof.Verdict:
    return proof.verdict([LINE], file, HORIZON)


def test_a_true_history_is_proven() -> None:
    found = judged(history(HOURS))
    assert found.holds
    assert (found.due, found.counted, found.recorded, found.off_record) == (10, 10, 3, 0)


@pytest.mark.parametrize("missing", range(10))
def test_any_one_tick_that_is_missing_is_lost(missing: int) -> None:
    found = judged(history(HOURS[:missing] + HOURS[missing + 1 :]))
    assert (found.lost, found.holds) == (1, False)


def test_a_tick_that_was_counted_twice_is_found() -> None:
    found = judged(history([*HOURS, HOURS[4]]))
    assert (found.twice, found.lost, found.holds) == (1, 0, False)


def test_a_lost_one_and_a_doubled_one_do_not_cancel_out() -> None:
    found = judged(history([HOURS[1], *HOURS[1:]]))
    assert (found.counted, found.lost, found.twice, found.holds) == (10, 1, 1, False)


def test_a_tick_that_nobody_asked_for_is_found() -> None:
    found = judged(history([*HOURS, HOURS[4] + timedelta(minutes=1)]))
    assert (found.uncalled_for, found.holds) == (1, False)


def test_a_failed_proof_names_the_job_and_the_instants() -> None:
    assert judged(history(HOURS)).faults == ()
    (fault,) = judged(history([*HOURS[:4], HOURS[4] + timedelta(minutes=1), *HOURS[5:]])).faults
    assert fault.startswith("line-001 '0 * * * *'")
    assert f"not counted {HOURS[4]};" in fault
    assert fault.endswith(f"owed {HOURS[4] + timedelta(minutes=1)}")


def test_a_reminder_that_does_not_go_on_is_found() -> None:
    assert judged(history(HOURS, due=HORIZON)).stuck == 1
    file = history(HOURS)
    gone = proof.OnFile(file.ran, {}, {}, {})
    assert (judged(gone).stuck, judged(gone).holds) == (1, False)


def test_what_the_bound_passed_over_is_not_lost_as_long_as_it_was_counted() -> None:
    found = judged(history(HOURS[:4] + HOURS[6:], passed_over=2))
    assert (found.lost, found.passed_over, found.holds) == (0, 2, True)
    assert judged(history(HOURS[:4] + HOURS[7:], passed_over=2)).lost == 1


def test_an_empty_history_proves_nothing() -> None:
    assert not proof.verdict([], proof.OnFile({}, {}, {}, {}), HORIZON).holds


def test_renewals_are_held_against_their_grid() -> None:
    stands = replace(row(HOURS[-1], HORIZON), period_us=3_600_000_000, cron=None)
    grid = [to_us(at) for at in HOURS]
    assert proof.renewal_faults(Account("active", grid), stands) == 0
    assert proof.renewal_faults(Account("active", grid[1:]), stands) == 1
    assert proof.renewal_faults(Account("active", [*grid, grid[0]]), stands) == 1
    assert proof.renewal_faults(Account("active", grid), None) == 1


def test_the_journal_counts_how_often_each_tick_began(tmp_path: Path) -> None:
    journal = tmp_path / "begun.txt"
    assert proof.begun(journal).total() == 0
    journal.write_text("line-001 5\nline-002 5\nline-001 5\n")
    assert proof.begun(journal) == {("line-001", 5): 2, ("line-002", 5): 1}


def test_every_shipped_crontab_line_has_the_instants_on_record() -> None:
    lines = crontab_lines()
    assert len(lines) > 150 and len({line.key for line in lines}) == len(lines)
    for line in lines:
        at, found = line.recorded_after, []
        for _ in range(3):
            upcoming = Cron(line.expression).next(at)
            if upcoming is None:
                break
            found.append(upcoming)
            at = upcoming
        assert tuple(found) == line.recorded, line
    assert sum(1 for line in lines if not line.recorded) == 2, "two lines can never fire"
