"""Who has died, judged by an observer's own monotonic time.  Pure.

No wall clock decides: a silo has expired when this observer itself has seen the same renewal counter for
longer than the lease.  While the observer cannot renew either, it is the store or the observer that is in
trouble, and nobody expires: a database outage evicts nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farro.providers.members import SiloRow
from farro.silo.cluster.lease import EXPIRED_AT


@dataclass(slots=True)
class _Seen:
    renewals: int
    since: float  # loop time


class Observer:
    """What one silo has seen of the others."""

    def __init__(self, number: int, lease_s: float) -> None:
        self._number = number
        self._lease_s = lease_s
        self._seen: dict[int, _Seen] = {}

    def start_over(self, now: float) -> None:
        """What was seen before counts no more: the observer was cut off, or stood still."""
        for seen in self._seen.values():
            seen.since = now

    def saw(self, silos: Iterable[SiloRow], now: float) -> list[SiloRow]:
        """Take in what the store says at ``now``; the members that have expired.

        A member without an address expires by proof alone: it renews too seldom to be judged.
        """
        expired: list[SiloRow] = []
        members = [row for row in silos if row.status.is_member and row.number != self._number]
        for number in self._seen.keys() - {row.number for row in members}:
            del self._seen[number]
        for row in members:
            seen = self._seen.get(row.number)
            if seen is None or seen.renewals != row.renewals:
                self._seen[row.number] = _Seen(row.renewals, now)
            elif row.address and now - seen.since >= self._lease_s * EXPIRED_AT:
                expired.append(row)
        return expired

    def quiet_s(self, number: int, now: float) -> float:
        """How long that silo's counter has stood still under the observer's eyes."""
        seen = self._seen.get(number)
        return 0.0 if seen is None else now - seen.since
