"""Test kit for grains and silos: virtual time, stores that fail.  No room of the runtime enters."""

from farro.silo.testing.faulty_provider import Fault, FaultyProvider, crash
from farro.silo.testing.virtual_time import (
    VirtualClock,
    VirtualLoop,
    VirtualTimeError,
    hold_time,
    outside,
    run_virtual,
)

__all__ = [
    "Fault",
    "FaultyProvider",
    "VirtualClock",
    "VirtualLoop",
    "VirtualTimeError",
    "crash",
    "hold_time",
    "outside",
    "run_virtual",
]
