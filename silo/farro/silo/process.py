"""What a silo changes of the process it lives in, and puts back."""

from __future__ import annotations

import sys


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
