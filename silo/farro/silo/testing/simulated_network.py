"""The network between simulated processes: messages that take their time, wires that are cut, hosts that are
not there.

A *host* is whoever listens at an address (``10.0.0.1:1``) or only calls out (``client-1``).  A *wire* is one
open connection between two of them: what is sent on it arrives in order, after a delay.  A cut holds back
what is sent in that direction, as a network does that loses every packet: both ends hear nothing, whatever is
sent arrives when the cut is healed, unless somebody gave the wire up meanwhile.  A host that dies resets its
wires: the other end hears of it, if the way is not cut.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from farro.silo.testing.simulated_time import SimulatedLoop, Simulation

T = TypeVar("T")

DELAY_US = (100, 1_500)


@dataclass(eq=False, slots=True)
class Host:
    """A process as the network sees it.  ``accept`` is called on its loop with each new wire to it.

    ``address`` may have more than one door, ``HOST:PORT`` and ``HOST:PORT/name``; cuts are between hosts.
    """

    address: str
    loop: SimulatedLoop
    accept: Callable[[End[Any]], None] | None = None

    @property
    def machine(self) -> str:
        return machine_of(self.address)

    @property
    def is_up(self) -> bool:
        return not self.loop.dead


def machine_of(address: str) -> str:
    return address.partition("/")[0]


class SimulatedNetwork:
    """All hosts and wires of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.delay_us = DELAY_US
        self._listening: dict[str, Host] = {}
        self._cut: dict[tuple[str, str], None] = {}  # a set in the order of cutting
        self._wires: dict[Wire, None] = {}

    # ---- hosts

    def listen(self, host: Host) -> None:
        """From now on ``host`` is found at its address."""
        self._listening[host.address] = host

    def close(self, host: Host) -> None:
        """Nobody listens there any more; wires that are open stay."""
        if self._listening.get(host.address) is host:
            del self._listening[host.address]

    def died(self, host: Host) -> None:
        """The host's process has ended: its wires are reset."""
        self.close(host)
        for wire in [wire for wire in self._wires if host in wire.hosts]:
            wire.reset_by(host)

    # ---- faults

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from ``source`` to ``target``; the other way is another cut."""
        self._cut[source, target] = None

    def heal(self) -> None:
        """Every cut ends; what was held back arrives."""
        self._cut.clear()
        for wire in list(self._wires):
            wire.flow()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def way_us(self) -> int:
        low, high = self.delay_us
        return low + int(self.simulation.random.random() * (high - low))

    # ---- wires

    def connect(self, host: Host, target: str, done: Callable[[End[Any] | None], object]) -> None:
        """Open a wire to whoever listens at ``target``; ``done`` is called on the host's loop.

        None: refused.  Cut off, it is never called: whoever connects has a deadline of his own.
        """
        self.simulation.after(self.way_us(), partial(self._arrive, host, target, done))

    def _arrive(self, host: Host, target: str, done: Callable[[End[Any] | None], object]) -> None:
        machine = machine_of(target)
        if self.is_cut(host.machine, machine) or self.is_cut(machine, host.machine):
            return
        found = self._listening.get(target)
        if found is None or not found.is_up or found.accept is None:
            self.simulation.after(self.way_us(), lambda: host.loop.call_soon(done, None))
            return
        wire = Wire(self, host, found)
        self._wires[wire] = None
        found.loop.call_soon(found.accept, wire.ends[1])
        self.simulation.after(self.way_us(), lambda: host.loop.call_soon(done, wire.ends[0]))


class Wire:
    """An open connection between two hosts; end 0 is the caller's."""

    def __init__(self, network: SimulatedNetwork, caller: Host, called: Host) -> None:
        self.network = network
        self.hosts = (caller, called)
        self.ends: tuple[End[Any], End[Any]] = (End(self, 0), End(self, 1))
        self._held: tuple[list[Any], list[Any]] = ([], [])
        self._busy_until = [0, 0]

    def send(self, side: int, message: Any) -> None:
        """``message`` leaves ``side``; :data:`CLOSED` is the last one."""
        held = self._held[side]
        if held or self._is_cut(side):
            held.append(message)
            return
        simulation = self.network.simulation
        at = max(self._busy_until[side], simulation.now_us + self.network.way_us())
        self._busy_until[side] = at  # in order
        simulation.at(at, partial(self._arrive, side, message))

    def _is_cut(self, side: int) -> bool:
        return self.network.is_cut(self.hosts[side].machine, self.hosts[1 - side].machine)

    def is_silent(self, side: int) -> bool:
        """Would the other end not answer now?"""
        other = self.hosts[1 - side].loop
        return other.frozen or other.dead or self._is_cut(0) or self._is_cut(1)

    def flow(self) -> None:
        for side in (0, 1):
            held = list(self._held[side])
            self._held[side].clear()
            for message in held:
                self.send(side, message)

    def _arrive(self, side: int, message: Any) -> None:
        if self._is_cut(side):
            self._held[side].append(message)
            return
        end = self.ends[1 - side]
        if message is CLOSED:
            self.network._wires.pop(self, None)
        if self.hosts[1 - side].is_up:
            self.hosts[1 - side].loop.call_soon(end._take, message)

    def reset_by(self, host: Host) -> None:
        side = self.hosts.index(host)
        if self._is_cut(side):
            return
        self.send(side, CLOSED)


class _Closed:
    def __repr__(self) -> str:
        return "CLOSED"


CLOSED = _Closed()
"""What arrives last on a wire that the other end has closed, or whose other end has died."""


class End(Generic[T]):
    """One end of a wire.  ``take`` is called with each message, on the loop of its host, and then once with
    :data:`CLOSED`."""

    def __init__(self, wire: Wire, side: int) -> None:
        self._wire = wire
        self._side = side
        self.take: Callable[[Any], object] | None = None
        self._early: list[Any] = []
        self.closed = False

    @property
    def peer(self) -> str:
        return self._wire.hosts[1 - self._side].address

    @property
    def is_silent(self) -> bool:
        """Would the other end not answer now?"""
        return self._wire.is_silent(self._side)

    def send(self, message: T) -> None:
        if not self.closed:
            self._wire.send(self._side, message)

    def close(self) -> None:
        """Repeatable."""
        if not self.closed:
            self.closed = True
            self._wire.send(self._side, CLOSED)

    def receive(self, take: Callable[[Any], object]) -> None:
        """From now on ``take`` is told; what has arrived before first."""
        self.take = take
        early, self._early = self._early, []
        for message in early:
            take(message)

    def _take(self, message: Any) -> None:
        if message is CLOSED:
            self.closed = True
        if self.take is None:
            self._early.append(message)
        else:
            self.take(message)
