"""What a reminder asks for, as a plain value, and its grid of due instants.

One-shot: ``start_at``.  Interval: ``start_at + k · period_us``, always counted from the start, never from
now, so that nothing drifts.  Cron: the instants of the text.  All are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any

from farro.client.clock import duration_us, from_us, to_us
from farro.client.errors import InvalidSchedule
from farro.providers.rows import ReminderRow
from farro.silo.schedules.calendar import AND
from farro.silo.schedules.cron import COUNT_MAX, FIRST_US, LAST_US, SECOND_US, Cron, cron_of
from farro.silo.schedules.zones import UTC_NAME

_KINDS = "choose one: at= or after= (once), every= (an interval; at= or after= may set its start), or cron="
CALENDAR_US = LAST_US - FIRST_US  # keeps every stored duration within 64 bits, too


@dataclass(frozen=True, slots=True)
class Schedule:
    """A checked schedule.  ``start_at`` is the first grid instant; with ``at`` it may lie in the past.

    ``period_us`` and ``cron`` both None: a one-shot.  ``until_at`` is the last instant that may fall due.
    ``made_at`` is the instant it was checked against.
    """

    start_at: int
    period_us: int | None = None
    cron: str | None = None
    timezone: str = UTC_NAME
    day_match: str = AND
    until_at: int | None = None
    times_left: int | None = None
    jitter_us: int = 0
    made_at: int = field(default=FIRST_US, compare=False)

    @property
    def is_one_shot(self) -> bool:
        return self.period_us is None and self.cron is None

    @property
    def first_due_at(self) -> int:
        """When it falls due first: its start, or when it was made if the start had passed by then.

        A later look at the clock would not do: an instant that passes in between would be owed off the grid.
        """
        return max(self.start_at, self.made_at)

    @classmethod
    def of_row(cls, row: ReminderRow) -> Schedule:
        """The schedule that a stored reminder keeps; :class:`InvalidSchedule` when nobody can read it."""
        check_stored(row)
        return cls(
            row.start_at,
            row.period_us,
            row.cron,
            row.timezone,
            row.day_match,
            row.until_at,
            row.times_left,
            row.jitter_us,
        )


# What has a grid: a row says the same of it as its schedule, and every tick asks several times.
Grid = Schedule | ReminderRow


def check_stored(row: ReminderRow) -> None:
    """:class:`InvalidSchedule` when nobody can read the schedule that a row keeps."""
    if row.period_us is not None and row.period_us <= 0:
        raise InvalidSchedule(f"period: {row.period_us} µs is no stored interval; it must be positive")
    if row.cron is not None:
        cron_of(row.cron, row.timezone, row.day_match)


def make_schedule(
    *,
    now_us: int,
    at: datetime | None = None,
    after: timedelta | None = None,
    every: timedelta | None = None,
    cron: str | Cron | None = None,
    timezone: str | None = None,
    day_match: str | None = None,
    until: datetime | None = None,
    times: int | None = None,
    jitter: timedelta | None = None,
    minimum_period_us: int = SECOND_US,
) -> Schedule:
    """Check what an author asked for and lay its grid.

    Exactly one kind: ``at`` or ``after`` alone (once), ``every`` (``at`` or ``after`` set its start, by
    default one period from now), or ``cron`` (``timezone`` and ``day_match`` belong to it; None where a
    :class:`Cron` carries its own).  ``until`` is inclusive; ``times`` counts delivered ticks.  A past
    ``at`` is due now.

    Raises :class:`~farro.client.errors.InvalidSchedule` naming the argument, the rule and the way out.
    """
    if at is not None and after is not None:
        raise InvalidSchedule(f"schedule: at= and after= were both given; {_KINDS}")
    if cron is not None:
        if at is not None or after is not None or every is not None:
            raise InvalidSchedule(f"schedule: cron= was given together with at=, after= or every=; {_KINDS}")
        schedule = _cron_schedule(now_us, cron, timezone, day_match)
    else:
        if timezone is not None or day_match is not None:
            raise InvalidSchedule("schedule: timezone= and day_match= belong to cron=; leave them out")
        schedule = _timed_schedule(now_us, at, after, every, minimum_period_us)
    if until is None and times is None and jitter is None:
        return schedule
    return _limited(schedule, until, times, jitter)


def make_named_schedule(
    *,
    now_us: int,
    due: timedelta | datetime | None = None,
    period: timedelta | None = None,
    cron: str | Cron | None = None,
    timezone: str | None = None,
    day_match: str | None = None,
    minimum_period_us: int = SECOND_US,
) -> Schedule:
    """Orleans' form: first tick after (or at) ``due``, then every ``period``; without a period, once.

    Without ``due`` the first tick comes after one period.  ``cron`` takes the place of both.
    """
    if due is None and period is None and cron is None:
        raise InvalidSchedule("reminder: nothing says when; give due (and period), or cron=")
    if cron is not None and (due is not None or period is not None):
        raise InvalidSchedule("reminder: choose one: due and period, or cron=")
    at, after = (due, None) if isinstance(due, datetime) else (None, due)
    return make_schedule(
        now_us=now_us,
        at=at,
        after=after,
        every=period,
        cron=cron,
        timezone=timezone,
        day_match=day_match,
        minimum_period_us=minimum_period_us,
    )


def next_due(grid: Grid, after_us: int) -> int | None:
    """The first grid instant strictly after ``after_us``; None when the grid has none left."""
    start = grid.start_at
    if after_us < start:
        due: int | None = start
    elif grid.cron is not None:
        due = _cron_of(grid).next_us(after_us)
    elif grid.period_us is not None:
        due = start + ((after_us - start) // grid.period_us + 1) * grid.period_us
    else:
        return None
    if due is None or due > LAST_US or (grid.until_at is not None and due > grid.until_at):
        return None
    return due


def count_between(grid: Grid, after_us: int, until_us: int, cap: int = COUNT_MAX) -> int:
    """How many grid instants lie in (``after_us``, ``until_us``]; at most ``cap``.

    Arithmetic for an interval; for a cron text the cost grows with the days between, not with the instants.
    """
    start, until, after = grid.start_at, until_us, after_us
    if grid.until_at is not None and until > grid.until_at:
        until = grid.until_at
    if after < start:
        after = start - 1
    if until <= after:
        return 0
    if grid.cron is not None:
        return _cron_of(grid).count(after, until, cap)
    if grid.period_us is None:
        return 1 if after < start <= until else 0
    period, until = grid.period_us, min(until, LAST_US)
    return min((until - start) // period - (after - start) // period, cap)


def jitter_offset_us(grain_type: str, grain_key: str, name: str, occurrence: int, jitter_us: int) -> int:
    """How long after its grid instant an occurrence is delivered: [0, ``jitter_us``), alike on every silo."""
    if jitter_us <= 0:
        return 0
    identity = "\x00".join((grain_type, grain_key, name, str(occurrence))).encode()
    return int.from_bytes(blake2b(identity, digest_size=8).digest(), "big") % jitter_us


def wake_at(row: ReminderRow, due_us: int, occurrence: int) -> int:
    """When an occurrence of a reminder is to be polled: its due instant and its share of the jitter."""
    if row.jitter_us <= 0:
        return due_us
    return due_us + jitter_offset_us(row.grain_type, row.grain_key, row.name, occurrence, row.jitter_us)


def _cron_of(grid: Grid) -> Cron:
    return cron_of(grid.cron or "", grid.timezone, grid.day_match)


def _cron_schedule(now_us: int, cron: str | Cron, timezone: str | None, day_match: str | None) -> Schedule:
    if isinstance(cron, Cron):
        for name, given, own in (
            ("timezone", timezone, cron.timezone),
            ("day_match", day_match, cron.day_match),
        ):
            if given is not None and given != own:
                raise InvalidSchedule(
                    f"schedule: {name}={given!r} contradicts {own!r} of the Cron; give it once"
                )
    else:
        cron = Cron(cron, UTC_NAME if timezone is None else timezone, AND if day_match is None else day_match)
    if cron.never_fires:
        raise InvalidSchedule(
            f"cron text {cron.text!r} can never fire: {cron.never_reason}; to switch a reminder off, pause it"
        )
    start = cron.next_us(now_us)
    if start is None:
        raise InvalidSchedule(f"cron text {cron.text!r} does not fire again before the year 10000")
    return Schedule(start, None, cron.text, cron.timezone, cron.day_match, made_at=now_us)


def _timed_schedule(
    now_us: int,
    at: datetime | None,
    after: timedelta | None,
    every: timedelta | None,
    minimum_period_us: int,
) -> Schedule:
    if at is None and after is None and every is None:
        raise InvalidSchedule(f"schedule: nothing says when; {_KINDS}")
    period = None
    if every is not None:
        period = _duration("every", every)
        if period == 0:
            raise InvalidSchedule("every: a period of 0 never moves on; use after= for a single tick")
        if period < minimum_period_us:
            raise InvalidSchedule(
                f"every: {every} is shorter than the minimum period, "
                f"{timedelta(microseconds=minimum_period_us)}; faster work belongs in an "
                "asyncio task that calls the grain; or lower ReminderOptions.minimum_period"
            )
    if at is not None:
        start = _instant("at", at)
    elif after is not None:
        start = now_us + _duration("after", after)
    else:
        start = now_us + (period or 0)
    if start > LAST_US:
        raise InvalidSchedule(
            f"{'after' if after is not None else 'every'}: the first tick would fall beyond the year 9999"
        )
    return Schedule(start, period, made_at=now_us)


def _limited(
    schedule: Schedule, until: datetime | None, times: int | None, jitter: timedelta | None
) -> Schedule:
    if schedule.is_one_shot and (until is not None or times is not None):
        raise InvalidSchedule("schedule: until= and times= end a repeating schedule; add every= or cron=")
    until_at = None
    if until is not None:
        until_at = _instant("until", until)
        first = schedule.first_due_at
        if until_at < first:
            raise InvalidSchedule(
                f"until: {until.isoformat()} is before the first tick, {from_us(first).isoformat()}; "
                "nothing would ever fire"
            )
    if times is not None and (
        isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= COUNT_MAX
    ):
        raise InvalidSchedule(f"times: {times!r:.60} is no number of ticks; give an int, 1 to {COUNT_MAX}")
    jitter_us = 0 if jitter is None else _duration("jitter", jitter)
    if schedule.period_us is not None and jitter_us > schedule.period_us:
        raise InvalidSchedule(f"jitter: {jitter} is longer than the period; ticks would overtake each other")
    return replace(schedule, until_at=until_at, times_left=times, jitter_us=jitter_us)


def _instant(name: str, value: Any) -> int:
    if not isinstance(value, datetime):
        raise InvalidSchedule(
            f"{name}: a {type(value).__name__} is no instant; give an aware datetime, e.g. datetime.now(UTC)"
        )
    if value.utcoffset() is None:
        raise InvalidSchedule(f"{name}: {value.isoformat()} has no time zone; give an aware datetime")
    instant = to_us(value)
    if not FIRST_US <= instant <= LAST_US:
        raise InvalidSchedule(f"{name}: {value.isoformat()} lies outside the years 1 to 9999 in UTC")
    return instant


def _duration(name: str, value: Any) -> int:
    if not isinstance(value, timedelta):
        hint = f"timedelta(seconds={value})" if type(value) in (int, float) else "timedelta(minutes=5)"
        raise InvalidSchedule(
            f"{name}: a {type(value).__name__} is no duration; write a timedelta, e.g. {hint}"
        )
    if value < timedelta(0):
        raise InvalidSchedule(f"{name}: {value} is negative; give a timedelta of 0 or more")
    duration = duration_us(value)
    if duration > CALENDAR_US:
        raise InvalidSchedule(f"{name}: {value.days} days reach beyond the year 9999; give a shorter one")
    return duration
