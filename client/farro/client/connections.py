"""The connections of a client: one to a gateway, and one to each silo that owns what it calls.

Theory of operation.  A supervisor keeps one connection alive, the *gateway*: it tries the addresses it was
given, and those it has learned, in random order, with full jitter between rounds.  The silo tells the map of
the cluster on it, and anew at every change; the newest view counts.  A call goes to the owner of its grain;
the way is found once for each grain and remembered until the view or a connection changes.  The connection to
an owner is dialled when the first call needs it, by one task for all of them; meanwhile, and where it cannot
be dialled, calls go through the gateway, which forwards them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from random import Random
from typing import Any

from farro.client.cluster_map import ClusterMap
from farro.client.connection import Connection
from farro.client.errors import FarroError, SiloUnavailable
from farro.client.identity import partition_of
from farro.client.interface import Interface

Dial = Callable[[str], Awaitable[Connection]]
Start = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]

RECONNECT_FIRST_S = 0.05
RECONNECT_MAX_S = 1.0
ROUTES_MAX = 16_384  # grains whose way is remembered


class Connections:
    """``dial(address)`` raises a :class:`FarroError`; ``start`` runs a task until the client is closed.

    ``interfaces``: what is known of grain types, by name.  Where nothing is, a grain counts as plain; a wrong
    guess costs a forwarding.
    """

    def __init__(
        self,
        gateways: list[str],
        interfaces: Mapping[str, Interface],
        dial: Dial,
        start: Start,
        chance: Random,
    ) -> None:
        self.gateway: Connection | None = None
        self.map: ClusterMap | None = None
        self.routes: dict[tuple[str, str], Connection] = {}
        self.made = 0
        self.trouble = "it was never tried"
        self._gateways = gateways
        self._interfaces = interfaces
        self._dial = dial
        self._start = start
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._lost_gateway = asyncio.Event()
        self._newer_view = asyncio.Event()
        self._running: dict[Connection, asyncio.Task[None]] = {}
        self._by_silo: dict[int, Connection] = {}
        self._reaching: dict[int, asyncio.Task[None]] = {}
        self._late_replies = 0
        self._closed = False

    # ---- for calls

    def route(self, grain_type: str, grain_key: str) -> Connection | None:
        """The connection for that grain: to its owner, else to any silo; None when there is none at all."""
        connection = self._owner(grain_type, grain_key) or self.gateway
        if connection is not None:
            if len(self.routes) >= ROUTES_MAX:
                self.routes.clear()
            self.routes[grain_type, grain_key] = connection
        return connection

    def _owner(self, grain_type: str, grain_key: str) -> Connection | None:
        cluster, interface = self.map, self._interfaces.get(grain_type)
        if cluster is None or (interface is not None and interface.stateless):
            return None
        affinity = None if interface is None else interface.affinity
        number = cluster.owner_of(partition_of(grain_type, grain_key, cluster.partitions, affinity))
        connection = self._by_silo.get(number)
        if connection is None and self.gateway is not None and number in cluster.addresses:
            # (without a gateway the supervisor dials, and the same silo would be dialled twice)
            self._reach(number, cluster.addresses[number])
        return connection

    async def wait_until_ready(self) -> None:
        """Until there is a gateway, or never will be one again."""
        await self._ready.wait()

    async def wait_for_newer_view(self, at_most_s: float) -> None:
        """Until the map changes, or that many seconds have passed."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._newer_view.wait()
        except TimeoutError:
            return

    # ---- facts

    @property
    def count(self) -> int:
        return len(self._running)

    @property
    def pending(self) -> int:
        return sum(connection.pending for connection in self._running)

    @property
    def late_replies(self) -> int:
        return self._late_replies + sum(connection.late_replies for connection in self._running)

    # ---- life

    async def open(self) -> None:
        """Connect to one of the gateways, each tried once; keep connected from then on.

        Raises :class:`SiloUnavailable`, naming every address and what went wrong there.
        """
        self._adopt(await self._try_all(self._gateways))
        self._start(self._supervise(), "farro client")
        await asyncio.sleep(0)  # the map that came with the welcome is read before the first call is made

    async def close(self, reason: str) -> None:
        """Send what is queued.  The tasks are the client's to end."""
        self._closed = True
        self.trouble = reason
        self.gateway = None
        self.routes.clear()
        self._ready.set()
        for connection in list(self._running):
            await connection.finish_writing()

    async def _supervise(self) -> None:
        failures = 0
        while True:
            await self._lost_gateway.wait()
            known = list(self.map.addresses.values()) if self.map is not None else []
            try:
                connection = await self._try_all(list(dict.fromkeys(self._gateways + known)))
            except SiloUnavailable as error:
                self.trouble = str(error)
            else:
                born_at = self._loop.time()
                self._adopt(connection)
                await self._lost_gateway.wait()
                if self._loop.time() - born_at >= RECONNECT_MAX_S:
                    failures = 0
                    continue
            failures += 1
            ceiling = min(RECONNECT_MAX_S, RECONNECT_FIRST_S * 2 ** min(failures, 10))
            await asyncio.sleep(self._chance.uniform(0, ceiling))

    async def _try_all(self, addresses: list[str]) -> Connection:
        problems: list[str] = []
        for address in self._chance.sample(addresses, len(addresses)):
            try:
                return await self._dial(address)
            except FarroError as error:
                problems.append(str(error))
        raise SiloUnavailable("; ".join(problems), turn_ran=False)

    def _reach(self, number: int, address: str) -> None:
        """Dial the silo, unless somebody does so already."""
        if number not in self._reaching and not self._closed:
            task = self._start(self._dial_owner(number, address), f"farro dials silo {number}")
            self._reaching[number] = task

    async def _dial_owner(self, number: int, address: str) -> None:
        """Until it succeeds; the map cancels it when the silo is a member no more."""
        failures = 0
        try:
            while True:
                try:
                    connection = await self._dial(address)
                except FarroError:
                    failures += 1
                else:
                    if connection.silo == number:
                        self._adopt(connection)
                        return
                    failures += 1
                    await connection.close()
                ceiling = min(RECONNECT_MAX_S, RECONNECT_FIRST_S * 2 ** min(failures, 10))
                await asyncio.sleep(self._chance.uniform(0, ceiling))
        finally:
            if self._reaching.get(number) is asyncio.current_task():
                del self._reaching[number]

    # ---- what happens to them

    def _adopt(self, connection: Connection) -> None:
        self.made += 1
        if all(each.ended for each in self._running):
            self.map = None  # nobody is left who told it: the cluster may be another by now
        connection.on_goaway = self._lost
        connection.on_map = self._learn
        if connection.silo:
            self._by_silo[connection.silo] = connection
        self.routes.clear()
        self._running[connection] = self._start(
            self._live(connection), f"farro connection {connection.address}"
        )
        if self.gateway is None:
            self._lead(connection)

    def _lead(self, connection: Connection) -> None:
        self.gateway = connection
        self._lost_gateway.clear()
        self._ready.set()

    async def _live(self, connection: Connection) -> None:
        try:
            reason = await connection.run()
            self._lost(connection, reason)
        finally:
            self._running.pop(connection, None)
            self._late_replies += connection.late_replies

    def _lost(self, connection: Connection, reason: str) -> None:
        """It takes no more calls.  Those that are out on it go on, as far as they can."""
        if self._by_silo.get(connection.silo) is connection:
            del self._by_silo[connection.silo]
        self.routes.clear()
        if self.gateway is not connection:
            return
        self.gateway = None
        self.trouble = reason
        others = [each for each in self._running if each.usable]
        if others:
            self._lead(self._chance.choice(others))
        elif not self._closed:
            self._ready.clear()
            self._lost_gateway.set()

    def _learn(self, connection: Connection, cluster: ClusterMap) -> None:
        known = self.map
        if known is not None and cluster.view <= known.view:
            return
        self.map = cluster
        self.routes.clear()
        self._newer_view.set()
        self._newer_view = asyncio.Event()
        for number in () if known is None else known.addresses.keys() - cluster.addresses.keys():
            self._give_up(number)

    def _give_up(self, number: int) -> None:
        """The silo left or was declared dead: what is out there will not be answered, so it fails now."""
        if (task := self._reaching.get(number)) is not None:
            task.cancel()
        for connection, task in list(self._running.items()):
            if connection.silo == number:
                connection.abandon(
                    f"silo {number} at {connection.address} is no member of the cluster any more"
                )
                task.cancel()
