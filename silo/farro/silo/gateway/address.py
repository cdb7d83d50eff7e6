"""Where a gateway listens, and who may knock: rules about addresses, hosts and origins."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from farro.client.errors import FarroError


class CannotListen(FarroError, OSError):
    """The gateway's address cannot be used: taken, not of this machine, or not allowed."""

    code = "cannot_listen"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """``HOST:PORT`` taken apart.  Port 0 lets the system choose."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Raises ``ValueError`` for what is not ``HOST:PORT``; an IPv6 host stands in brackets."""
        if not isinstance(text, str):
            raise TypeError(f"an address is text such as 127.0.0.1:11111, not {text!r}")
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if (
            not colon
            or not bare
            or (":" in bare) != (bare != host)
            or not (port.isascii() and port.isdigit())
        ):
            raise ValueError(
                f"{text!r} is not an address to listen on; write HOST:PORT, such as 127.0.0.1:11111"
            )
        if int(port) > 65_535:
            raise ValueError(f"the port of {text!r} must be at most 65535")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or _is_loopback(self.host)

    def check_allowed(self, allow_insecure_bind: bool) -> None:
        """Raises :class:`CannotListen` for an address that others can reach, unless that was asked for."""
        if not self.is_loopback and not allow_insecure_bind:
            raise CannotListen(
                f"{self} can be reached from other machines, and TLS and authentication are not in this "
                "version: anybody there could call every grain. Listen on 127.0.0.1, or accept that with "
                "allow_insecure_bind=True (--allow-insecure-bind)"
            )

    def refused(self, error: OSError) -> CannotListen:
        """Why the system does not let this program listen here."""
        if error.errno == errno.EADDRINUSE:
            problem = f"{self} is already in use by another process; stop it, or listen on another port"
        elif error.errno == errno.EADDRNOTAVAIL:
            problem = f"{self} is not an address of this machine"
        elif error.errno in (errno.EACCES, errno.EPERM):
            problem = f"{self} may not be used by this user; choose a port above 1023"
        else:
            problem = f"cannot listen on {self}: {error.strerror or error}"
        return CannotListen(problem)

    def check_free(self) -> None:
        """Raises :class:`CannotListen` if nobody could listen here at this moment.

        It listens itself and stops at once: a port that is only bound shows to nobody else that it is taken.
        """
        try:
            for family, kind, protocol, _, address in socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                with socket.socket(family, kind, protocol) as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    listener.bind(address)
                    listener.listen(1)
        except OSError as error:
            raise self.refused(error) from error


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_loopback(text: str) -> bool:
    address = _ip(text)
    return address is not None and address.is_loopback


def host_allowed(header: str, listen: ListenAddress, allowed: tuple[str, ...]) -> bool:
    """Whether a Host header names this gateway.

    A web page can point a name of its own at 127.0.0.1, so on loopback only loopback's own names count.  It
    cannot do so with an address, so beyond loopback any IP address will do.
    """
    host = header.strip()
    if host.startswith("["):
        host = host[1 : host.find("]")]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    host = host.lower()
    if host in ("localhost", listen.host.lower()) or host in allowed or _is_loopback(host):
        return True
    return not listen.is_loopback and _ip(host) is not None


def reachable(bound: str) -> str:
    """Where others reach a gateway that is bound there: an address of this machine instead of "any"."""
    listen = ListenAddress.parse(bound)
    address = _ip(listen.host)
    if address is None or not address.is_unspecified:
        return bound
    try:
        host = socket.gethostbyname(socket.gethostname())
    except OSError:
        host = "127.0.0.1"
    return str(ListenAddress(host, listen.port))
