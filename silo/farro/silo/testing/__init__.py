"""Test kit for grains and silos: virtual time, stores that fail, simulated clusters.  No room of the runtime
enters."""

from farro.silo.testing.faulty_provider import Fault, FaultyProvider, crash
from farro.silo.testing.simulated_cluster import SimulatedClient, SimulatedCluster, SimulatedSilo
from farro.silo.testing.simulated_network import SimulatedNetwork
from farro.silo.testing.simulated_store import Committed, Member, SimulatedStore, Taken
from farro.silo.testing.virtual_time import (
    VirtualClock,
    VirtualLoop,
    VirtualTimeError,
    hold_time,
    outside,
    run_virtual,
)

__all__ = [
    "Committed",
    "Fault",
    "FaultyProvider",
    "Member",
    "SimulatedClient",
    "SimulatedCluster",
    "SimulatedNetwork",
    "SimulatedSilo",
    "SimulatedStore",
    "Taken",
    "VirtualClock",
    "VirtualLoop",
    "VirtualTimeError",
    "crash",
    "hold_time",
    "outside",
    "run_virtual",
]
