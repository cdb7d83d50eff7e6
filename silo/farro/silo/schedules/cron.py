"""A cron expression as a value: what farro reads, and when it is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from farro.client.clock import from_us, to_us
from farro.client.errors import InvalidSchedule
from farro.silo.schedules.calendar import AND, FIRST_WALL, LAST_WALL, OR, Plan, plan_of
from farro.silo.schedules.explanation import explain
from farro.silo.schedules.fields import normal_text
from farro.silo.schedules.zones import UTC_NAME, count_instants, next_instant, zone_of

SECOND_US = 1_000_000
FIRST_US = FIRST_WALL * SECOND_US  # 0001-01-01T00:00:00Z
LAST_US = LAST_WALL * SECOND_US + SECOND_US - 1  # the last microsecond of the year 9999
COUNT_MAX = 2**31 - 1
CRONS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron text, the zone whose wall clock it means, and how its two day fields meet.

    ``text``: six fields (second minute hour day month weekday), five (second 0), or a macro such as
    ``@daily``; kept with single spaces, else as given.  ``timezone``: an IANA name.  ``day_match``: ``"and"``
    fires where both day fields match, ``"or"`` follows crontab(5).  The language: docs/reference/cron.md.

    Raises :class:`~farro.client.errors.InvalidSchedule` (a ``ValueError``) naming field and reason, and
    ``TypeError`` naming the type received where no ``str`` was given.
    """

    text: str
    timezone: str = UTC_NAME
    day_match: str = AND
    _plan: Plan = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo | None = field(init=False, repr=False, compare=False)  # None: UTC

    def __post_init__(self) -> None:
        text = normal_text(self.text)
        for name, value in (("timezone", self.timezone), ("day_match", self.day_match)):
            if not isinstance(value, str):
                raise TypeError(f"{name} must be str, not {type(value).__name__}")
        if self.day_match not in (AND, OR):
            raise InvalidSchedule(
                f"day_match: {self.day_match[:40]!r} is not a day rule; write 'and' (both day fields must "
                "match) or 'or' (crontab(5): either may)"
            )
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "_zone", None if self.timezone == UTC_NAME else zone_of(self.timezone))
        object.__setattr__(self, "_plan", plan_of(text, self.day_match))

    def __reduce__(self) -> tuple[type[Cron], tuple[str, str, str]]:
        return Cron, (self.text, self.timezone, self.day_match)

    @property
    def never_fires(self) -> bool:
        """No date can match, such as 30 February."""
        return self._plan.never is not None

    @property
    def never_reason(self) -> str | None:
        """Why it can never fire, or None."""
        return self._plan.never

    def next(self, after: datetime) -> datetime | None:
        """The first instant strictly after ``after`` (aware, any zone), aware UTC; None when there is none.

        Raises :class:`~farro.client.errors.InvalidSchedule` for a datetime without a zone.
        """
        due = self.next_us(_instant_us("after", after))
        return None if due is None else from_us(due)

    def previous(self, before: datetime) -> datetime | None:
        """The last instant strictly before ``before`` (aware, any zone), aware UTC; None if there is none."""
        due = self.previous_us(_instant_us("before", before))
        return None if due is None else from_us(due)

    def next_us(self, after_us: int) -> int | None:
        """:meth:`next` on microseconds since the epoch.  Due instants are whole seconds, years 1 to 9999."""
        after = max(after_us // SECOND_US, FIRST_WALL - 1)
        if after >= LAST_WALL:
            return None
        if self._zone is None:
            due = self._plan.next_wall(after + 1)
        else:
            due = next_instant(self._plan, self._zone, after)
        return None if due is None or due > LAST_WALL else due * SECOND_US

    def previous_us(self, before_us: int) -> int | None:
        """:meth:`previous` on microseconds since the epoch.

        Found through :meth:`next_us` by doubling and halving, so that both agree in every time zone.
        """
        before = -(-before_us // SECOND_US)
        back = 1
        while not self._fires_between(before - back, before):
            if before - back < FIRST_WALL:
                return None
            back *= 2
        early, late = (
            before - back,
            before - back // 2,
        )  # one falls due after early, none after late
        while late - early > 1:
            middle = (early + late) // 2
            if self._fires_between(middle, before):
                early = middle
            else:
                late = middle
        return self.next_us(early * SECOND_US)

    def count(self, after_us: int, until_us: int, limit: int = COUNT_MAX) -> int:
        """How many due instants lie in (``after_us``, ``until_us``]; at most ``limit``.

        Cost grows with the days between, not with the instants.
        """
        after = max(after_us // SECOND_US, FIRST_WALL - 1)
        until = min(until_us // SECOND_US, LAST_WALL)
        if self._zone is None or self.never_fires:
            return min(self._plan.count(after, until), limit)
        return count_instants(self._plan, self._zone, after, until, limit)

    def explain(self) -> str:
        """The expression in plain English, one fact a line, the rule for its two day fields among them."""
        return explain(self._plan, self.text, self.timezone, self.day_match)

    def _fires_between(self, after: int, before: int) -> bool:
        due = self.next_us(after * SECOND_US)
        return due is not None and due < before * SECOND_US


@lru_cache(CRONS_MAX)
def cron_of(text: str, timezone: str, day_match: str) -> Cron:
    """The :class:`Cron` of a stored row, kept: building one costs more than advancing it."""
    return Cron(text, timezone, day_match)


def _instant_us(name: str, at: datetime) -> int:
    if not isinstance(at, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise InvalidSchedule(
            f"{name}: {at.isoformat()} has no time zone; give an aware datetime, for example with tzinfo=UTC"
        )
    return to_us(at)
