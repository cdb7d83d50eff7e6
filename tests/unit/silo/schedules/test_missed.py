"""The judgement of late, missed and overrun occurrences, and what each settle leaves behind."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.client.clock import to_us
from farro.client.errors import InvalidSchedule
from farro.client.reminders import MissedReminderAction
from farro.providers.conformance.made import a_reminder
from farro.providers.rows import FAILED, PAUSED, SCHEDULED, Progress, ReminderRow
from farro.silo.schedules.missed import (
    Deliver,
    Judgement,
    Overrun,
    Skip,
    judge,
    overrun,
    progress_of,
    recompute,
    settle_delivered,
    settle_failed,
)
from farro.silo.schedules.schedule import Schedule, wake_at

ONE, SKIP, NOTIFY, ALL = MissedReminderAction
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
GRACE = 30 * SECOND
CATCH_UP = 100
LONG_AGO = to_us(datetime(2020, 1, 1, tzinfo=UTC))


def at(text: str) -> int:
    """Microseconds of a time on 2026-07-01, or of a full date."""
    full = text if "-" in text else f"2026-07-01T{text}"
    return to_us(datetime.fromisoformat(full + "+00:00"))


def reminder(due: int, action: MissedReminderAction = ONE, **changes: Any) -> ReminderRow:
    row = a_reminder(
        "s-1", start_at=due, period_us=None, next_due_at=due, wake_at=due, action=action, occurrence=0
    )
    return replace(row, **changes)


def judged(row: ReminderRow, now: int, alive_until: int | None, began: int) -> Judgement:
    return judge(
        row,
        now=now,
        grace_us=GRACE,
        alive_until=alive_until,
        ownership_began=began,
        catch_up_max=CATCH_UP,
    )


def alive(row: ReminderRow, now: int) -> Judgement:
    """Judged by an owner that has lived all along."""
    return judged(row, now, LONG_AGO, LONG_AGO)


def delivered(judgement: Judgement) -> Deliver:
    assert isinstance(judgement, Deliver)
    return judgement


def skipped(judgement: Judgement) -> Skip:
    assert isinstance(judgement, Skip)
    return judgement


def moved(row: ReminderRow, progress: Progress | None) -> ReminderRow:
    """The row as the store leaves it after a settle."""
    assert progress is not None
    fields = (
        "next_due_at wake_at last_fire_at occurrence times_left attempts missed_count first_missed_at "
        "catch_up_left status note"
    )
    return replace(row, **{name: getattr(progress, name) for name in fields.split()})


def settled(row: ReminderRow, judgement: Deliver, finished: int) -> ReminderRow:
    return moved(row, settle_delivered(row, judged=judgement, finished_at=finished, catch_up_max=CATCH_UP))


def test_rem_001_less_than_the_grace_is_late_and_keeps_the_grid() -> None:
    row = reminder(at("12:01:00"), SKIP, period_us=10 * MINUTE)
    # even an owner that has only just come
    tick = delivered(judged(row, at("12:01:05"), at("11:00:00"), at("12:01:04")))
    assert (tick.due_at, tick.missed_count) == (at("12:01:00"), 0)
    after = settled(row, tick, at("12:01:05"))
    assert (after.next_due_at, after.wake_at) == (at("12:11:00"), at("12:11:00"))
    assert after.last_fire_at == at("12:01:00")
    assert after.occurrence == 1


def test_rem_008_handlers_that_take_time_do_not_move_the_grid() -> None:
    row, dues = reminder(at("12:01:00"), period_us=MINUTE), []
    for _ in range(3):
        assert row.next_due_at is not None
        dues.append(row.next_due_at)
        tick = delivered(alive(row, row.next_due_at))
        row = settled(row, tick, row.next_due_at + 7 * SECOND)
    assert dues == [at("12:01:00"), at("12:02:00"), at("12:03:00")]


def test_rem_009_a_stopped_process_owes_one_tick_that_counts_the_rest() -> None:
    row = reminder(at("12:00:00"), ONE, period_us=SECOND)
    tick = delivered(alive(row, at("12:00:09.5")))
    assert (tick.due_at, tick.missed_count, tick.first_missed_at) == (at("12:00:00"), 9, at("12:00:01"))
    after = settled(row, tick, at("12:00:09.6"))
    assert (after.next_due_at, after.missed_count) == (at("12:00:10"), 0)


def test_rem_015_skip_passes_over_what_a_long_handler_overran() -> None:
    row, starts = reminder(at("12:00:00"), SKIP, period_us=10 * SECOND), []
    for _ in range(3):
        start = row.next_due_at
        assert start is not None
        starts.append(start - at("12:00:00"))
        tick = delivered(alive(row, start))
        assert overrun(row, judged=tick, finished_at=start + 35 * SECOND) == Overrun(
            3, start + 10 * SECOND, notify=False
        )
        row = settled(row, tick, start + 35 * SECOND)
        assert (row.missed_count, row.first_missed_at) == (3, start + 10 * SECOND)
    assert starts == [0, 40 * SECOND, 80 * SECOND]


def test_an_instant_that_a_run_ends_on_counts_as_overrun() -> None:
    row = reminder(at("12:00:00"), SKIP, period_us=10 * SECOND)
    tick = delivered(alive(row, at("12:00:00")))
    assert overrun(row, judged=tick, finished_at=at("12:00:10")) == Overrun(1, at("12:00:10"), notify=False)
    after = settled(row, tick, at("12:00:10"))
    assert (after.next_due_at, after.missed_count) == (at("12:00:20"), 1)


def test_a_tick_after_skipped_ones_carries_their_count() -> None:
    row = reminder(at("12:00:00"), SKIP, period_us=10 * SECOND)
    row = settled(row, delivered(alive(row, at("12:00:00"))), at("12:00:35"))
    tick = delivered(alive(row, at("12:00:40")))
    assert (tick.missed_count, tick.first_missed_at) == (3, at("12:00:10"))
    assert settled(row, tick, at("12:00:41")).missed_count == 0


def test_fire_immediately_owes_one_tick_for_all_that_a_long_handler_overran() -> None:
    row = reminder(at("12:00:00"), ONE, period_us=10 * SECOND)
    row = settled(row, delivered(alive(row, at("12:00:00"))), at("12:00:35"))
    assert row.next_due_at == at("12:00:10")
    tick = delivered(alive(row, at("12:00:35")))
    assert (tick.due_at, tick.missed_count, tick.first_missed_at) == (at("12:00:10"), 2, at("12:00:20"))
    assert overrun(row, judged=tick, finished_at=at("12:00:36")) is None
    assert settled(row, tick, at("12:00:36")).next_due_at == at("12:00:40")


def test_notify_reports_what_a_long_handler_overran() -> None:
    row = reminder(at("12:00:00"), NOTIFY, period_us=10 * SECOND)
    tick = delivered(alive(row, at("12:00:00")))
    assert overrun(row, judged=tick, finished_at=at("12:00:09")) is None
    assert overrun(row, judged=tick, finished_at=at("12:00:20")) == Overrun(2, at("12:00:10"), notify=True)


def test_rem_016_a_start_within_the_down_time_follows_the_action() -> None:
    down = {"alive_until": at("12:00:00"), "began": at("12:30:00")}
    row = reminder(at("12:05:00"), ONE, period_us=HOUR)
    tick = delivered(judged(row, at("12:30:00"), **down))
    assert (tick.missed_count, tick.first_missed_at) == (1, at("12:05:00"))
    assert settled(row, tick, at("12:30:01")).next_due_at == at("13:05:00")
    for action in (SKIP, NOTIFY):
        skip = skipped(judged(replace(row, action=action), at("12:30:00"), **down))
        assert skip.progress is not None
        assert skip.progress.next_due_at == at("13:05:00")
        assert (skip.missed, skip.first_missed_at, skip.notify) == (1, at("12:05:00"), action == NOTIFY)


def test_rem_017_a_week_s_outage_is_one_tick() -> None:
    monday, sunday = at("2026-06-29T08:00:00"), at("2026-07-05T09:00:00")
    row = reminder(monday, ONE, cron="0 0 8 * * *")
    tick = delivered(judged(row, sunday, monday - HOUR, sunday))
    assert (tick.missed_count, tick.first_missed_at) == (7, monday)
    assert settled(row, tick, sunday + SECOND).next_due_at == at("2026-07-06T08:00:00")


def test_rem_018_and_019_skip_and_notify_pass_over_the_outage_once() -> None:
    for action in (SKIP, NOTIFY):
        row = reminder(at("12:05:00"), action, cron="0 */5 * * * *", last_fire_at=at("12:00:00"))
        skip = skipped(judged(row, at("13:02:00"), at("12:01:00"), at("13:02:00")))
        assert (skip.missed, skip.first_missed_at, skip.notify) == (12, at("12:05:00"), action == NOTIFY)
        after = moved(row, skip.progress)
        assert (after.next_due_at, after.wake_at) == (at("13:05:00"), at("13:05:00"))
        assert after.last_fire_at == at("12:00:00")
        assert (after.missed_count, after.first_missed_at) == (12, at("12:05:00"))


def test_rem_023_a_row_without_a_next_due_goes_to_its_next_grid_instant() -> None:
    friday = at("2026-07-03T15:00:00")
    row = reminder(
        friday - 40 * DAY,
        SKIP,
        cron="0 0 0 ? * SUN",
        next_due_at=None,
        wake_at=None,
        last_fire_at=friday - 19 * DAY,
    )
    progress = recompute(row, now=friday)
    assert progress is not None
    assert (progress.next_due_at, progress.status) == (at("2026-07-05T00:00:00"), SCHEDULED)
    assert progress.last_fire_at == friday - 19 * DAY


def test_rem_027_a_sleeping_machine_is_absence() -> None:
    row = reminder(at("12:01:00"), SKIP, period_us=MINUTE)
    skip = skipped(judged(row, at("12:30:00.5"), at("12:00:10"), at("12:30:00.5")))
    assert skip.missed == 30
    assert skip.progress is not None
    assert skip.progress.next_due_at == at("12:31:00")


def test_rem_028_a_clock_stepped_forward_applies_the_action() -> None:
    row = reminder(at("12:04:00"), SKIP, period_us=DAY)
    skip = skipped(judged(row, at("14:00:20"), at("12:01:00"), at("14:00:00")))
    assert (skip.missed, skip.first_missed_at) == (1, at("12:04:00"))


def test_rem_065_a_handler_done_a_moment_later_does_not_fire_again() -> None:
    row = reminder(at("12:00:00"), period_us=MINUTE)
    assert settled(row, delivered(alive(row, at("12:00:00"))), at("12:00:00.0004")).next_due_at == at(
        "12:01:00"
    )


def test_load_never_makes_an_occurrence_missed() -> None:
    for action in MissedReminderAction:
        row = reminder(at("12:00:00"), action, period_us=DAY)
        tick = delivered(alive(row, at("20:00:00")))
        assert (tick.due_at, tick.missed_count) == (at("12:00:00"), 0)


@pytest.mark.parametrize(
    ("now", "alive_until", "began", "missed"),
    [
        ("12:00:30", "11:00:00", "12:00:20", False),  # overdue by the grace exactly
        ("12:00:31", "11:00:00", "12:00:20", True),
        ("12:10:00", "11:59:30", "12:05:00", False),  # the owner died within the grace before: it may have it
        ("12:10:00", "11:59:29", "12:05:00", True),
        ("12:10:00", "11:00:00", "12:00:00", False),  # this ownership had begun when it fell due
        ("12:10:00", "11:00:00", "12:00:01", True),
    ],
)
def test_missed_needs_the_grace_an_absent_owner_and_an_earlier_due(
    now: str, alive_until: str, began: str, missed: bool
) -> None:
    row = reminder(at("12:00:00"), SKIP, period_us=DAY)
    judgement = judged(row, at(now), at(alive_until), at(began))
    assert isinstance(judgement, Skip) is missed


def test_a_partition_that_never_had_an_owner_was_absent_for_ever() -> None:
    row = reminder(at("12:00:00"), SKIP, period_us=DAY)
    assert isinstance(judged(row, at("12:10:00"), None, at("12:05:00")), Skip)
    assert isinstance(judged(row, at("12:10:00"), None, at("11:00:00")), Deliver)


def test_jitter_counts_as_part_of_the_due_instant() -> None:
    row = reminder(at("12:00:00"), SKIP, period_us=DAY, jitter_us=HOUR)
    wakes = wake_at(row, at("12:00:00"), 0)
    assert wakes - at("12:00:00") > 2 * MINUTE
    # the owner came back after the grid instant and before the jittered one: nothing was missed
    assert isinstance(judged(row, wakes + MINUTE, at("11:00:00"), at("12:01:00")), Deliver)
    assert isinstance(judged(row, wakes + MINUTE, at("11:00:00"), wakes + 1), Skip)


def test_the_next_occurrence_wakes_with_its_own_jitter() -> None:
    row = reminder(at("12:00:00"), period_us=DAY, jitter_us=HOUR)
    after = settled(row, delivered(alive(row, at("12:59:00"))), at("12:59:01"))
    assert after.next_due_at == at("12:00:00") + DAY
    assert after.wake_at == wake_at(row, at("12:00:00") + DAY, 1)
    assert after.wake_at != after.next_due_at


def catch_up(row: ReminderRow, now: int, alive_until: int, maximum: int) -> tuple[list[int], ReminderRow]:
    """Deliver instant after instant until the grid is in the future; every row passes through a crash."""
    fired: list[int] = []
    while row.next_due_at is not None and row.next_due_at <= now and len(fired) < 1000:
        judgement = judge(
            row, now=now, grace_us=GRACE, alive_until=alive_until, ownership_began=now, catch_up_max=maximum
        )
        tick = delivered(judgement)
        fired.append(tick.due_at)
        row = moved(row, settle_delivered(row, judged=tick, finished_at=now, catch_up_max=maximum))
    return fired, row


def test_fire_all_delivers_each_in_order() -> None:
    row = reminder(at("12:05:00"), ALL, period_us=5 * MINUTE)
    fired, after = catch_up(row, at("13:02:00"), at("12:01:00"), CATCH_UP)
    assert fired == [at("12:05:00") + k * 5 * MINUTE for k in range(12)]
    assert (after.next_due_at, after.catch_up_left, after.missed_count) == (at("13:05:00"), None, 0)


def test_fire_all_stops_at_its_bound_and_counts_the_rest() -> None:
    row = reminder(at("12:00:00"), ALL, period_us=SECOND)
    now = at("12:04:09.5")  # 250 instants
    fired, after = catch_up(row, now, at("11:00:00"), 100)
    assert len(fired) == 100
    assert (after.missed_count, after.first_missed_at) == (150, at("12:01:40"))
    assert (after.next_due_at, after.catch_up_left) == (at("12:04:10"), None)


def test_fire_all_s_bound_is_stored_so_that_a_crash_does_not_renew_it() -> None:
    row = reminder(at("12:00:00"), ALL, period_us=SECOND)
    now = at("12:04:00")
    left = []
    for _ in range(3):
        tick = delivered(judged(row, now, at("11:00:00"), now))
        row = settled(row, tick, now)
        left.append(row.catch_up_left)
    assert left == [99, 98, 97]
    # another owner, who finds the row after another outage
    tick = delivered(judged(row, now + HOUR, now, now + HOUR))
    assert tick.catch_up_left == 96


def test_fire_all_catches_up_on_overruns_too() -> None:
    row = reminder(at("12:00:00"), ALL, period_us=10 * SECOND)
    row = settled(row, delivered(alive(row, at("12:00:00"))), at("12:00:25"))
    assert (row.next_due_at, row.catch_up_left) == (at("12:00:10"), CATCH_UP)
    row = settled(row, delivered(alive(row, at("12:00:25"))), at("12:00:26"))
    assert (row.next_due_at, row.catch_up_left) == (at("12:00:20"), CATCH_UP - 1)
    row = settled(row, delivered(alive(row, at("12:00:26"))), at("12:00:27"))
    assert (row.next_due_at, row.catch_up_left) == (at("12:00:30"), None)


def test_fire_all_with_a_bound_of_none_left_skips() -> None:
    row = reminder(at("12:00:00"), ALL, period_us=MINUTE, catch_up_left=0)
    skip = skipped(judged(row, at("12:10:30"), at("11:00:00"), at("12:10:00")))
    assert (skip.missed, skip.notify) == (11, False)
    assert skip.progress is not None
    assert (skip.progress.next_due_at, skip.progress.catch_up_left) == (at("12:11:00"), None)


def test_a_one_shot_is_delivered_once_however_long_nobody_was_there() -> None:
    for action in (ONE, ALL):
        row = reminder(at("12:00:00"), action, catch_up_left=0 if action == ALL else None)
        tick = delivered(judged(row, at("2026-09-01T00:00:00"), at("11:00:00"), at("2026-09-01T00:00:00")))
        done = settle_delivered(
            row, judged=tick, finished_at=at("2026-09-01T00:00:01"), catch_up_max=CATCH_UP
        )
        assert done is None


def test_a_one_shot_is_skipped_only_where_skip_was_asked_for() -> None:
    for action in (SKIP, NOTIFY):
        row = reminder(at("12:00:00"), action)
        skip = skipped(judged(row, at("13:00:00"), at("11:00:00"), at("12:59:00")))
        assert (skip.progress, skip.missed, skip.notify) == (None, 1, action == NOTIFY)


def test_times_counts_delivered_ticks_only() -> None:
    row = reminder(at("12:00:00"), SKIP, period_us=MINUTE, times_left=2)
    skip = skipped(judged(row, at("12:05:30"), at("11:00:00"), at("12:05:20")))
    row = moved(row, skip.progress)
    assert (row.times_left, row.missed_count) == (2, 6)
    row = settled(row, delivered(alive(row, at("12:06:00"))), at("12:06:01"))
    assert row.times_left == 1
    tick = delivered(alive(row, at("12:07:00")))
    assert settle_delivered(row, judged=tick, finished_at=at("12:07:01"), catch_up_max=CATCH_UP) is None


def test_a_reminder_whose_until_has_passed_is_finished() -> None:
    row = reminder(at("12:00:00"), SKIP, period_us=MINUTE, until_at=at("12:02:00"))
    assert settled(row, delivered(alive(row, at("12:01:00"))), at("12:01:30")).next_due_at == at("12:02:00")
    tick = delivered(alive(replace(row, next_due_at=at("12:02:00")), at("12:02:00")))
    assert settle_delivered(row, judged=tick, finished_at=at("12:02:01"), catch_up_max=CATCH_UP) is None
    overrunning = delivered(alive(row, at("12:00:00")))
    assert (
        settle_delivered(row, judged=overrunning, finished_at=at("12:09:00"), catch_up_max=CATCH_UP) is None
    )
    skip = skipped(judged(row, at("12:30:00"), at("11:00:00"), at("12:29:00")))
    assert (skip.progress, skip.missed) == (None, 3)


def test_a_clock_set_back_repeats_nothing() -> None:
    for action in MissedReminderAction:
        row = reminder(at("12:00:00"), action, period_us=MINUTE)
        tick = delivered(alive(row, at("12:00:00")))
        after = settled(row, tick, at("10:00:00"))
        assert (after.next_due_at, after.last_fire_at) == (at("12:01:00"), at("12:00:00"))
        progress = recompute(replace(after, next_due_at=None), now=at("10:00:00"))
        assert progress is not None
        assert progress.next_due_at == at("12:01:00")


def test_a_settle_keeps_nothing_of_past_failures() -> None:
    row = reminder(
        at("12:00:00"), period_us=MINUTE, attempts=3, note="attempt 3 of 5 failed: no", wake_at=at("12:00:09")
    )
    after = settled(row, delivered(alive(row, at("12:00:09"))), at("12:00:10"))
    assert (after.attempts, after.note, after.wake_at) == (0, None, at("12:01:00"))


def failed(row: ReminderRow, now: int, chance: Random | None = None) -> ReminderRow:
    progress = settle_failed(
        row, now=now, max_attempts=5, chance=chance or Random(1), reason="ValueError: no\ncarrier"
    )
    return moved(row, progress)


def test_a_failed_tick_is_tried_again_with_back_off_and_keeps_what_it_owes() -> None:
    row, waits = reminder(at("12:00:00"), period_us=HOUR, missed_count=2, catch_up_left=9), []
    for attempt in range(1, 5):
        now = at("12:00:00") + attempt * MINUTE
        row = failed(row, now)
        assert row.wake_at is not None
        waits.append((row.wake_at - now) / SECOND)
        assert (row.next_due_at, row.occurrence, row.attempts) == (at("12:00:00"), 0, attempt)
        assert (row.missed_count, row.catch_up_left, row.status) == (2, 9, SCHEDULED)
        assert row.note == f"attempt {attempt} of 5 failed: ValueError: no carrier"
    for wait, longest in zip(waits, (1, 2, 4, 8), strict=True):
        assert longest / 2 <= wait <= longest


def test_the_back_off_never_exceeds_five_minutes_and_is_not_the_same_for_all() -> None:
    row = reminder(at("12:00:00"), period_us=DAY, attempts=60)
    waits = set()
    for seed in range(50):
        progress = settle_failed(row, now=0, max_attempts=100, chance=Random(seed), reason="no")
        assert progress.wake_at is not None
        assert 150 * SECOND <= progress.wake_at <= 300 * SECOND
        waits.add(progress.wake_at)
    assert len(waits) > 40


def test_a_repeating_reminder_goes_on_after_its_last_attempt() -> None:
    row = reminder(at("12:00:00"), period_us=10 * SECOND, attempts=4, last_fire_at=at("11:59:50"))
    after = failed(row, at("12:00:33"))
    assert (after.next_due_at, after.wake_at) == (at("12:00:40"), at("12:00:40"))
    assert (after.attempts, after.occurrence, after.status) == (0, 1, SCHEDULED)
    assert (after.missed_count, after.first_missed_at) == (3, at("12:00:10"))
    assert after.last_fire_at == at("11:59:50")
    assert after.note == "gave up after 5 attempts: ValueError: no carrier"


def test_a_one_shot_that_fails_to_the_end_stays_visible_as_failed() -> None:
    row = failed(reminder(at("12:00:00"), attempts=4), at("12:00:33"))
    assert (row.status, row.wake_at, row.next_due_at, row.attempts) == (FAILED, None, at("12:00:00"), 5)
    assert row.note == "gave up after 5 attempts: ValueError: no carrier"


def test_a_reminder_whose_grid_ended_with_a_failure_is_failed_not_gone() -> None:
    row = reminder(at("12:00:00"), period_us=MINUTE, until_at=at("12:00:30"), attempts=4)
    assert failed(row, at("12:00:10")).status == FAILED


def test_recomputing_a_one_shot_gives_its_own_instant_until_it_has_fired() -> None:
    row = reminder(at("12:00:00"), next_due_at=None, status=PAUSED)
    progress = recompute(row, now=at("15:00:00"))
    assert progress is not None
    assert (progress.next_due_at, progress.status) == (at("12:00:00"), SCHEDULED)
    assert recompute(replace(row, last_fire_at=at("12:00:00")), now=at("15:00:00")) is None


def test_a_row_that_owes_nothing_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="'chase' of shipments/s-1 owes no occurrence"):
        alive(reminder(at("12:00:00"), next_due_at=None), at("12:00:00"))


def test_an_unreadable_cron_or_zone_in_a_row_is_an_invalid_schedule() -> None:
    row = reminder(at("12:00:00"))
    for broken in (replace(row, cron="garbage"), replace(row, cron="@daily", timezone="Mars/X")):
        with pytest.raises(InvalidSchedule):
            alive(broken, at("12:00:01"))


def test_the_progress_of_a_row_is_all_that_delivery_moves() -> None:
    row = reminder(
        at("12:00:00"), occurrence=4, times_left=3, attempts=2, missed_count=5, first_missed_at=9,
        catch_up_left=1, status=PAUSED, note="why",
    )  # fmt: skip
    assert moved(reminder(1), progress_of(row)).note == "why"
    assert moved(row, progress_of(row)) == row
    assert Schedule.of_row(row).times_left == 3


@given(
    st.sampled_from(list(MissedReminderAction)),
    st.integers(1, 50),
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.lists(st.integers(0, 400), min_size=1, max_size=30),
)
def test_every_grid_instant_is_delivered_folded_or_counted_exactly_once(
    action: MissedReminderAction, period: int, died: int, down: int, handler_seconds: list[int]
) -> None:
    """Through an outage and slow handlers nothing is lost, nothing is early, nothing comes twice."""
    grid = range(0, 1 << 40, period)
    row = reminder(0, action, period_us=period * SECOND)
    now, alive_until, began = died + down, died, died + down
    accounted: list[int] = []
    for seconds in handler_seconds:
        assert row.next_due_at is not None
        now = max(now, -(-(row.wake_at or 0) // SECOND))
        judgement = judge(
            row, now=now * SECOND, grace_us=GRACE, alive_until=alive_until * SECOND,
            ownership_began=began * SECOND, catch_up_max=3,
        )  # fmt: skip
        due = row.next_due_at // SECOND
        if isinstance(judgement, Skip):
            accounted += [i for i in grid[due // period : now // period + 1]]
            assert judgement.missed == now // period - due // period + 1
            row = moved(row, judgement.progress)
            continue
        assert judgement.due_at <= now * SECOND
        folded = judgement.folded_until // SECOND
        accounted += [i for i in grid[due // period : folded // period + 1]]
        now += seconds
        row = moved(row, settle_delivered(row, judged=judgement, finished_at=now * SECOND, catch_up_max=3))
        assert row.next_due_at is not None
        passed = row.next_due_at // SECOND // period - folded // period - 1
        assert row.missed_count == passed
        accounted += [i for i in grid[folded // period + 1 : folded // period + 1 + passed]]
    assert accounted == list(grid[: len(accounted)])
