"""A silo's membership from its joining to its leave: the heartbeat, and the cluster room built on it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from farro.client.clock import Clock
from farro.client.cluster_map import ClusterMap
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.silo.cluster.cluster import Cluster
from farro.silo.cluster.death import Refuses, refuses
from farro.silo.cluster.heartbeat import Beat, Heartbeat
from farro.silo.cluster.lease import Stage
from farro.silo.cluster.links import Dial
from farro.silo.gateway.websocket import Gateway
from farro.silo.options import ClusterOptions
from farro.silo.rooms import Rooms

log = logging.getLogger("farro.cluster")


@dataclass(frozen=True, slots=True)
class Network:
    """How a silo is reached and reaches others; by itself: over sockets.

    ``gateway`` makes what listens, with :class:`Gateway`'s arguments; ``dial`` opens a link to a peer (None:
    a WebSocket); ``refuses(address)``: does that machine say that nobody listens there?
    """

    gateway: Callable[..., Gateway] = Gateway
    dial: Dial | None = None
    refuses: Refuses = refuses


GOOD_BYE_S = 2.0  # of loop time: others find out as well, a lease later
ALONE_RENEW_S = 10.0  # loop seconds between signs of life of a silo that can have no peers


class Membership:
    """``address`` empty: a silo that nobody reaches; it is alone on its store and its lease never ends."""

    def __init__(
        self,
        *,
        provider: Provider,
        rooms: Rooms,
        clock: Clock,
        random: Random,
        options: ClusterOptions,
        service_id: str,
        address: str,
        gateway: Gateway | None,
        network: Network,
        on_stuck: Callable[[str], None],
    ) -> None:
        self._provider = provider
        self._rooms = rooms
        self._clock = clock
        self._random = random
        self._options = options
        self._service_id = service_id
        self._address = address
        self._gateway = gateway
        self._network = network
        self._on_stuck = on_stuck
        self._lease_s = options.lease.total_seconds() if address else math.inf
        self._cluster: Cluster | None = None
        self._ending = False
        self._heartbeat = Heartbeat(
            provider.members(),
            clock,
            interval_s=options.renew_interval.total_seconds() if address else ALONE_RENEW_S,
            lease_s=self._lease_s,
            hear=self._hear,
            load=lambda: len(rooms.catalog),
            on_stuck=self._stuck,
        )

    @property
    def number(self) -> int:
        return self.cluster.number

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "join() comes first"
        return self._cluster

    async def join(self) -> None:
        """Get a number and begin to renew.  Raises what the store raises; StoreInUse beside the heading's
        rule about addresses."""
        await self._heartbeat.start()
        row = await self._heartbeat.join(self._address)
        rooms = self._rooms
        rooms.committer.owner = row.number
        self._cluster = Cluster(
            provider=self._provider,
            heartbeat=self._heartbeat,
            core=rooms.core,
            clock=self._clock,
            random=self._random,
            options=self._options,
            service_id=self._service_id,
            row=row,
            lease_s=self._lease_s,
            publish=self._publish,
            on_stage=self._on_stage,
            dial=self._network.dial,
            refuses=self._network.refuses,
        )
        rooms.committer.on_fenced = self._cluster.fenced
        if self._gateway is not None:
            self._gateway.on_news(self._cluster.news)
        await self._cluster.check_alone()

    async def open(self) -> None:
        """Take one's part of the partitions."""
        await self.cluster.open()

    async def close_room(self) -> None:
        """Look at the cluster no more; the lease is still renewed while commits end."""
        if self._cluster is not None:
            await self._cluster.close()

    async def leave(self) -> None:
        """Say good-bye to the store, as far as it listens, and let the lock go."""
        self._ending = True
        if self._cluster is not None:
            try:
                async with asyncio.timeout(GOOD_BYE_S):
                    await self._provider.leave(self.number, self._clock.now())
            except TimeoutError:
                log.warning("the store did not answer the good-bye of silo %d", self.number)
            except Exception as error:
                fault = not isinstance(error, StoreError)
                text = "the store did not take the good-bye of silo %d: %s"
                log.warning(text, self.number, error, exc_info=fault)
        await self._heartbeat.stop()

    # ---- what happens

    def _hear(self, beat: Beat) -> None:
        if self._cluster is not None and not self._ending:
            self._cluster.heard(beat)

    def _publish(self, map_: ClusterMap) -> None:
        if self._gateway is not None:
            self._gateway.publish(map_, self.number)

    def _on_stage(self, stage: Stage) -> None:
        self._rooms.trust(stage is Stage.HEALTHY)

    def _stuck(self) -> None:
        """In the heartbeat's thread.  Alone, a silo that stands still is in nobody's way."""
        cluster = self._cluster
        if cluster is not None and cluster.has_peers:
            self._on_stuck(
                f"the event loop of silo {cluster.number} has stood still for over "
                f"{2 * self._lease_s:g} s: other silos take over what it owned"
            )
