"""What a silo changes of the process it lives in, and puts back."""

from __future__ import annotations

import gc
import sys

YOUNG = 2_000  # allocations between two collections of the youngest; a batch makes more than Python's own 700
NEVER = 1_000_000_000


class SwitchInterval:
    """Lowers how long Python may keep its lock from other threads; see ``SiloOptions.switch_interval``."""

    def __init__(self) -> None:
        self._found_and_set: tuple[float, float] | None = None  # seconds

    def lower(self, interval_s: float) -> None:
        """To ``interval_s``, if it is longer."""
        found = sys.getswitchinterval()
        if interval_s < found:
            sys.setswitchinterval(interval_s)
            self._found_and_set = (found, sys.getswitchinterval())

    def restore(self) -> None:
        """As it was found, unless somebody has changed it since."""
        if self._found_and_set is not None:
            found, lowered = self._found_and_set
            if sys.getswitchinterval() == lowered:
                sys.setswitchinterval(found)
            self._found_and_set = None


class GarbageCollection:
    """Takes Python's full collections over; see ``SiloOptions.garbage_put_off``.

    A full collection walks every object of the process, and nothing else runs meanwhile: a quarter of a
    second for a hundred thousand awake grains.  Python begins one whenever the number of objects has grown by
    a quarter, so most surely while many grains wake.  Here they wait for a quiet moment.
    """

    def __init__(self) -> None:
        self._found: tuple[int, int, int] | None = None
        self._set: tuple[int, int, int] | None = None
        self._collected_at = 0.0  # loop time

    def take_over(self, now: float) -> None:
        """From now on only young objects are collected without :meth:`collect`."""
        self._collected_at = now
        self._found = gc.get_threshold()
        if self._found[0]:  # else whoever runs this program has switched the collector off
            self._set = (max(YOUNG, self._found[0]), self._found[1], NEVER)
            gc.set_threshold(*self._set)

    def collect(self, now: float, *, quiet: bool, put_off_s: float) -> None:
        """Collect everything if Python would, and the moment is quiet or this was put off long enough."""
        if self._found is None or self._set is None or gc.get_count()[2] < self._found[2]:
            return
        if quiet or now - self._collected_at >= put_off_s:
            gc.collect()
            self._collected_at = now

    def give_back(self) -> None:
        """As it was found, unless somebody has changed it since."""
        if self._found is not None and self._set is not None and gc.get_threshold() == self._set:
            gc.set_threshold(*self._found)
        self._found = self._set = None
