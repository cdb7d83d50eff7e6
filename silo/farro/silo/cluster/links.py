"""Links: one connection to every other silo of the map, kept up for as long as it is there.

Theory of operation.  A task for each other silo dials, runs the connection until it ends, and dials again,
with full jitter.  The connections are made before anybody needs them: a call finds its way at once, and a
silo that is killed shows as a broken connection in the moment its kernel closes it.  A link carries calls one
way; the other silo has one of its own for the other way.

A silo that is no longer in the map is given up, and what was sent to it and not answered fails: a frozen one
would otherwise hold its callers until the heartbeat finds out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from aiohttp import ClientSession

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.connection import Connection
from farro.client.dialing import dial
from farro.client.errors import FarroError, ProtocolError
from farro.client.protocol import peer_info
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.cluster")

Dial = Callable[[str, dict[str, Any]], Awaitable[Connection]]

REDIAL_FIRST_S = 0.05
REDIAL_MAX_S = 1.0
DIAL_TIMEOUT_S = 2.0  # half a lease: longer than that and the silo is not worth the wait
HEARTBEAT_S = 4.0  # as long as a lease: of a silo that is frozen, the map tells before a silent link does


class WebSockets:
    """The way out over real sockets."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._session = ClientSession(trust_env=False)

    async def dial(self, address: str, info: dict[str, Any]) -> Connection:
        """A connection to ``http://HOST:PORT``, hello and welcome exchanged; raises a :class:`FarroError`."""
        return await dial(
            self._session, address, self._codec, timeout_s=DIAL_TIMEOUT_S, heartbeat_s=HEARTBEAT_S, info=info
        )

    async def close(self) -> None:
        await self._session.close()


class Links:
    """The connections of silo :attr:`number` to its peers.

    ``dial(address, info)`` opens a connection whose hello says ``info``, or raises a :class:`FarroError`;
    None: over WebSockets.  ``on_down(silo, reason)`` is told of a link that broke and of every attempt to
    dial that failed, ``on_news(view)`` that a peer has heard of that view, :attr:`on_up` of a new link.
    """

    def __init__(
        self,
        number: int,
        service: str,
        codec: Codec,
        random: Random,
        *,
        on_down: Callable[[int, str], None],
        on_news: Callable[[int], None],
        dial: Dial | None = None,
    ) -> None:
        self.number = number
        self.on_up: Callable[[int], None] = _not_asked
        self._service = service
        self._random = random
        self._on_down = on_down
        self._on_news = on_news
        self._sockets = WebSockets(codec) if dial is None else None
        self._dial: Dial = self._sockets.dial if self._sockets is not None else dial  # type: ignore[assignment]
        self._tasks = TaskOwner("links")
        self._tending: dict[int, tuple[str, asyncio.Task[None]]] = {}
        self._up: dict[int, Connection] = {}

    # ---- what the router asks

    def to(self, number: int) -> Connection | None:
        """The link to that silo, if calls may be sent on it."""
        connection = self._up.get(number)
        return connection if connection is not None and connection.usable else None

    @property
    def connected(self) -> int:
        """To how many silos calls may be sent."""
        return sum(connection.usable for connection in self._up.values())

    def tell_news(self, view: int, only: int | None = None) -> None:
        """Tell every peer, or ``only`` that one, that the view has this number now."""
        for number, connection in self._up.items():
            if only is None or only == number:
                connection.tell_news(view)

    # ---- keeping them

    def update(self, cluster: ClusterMap) -> None:
        """Link to every other silo of the map that has an address, and to nobody else."""
        for number, (address, task) in list(self._tending.items()):
            if cluster.addresses.get(number) != address or number == self.number:
                del self._tending[number]
                gone = self._up.pop(number, None)
                if gone is not None:
                    gone.abandon(f"silo {number} at {address} is no longer a member of the cluster")
                task.cancel()
        own = cluster.addresses.get(self.number)
        for number, address in cluster.addresses.items():
            # One at this silo's own address had it before, and has ended.
            if number != self.number and number not in self._tending and address != own:
                task = self._tasks.start(self._tend(number, address), f"link to silo {number}")
                self._tending[number] = address, task

    async def close(self) -> None:
        """End every link; what is out on them fails.  Repeatable."""
        self._tending.clear()
        await self._tasks.stop()
        if self._sockets is not None:
            await self._sockets.close()

    async def _tend(self, number: int, address: str) -> None:
        failures = 0
        while True:
            try:
                connection = await self._reach(number, address)
            except FarroError as error:
                failures += 1
                self._on_down(number, str(error))
            else:
                failures = 0
                reason = await self._run(number, connection)
                log.info("lost the link to silo %d: %s", number, reason)
                self._on_down(number, reason)
            ceiling = min(REDIAL_MAX_S, REDIAL_FIRST_S * 2 ** min(failures, 10))
            await asyncio.sleep(self._random.uniform(0, ceiling))

    async def _reach(self, number: int, address: str) -> Connection:
        connection = await self._dial(address, peer_info(self.number, self._service))
        found = (connection.silo, connection.facts.get("service"))
        if found != (number, self._service):
            await connection.close()
            raise ProtocolError(
                f"at {address} answers silo {found[0]} of service {found[1]!r}, "
                f"not silo {number} of service {self._service!r}"
            )
        return connection

    async def _run(self, number: int, connection: Connection) -> str:
        connection.on_news = lambda _, view: self._on_news(view)
        self._up[number] = connection
        self.on_up(number)
        try:
            return await connection.run()
        finally:
            if self._up.get(number) is connection:
                del self._up[number]


def _not_asked(*_: object) -> None:
    """Where nobody wants to hear."""
