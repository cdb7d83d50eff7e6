"""The bounds of the gateway, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from farro.silo.options import OptionsError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What one gateway allows.  ``validate`` raises :class:`OptionsError` naming the option."""

    allow_insecure_bind: bool = False  # beyond loopback everybody may call everything: no TLS, no login yet
    allowed_hosts: tuple[str, ...] = ()  # names in the Host header besides loopback and IP addresses
    allowed_origins: tuple[str, ...] = ()  # web pages that may open a connection; none by default
    connections_max: int = 1_000
    calls_in_flight_max: int = 10_000  # on one connection; the next one is Overloaded
    calls_announced: int = 8_000  # what clients keep to by themselves: below the bound, so they never meet it
    in_flight_bytes_max: int = 64 << 20  # on one connection, as received
    outgoing_bytes_max: int = 8 << 20  # a client that reads slower than this is not read from meanwhile
    unread_bytes_max: int = 64 << 20  # answers that wait for one client; beyond it the client is let go
    heartbeat_s: float = 10.0  # silence after which a sign of life is asked for; given up at 1.5 times that
    handshake_s: float = 10.0

    def validate(self) -> None:
        for name in (
            "connections_max",
            "calls_in_flight_max",
            "calls_announced",
            "in_flight_bytes_max",
            "outgoing_bytes_max",
            "unread_bytes_max",
            "heartbeat_s",
            "handshake_s",
        ):
            if getattr(self, name) <= 0:
                raise OptionsError(f"GatewayOptions.{name} must be above 0, not {getattr(self, name)}")
        if self.calls_announced > self.calls_in_flight_max:
            raise OptionsError(
                f"GatewayOptions.calls_announced ({self.calls_announced}) must not be above "
                f"calls_in_flight_max ({self.calls_in_flight_max})"
            )
