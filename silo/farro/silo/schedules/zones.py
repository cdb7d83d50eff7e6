"""Wall seconds onto instants, through the time zones of the IANA database.

Instants here are whole seconds since the epoch, UTC.  Three things can be true of a wall second: it happens
once; it happens twice (an autumn overlap; the first pass has the larger offset); it never happens (a spring
gap).  A wall in a gap is due when the gap ends, a wall in an overlap at its first pass, and the second pass
belongs to interval expressions only (Cronos' rules).

``zoneinfo`` tells offsets, not transitions, so the instant of a switch is bisected from the offsets on both
sides of the wall in question.  A shift may be of any length up to a day, in seconds; two switches of one zone
are further apart than a day.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]

from farro.client.errors import InvalidSchedule
from farro.silo.schedules.calendar import DAY_S, FIRST_WALL, LAST_WALL, Plan

UTC_NAME = "UTC"
ZONES_MAX = 1_024  # the database has about 600 names
COUNTED_SINGLY_S = 60  # around a switch, halving ends here
STRETCH_DAYS = 16  # most stretches hold no switch
QUIET_STRETCHES_MAX = 4_096  # every zone for the days that matter now; an entry takes about 200 bytes

# The packaged database, never the machine's: all silos of a service lay the same grid, its version is known,
# and what else a system keeps beside its zones (localtime, right/…) cannot be named.
ZONES_VERSION: str = tzdata.IANA_VERSION
_DATABASE = files("tzdata")
# Read when this file is imported, so that refusing a name costs no file access at all.
ZONE_NAMES = frozenset(_DATABASE.joinpath("zones").read_text("utf-8").split()) - {"Factory"}
_EPOCH = datetime(1970, 1, 1)
# Two days from both ends of datetime's calendar no shift of at most a day can leave it.
_FIRST_SAFE, _LAST_SAFE = FIRST_WALL + 2 * DAY_S, LAST_WALL - 2 * DAY_S


@lru_cache(ZONES_MAX)
def zone_of(name: str) -> ZoneInfo:
    """The zone of that name.  Raises :class:`InvalidSchedule` for any other text, and opens no file then."""
    if name in ZONE_NAMES:
        with _DATABASE.joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
            return ZoneInfo.from_file(rules, key=name)
    alike = next((known for known in ZONE_NAMES if known.lower() == name.lower()), "Europe/Berlin")
    raise InvalidSchedule(
        f"timezone: {name[:60]!a} is not a time zone of the IANA database; write a name such as {alike!r}"
    )


class Overlap(NamedTuple):
    """Walls in [``begin``, ``end``) happen twice: at wall - ``early`` and then at wall - ``late``."""

    begin: int
    end: int
    early: int
    late: int


def next_instant(plan: Plan, zone: ZoneInfo, after: int) -> int | None:
    """The first instant strictly after ``after`` at which the plan is due; None when there is none."""
    quiet = _quiet_offset(zone, after)
    if quiet is not None:
        return _first_pass(plan, zone, after + quiet + 1)
    offset, second_pass = _offset_at(zone, after)
    wall = after + offset
    overlap = _overlap_at(zone, wall)
    if overlap is None:
        return _first_pass(plan, zone, wall + 1)
    if not second_pass:
        due = plan.next_wall(wall + 1)
        if due is not None and due < overlap.end:
            return due - overlap.early
        wall = overlap.begin - 1
    if plan.interval:
        due = plan.next_wall(wall + 1)
        if due is not None and due < overlap.end:
            return due - overlap.late
    return _first_pass(plan, zone, overlap.end)


def count_instants(plan: Plan, zone: ZoneInfo, after: int, until: int, limit: int) -> int:
    """How many due instants lie in (``after``, ``until``]; at most ``limit``.

    Days on which the offset does not change are counted on the wall; only around a switch is it step by step.
    """
    total = 0
    while after < until and total < limit:
        day_end = min(until, after + DAY_S)
        total += _count_within_a_day(plan, zone, after, day_end)
        after = day_end
    return min(total, limit)


def _count_within_a_day(plan: Plan, zone: ZoneInfo, after: int, until: int) -> int:
    offset, second_pass = _offset_at(zone, after)
    if offset == _offset_at(zone, until)[0] and (plan.interval or not second_pass):
        return plan.count(after + offset, until + offset)
    if until - after > COUNTED_SINGLY_S:
        middle = (after + until) // 2
        return _count_within_a_day(plan, zone, after, middle) + _count_within_a_day(plan, zone, middle, until)
    total = 0
    due = next_instant(plan, zone, after)
    while due is not None and due <= until:
        total += 1
        due = next_instant(plan, zone, due)
    return total


def _first_pass(plan: Plan, zone: ZoneInfo, wall: int) -> int | None:
    """The instant of the first matching wall second at or after ``wall``."""
    due = plan.next_wall(wall)
    if due is None:
        return None
    quiet = _quiet_offset(zone, due)
    if quiet is not None:
        return due - quiet
    early, late = _offsets_on(zone, due)
    if early >= late:
        return due - early
    return _switch(zone, due - late, due - early, late)


def _quiet_offset(zone: ZoneInfo, second: int) -> int | None:
    """The offset around an instant or wall second that is far from any switch, else None."""
    return _quiet_stretch(zone, second // (STRETCH_DAYS * DAY_S))


@lru_cache(QUIET_STRETCHES_MAX)
def _quiet_stretch(zone: ZoneInfo, stretch: int) -> int | None:
    """The one offset of a stretch of days, or None when a switch is in it or near: makes ordinary days cheap.

    Two days on either side leave room for the offset itself and for a shift of a whole day.
    """
    first = stretch * STRETCH_DAYS
    offsets = {_offset_at(zone, day * DAY_S)[0] for day in range(first - 2, first + STRETCH_DAYS + 3)}
    return offsets.pop() if len(offsets) == 1 else None


def _overlap_at(zone: ZoneInfo, wall: int) -> Overlap | None:
    early, late = _offsets_on(zone, wall)
    if early <= late:
        return None
    switch = _switch(zone, wall - early, wall - late, late)
    return Overlap(switch + late, switch + early, early, late)


def _offset_at(zone: ZoneInfo, instant: int) -> tuple[int, bool]:
    """The offset in force at an instant, and whether its wall is passing for the second time."""
    at = _EPOCH + timedelta(seconds=min(max(instant, _FIRST_SAFE), _LAST_SAFE))
    local = zone.fromutc(at.replace(tzinfo=zone))
    return _seconds(zone.utcoffset(local)), local.fold == 1


def _offsets_on(zone: ZoneInfo, wall: int) -> tuple[int, int]:
    """The offsets that the two passes of a wall second have: equal, unless it stands in an overlap or gap."""
    at = _EPOCH + timedelta(seconds=min(max(wall, _FIRST_SAFE), _LAST_SAFE))
    return _seconds(zone.utcoffset(at)), _seconds(zone.utcoffset(at.replace(fold=1)))


def _seconds(offset: timedelta | None) -> int:
    if offset is None:
        raise AssertionError("a zoneinfo zone gave no offset for a date")
    return offset.days * DAY_S + offset.seconds


def _switch(zone: ZoneInfo, before: int, after: int, offset: int) -> int:
    """The first instant in (``before``, ``after``] with that offset: the switch lies between the two."""
    while after - before > 1:
        middle = (before + after) // 2
        if _offset_at(zone, middle)[0] == offset:
            after = middle
        else:
            before = middle
    return after
