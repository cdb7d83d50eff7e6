"""Test kit for grains and silos: virtual time.  For tests only; no room of the runtime enters."""

from farro.silo.testing.virtual_time import (
    VirtualClock,
    VirtualLoop,
    VirtualTimeError,
    hold_time,
    outside,
    run_virtual,
)

__all__ = ["VirtualClock", "VirtualLoop", "VirtualTimeError", "hold_time", "outside", "run_virtual"]
