"""Ports for listeners whose number has to be known before they listen."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the range from which Linux serves outgoing connections and port 0 (32768 on): what a test will bind
# later, or bind again, is given to nobody meanwhile.
PORTS = range(15_000, 32_000)

# Each process of the tests has to draw other ones, also where a test has seeded the common generator.
_draw = random.SystemRandom()


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of ``count`` free ports of loopback in a row."""
    for start in _draw.sample(PORTS, 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(start, start + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return start
    raise RuntimeError(f"no {count} ports in a row are free among a hundred tries from {PORTS.start} on")
