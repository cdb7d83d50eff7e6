"""``Silo``: opens the store, the rooms and the gateway, and closes them in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, TypeVar, cast

from farro.client.clock import Clock, SystemClock
from farro.client.identity import Key, canonical_key
from farro.client.interface import MethodSpec, interface_of
from farro.client.management import Reminders
from farro.client.reference import reference
from farro.client.streams import After, EventStream
from farro.providers.contracts import Provider
from farro.providers.opening import open_provider
from farro.silo.cluster.cluster import Cluster
from farro.silo.cluster.silo_grain import ClusterLook
from farro.silo.control import Control
from farro.silo.gateway.address import ListenAddress, reachable
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.websocket import Gateway
from farro.silo.grains.grain import Grain
from farro.silo.grains.grain_class import GrainClass
from farro.silo.membership import Membership, Network
from farro.silo.metrics import SiloStatistics, TurnFigures
from farro.silo.options import SiloOptions
from farro.silo.ownership import Ownership
from farro.silo.process import GarbageCollection, SwitchInterval
from farro.silo.reminders.machine_load import MachineLoad, read_machine_load
from farro.silo.reminders.management_grain import ReminderManagement
from farro.silo.rooms import Rooms
from farro.silo.store_clock import StoreClock
from farro.silo.streams.stream_grains import StreamConsumer, StreamReading
from farro.silo.system_grains import PartitionGrain, SiloGrain

log = logging.getLogger("farro.silo")

G = TypeVar("G")

SETTLE_S = 5.0  # of loop time, for what a start finds due; a store that answers takes milliseconds


class Silo:
    """One silo in this process.

    ``async with Silo(grains=[Shipment], store="sqlite:///farro.db", listen="127.0.0.1:11111") as silo:``
    serves until the block ends, then drains: no new calls from clients, running turns finish (at most
    ``options.stop_timeout``), every activation is put to sleep.  Silos on one store form a cluster: each owns
    a part of the grains, and calls find their way.  ``listen=None``: no gateway; calls come from this process
    only, and it must be the only silo on its store.  ``advertise`` is the ``HOST:PORT`` where others reach
    the silo, where that is not the one it listens on.  ``store`` is a URL or a provider that is not open yet.
    """

    def __init__(
        self,
        grains: Iterable[type[Grain[Any]]],
        store: str | Provider = "memory://",
        listen: str | None = None,
        *,
        options: SiloOptions | None = None,
        service_id: str = "default",
        advertise: str | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        network: Network | None = None,
        machine_load: Callable[[], MachineLoad] = read_machine_load,
    ) -> None:
        if isinstance(grains, type):
            raise TypeError(f"grains= takes several classes: write grains=[{grains.__name__}]")
        self._machine_load = machine_load
        self._network = network or Network()
        self.options = options if options is not None else SiloOptions()
        self.options.validate()
        self._classes = [
            _declared(each)
            for each in (
                *grains,
                ReminderManagement,
                StreamReading,
                StreamConsumer,
                PartitionGrain,
                SiloGrain,
                ClusterLook,
            )
        ]
        self._store = store
        self._service_id = service_id
        self._listen = listen
        self._advertise = None if advertise is None else _advertised(advertise)
        self._clock: Clock = clock if clock is not None else StoreClock(SystemClock())
        self._random = random if random is not None else Random(SystemRandom().getrandbits(64))
        self._switch_interval = SwitchInterval()
        self._garbage = GarbageCollection()
        self._rooms: Rooms | None = None
        self._membership: Membership | None = None
        self._gateway: Gateway | None = None
        self._state = "new"
        self._turn = asyncio.Lock()  # of start and stop
        self._failure: str | None = None
        self._tell_failure: Callable[[str], None] | None = None
        self._tell_stuck: Callable[[str], None] | None = None
        self._tell_drain: Callable[[str], None] | None = None
        self._control: Control | None = None

    # ---- start

    async def __aenter__(self) -> Silo:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store, own its partitions, wake the reminders, open the gateway: in this order.

        ``RuntimeError`` when it is stopped meanwhile.
        """
        if self._state != "new":
            raise RuntimeError(f"this silo is {self._state}; make a new Silo to start again")
        self._state = "starting"
        async with self._turn:
            try:
                async with asyncio.timeout(None) as self._start_ends:
                    await self._start()
                    self._state = "running"
            except BaseException as error:
                self._state = "stopping"
                await self.tear_down()
                if self._start_ends.expired():
                    raise RuntimeError("this silo was stopped while it started") from error
                raise
        log.info(
            "silo started number=%d store=%s listen=%s grains=%s",
            self.number,
            self.store_url,
            self.address or "none",
            ",".join(self.rooms.catalog.type_names),
        )

    async def _start(self) -> None:
        if self.options.switch_interval is not None:
            self._switch_interval.lower(self.options.switch_interval.total_seconds())
        await self._open_store()
        rooms = self._rooms = Rooms(
            self.provider,
            self._ownership,
            self._classes,
            self.options,
            self._clock,
            self._random,
            self._machine_load,
        )
        rooms.committer.on_dispossessed = self._dispossessed
        self._take_garbage_over(rooms)
        await self._bind_gateway(rooms)
        self._membership = Membership(
            provider=self.provider,
            rooms=rooms,
            clock=self._clock,
            random=self._random,
            options=self.options.cluster,
            service_id=self._service_id,
            address=self._advertised(),
            gateway=self._gateway,
            network=self._network,
            on_stuck=self._stuck,
        )
        self._control = rooms.core.control = Control(self.provider, rooms, self._membership)
        if self._tell_drain is not None:
            self._control.on_drain(self._tell_drain)
        await self._membership.join()
        await rooms.open()
        if self._gateway is not None:
            await self._gateway.start()
        await self._membership.open()
        await rooms.settled(SETTLE_S)

    async def _open_store(self) -> None:
        if isinstance(self._store, str):
            self.provider: Provider = open_provider(self._store, service_id=self._service_id)
        else:
            self.provider = self._store
        info = await self.provider.open(self._clock.now())
        if isinstance(self._clock, StoreClock):
            asked_at = self._clock.steady()
            if (at := await self.provider.store_time()) is not None:
                self._clock.heard(at, asked_at)
        self.store_url = info.url
        self._ownership = Ownership(info.partitions)

    async def _bind_gateway(self, rooms: Rooms) -> None:
        """Have the port before anything is written to the store: one in use leaves no trace there."""
        if self._listen is not None:
            self._gateway = self._network.gateway(
                self._listen,
                rooms.catalog,
                rooms.codec,
                options=GatewayOptions(allow_insecure_bind=self.options.allow_insecure_bind),
                facts={"service": self._service_id},
            )
            await self._gateway.bind()

    def _advertised(self) -> str:
        """Where other silos and clients reach this one; empty when nobody can."""
        if self._gateway is None:
            return ""
        return self._advertise or reachable(self._gateway.address)

    def _take_garbage_over(self, rooms: Rooms) -> None:
        if self.options.garbage_put_off is None:
            return
        put_off_s = self.options.garbage_put_off.total_seconds()
        loop = asyncio.get_running_loop()
        self._garbage.take_over(loop.time())

        async def look() -> None:
            self._garbage.collect(loop.time(), quiet=rooms.quiet, put_off_s=put_off_s)

        rooms.tasks.repeat(look, put_off_s / 10, "collect garbage")

    # ---- use

    @property
    def rooms(self) -> Rooms:
        """What it is made of.  ``RuntimeError`` before the start."""
        if self._rooms is None:
            raise RuntimeError("this silo has not been started: use `async with Silo(…) as silo:`")
        return self._rooms

    @property
    def number(self) -> int:
        """Its number in the store.  A silo that was taken for dead goes on under a new one."""
        if self._membership is None:
            raise RuntimeError("this silo has not been started: use `async with Silo(…) as silo:`")
        return self._membership.number

    @property
    def cluster(self) -> Cluster:
        """Its part in the cluster of its store.  ``RuntimeError`` before the start."""
        if self._membership is None:
            raise RuntimeError("this silo has not been started: use `async with Silo(…) as silo:`")
        return self._membership.cluster

    @property
    def address(self) -> str | None:
        """``host:port`` that clients reach, None without a gateway."""
        return self._gateway.address if self._gateway is not None else None

    def grain(self, cls: type[G], key: Key) -> G:
        """A reference to a grain, called from this process."""
        return cast(G, reference(interface_of(cls), canonical_key(key), self.rooms.caller))

    async def call(self, grain_type: str, key: Key, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by name, untyped."""
        spec = MethodSpec.untyped(grain_type, method)
        return await self.rooms.caller.invoke(grain_type, canonical_key(key), spec, args, kwargs, None)

    @property
    def reminders(self) -> Reminders:
        """The management verbs, called in this process."""
        return Reminders(self.rooms.caller)

    @property
    def healthy(self) -> bool:
        """Running, its lease renewed, and the store takes commits and answers loads and polls."""
        is_up = self._state == "running" and self._failure is None
        return is_up and self.cluster.healthy and self.rooms.healthy

    def statistics(self) -> SiloStatistics:
        """The silo's figures at this moment."""
        rooms = self.rooms
        core, counters, service = rooms.core, rooms.core.counters, rooms.reminders
        return SiloStatistics(
            number=self.number,
            state=self._state,
            healthy=self.healthy,
            active_grains=len(rooms.catalog),
            activations_created=counters.activations_created,
            activations_collected=counters.activations_collected,
            turns=TurnFigures(
                len(core.running), counters.turns, counters.turns_failed, counters.turns_discarded
            ),
            commits=rooms.committer.figures(),
            cluster=self.cluster.figures(),
            reminders=None if service is None else service.figures(),
        )

    def stream(self, name: str, *, consumer: str | None = None, after: After = "now") -> EventStream:
        """Follow a stream in this process, as :meth:`farro.client.client.Client.stream` does from outside."""
        return EventStream(
            self.rooms.caller, name, consumer=consumer, after=after, is_open=lambda: self._state == "running"
        )

    @property
    def active_grains(self) -> int:
        return len(self.rooms.catalog)

    # ---- end

    def on_failure(self, tell: Callable[[str], None]) -> None:
        """Be told, once, why this silo can no longer commit anything: the store was taken over or replaced.

        Its calls fail from then on and its reminders fire elsewhere; whoever hosts it should stop it.
        """
        self._tell_failure = tell
        if self._failure is not None:
            tell(self._failure)

    def _dispossessed(self, reason: str) -> None:
        if self._failure is not None:
            return
        self._failure = reason
        log.critical("silo %d can commit nothing any more: %s", self.number, reason)
        if self.rooms.reminders is not None:
            self.rooms.reminders.stop()
        if self._tell_failure is not None:
            self._tell_failure(reason)

    async def stop(self) -> None:
        """Drain and close.  Repeatable.  Ends within ``stop_timeout`` plus the hooks' own bound.

        A start that is under way ends with it, a stop that is under way is waited for.
        """
        if self._state == "new":
            self._state = "stopped"
        elif self._state == "starting":
            self._state = "stopping"
            self._start_ends.reschedule(asyncio.get_running_loop().time())
        async with self._turn:
            if self._state != "stopped":
                await self._stop()

    async def _stop(self) -> None:
        self._state = "stopping"
        limit = self.options.stop_timeout.total_seconds()
        loop_time = asyncio.get_running_loop().time
        deadline = loop_time() + limit
        rooms = self.rooms
        await self.cluster.drain(limit)
        rooms.begin_nothing_new("this silo is stopping; call another one")
        if self._gateway is not None:
            await self._gateway.stop(max(0.0, deadline - loop_time()))
        rooms.catalog.put_all_to_sleep("the silo stops")
        if not await rooms.turns_end(deadline):
            log.warning(
                "%d turns did not end within %g s (stop_timeout) and are cut off; nothing of them commits",
                len(rooms.core.running),
                limit,
            )
        await self.tear_down(max(0.1, deadline - loop_time()))
        log.info("silo stopped number=%d", self.number)

    async def tear_down(self, commit_wait_s: float = 0.1) -> None:
        """Close whatever was opened, top-down; used by stop and by a start that failed half-way."""
        try:
            if self._gateway is not None:
                await self._gateway.stop(0)
            if self._membership is not None:
                await self._membership.close_room()
            if self._rooms is not None:
                await self._rooms.close(commit_wait_s)
        finally:
            try:
                if self._membership is not None:
                    await self._membership.leave()
            finally:
                await self._close_store()
                self._switch_interval.restore()
                self._garbage.give_back()
                self._state = "stopped"

    async def _close_store(self) -> None:
        if not hasattr(self, "provider"):
            return
        try:
            await self.provider.close()
        except Exception:
            log.exception("the store did not close in order")

    def on_drain(self, tell: Callable[[str], None]) -> None:
        """Be told, with the reason, that an operator wants this silo drained; whoever hosts it stops it then.

        Until somebody wants to be told, ``farro cluster drain`` is refused.
        """
        self._tell_drain = tell
        if self._control is not None:
            self._control.on_drain(tell)

    def on_stuck(self, tell: Callable[[str], None]) -> None:
        """Be told, in another thread, that the event loop has stood still for so long that others took over.

        A process that serves nothing else should end then.  Told or not, nothing of it can commit any more.
        """
        self._tell_stuck = tell

    def _stuck(self, reason: str) -> None:
        log.critical("%s", reason)
        if self._tell_stuck is not None:
            self._tell_stuck(reason)


def _declared(cls: Any) -> GrainClass:
    if not (isinstance(cls, type) and issubclass(cls, Grain) and cls is not Grain):
        raise TypeError(f"grains= takes subclasses of farro.silo.Grain, not {cls!r}")
    return cls.__farro_class__


def _advertised(text: str) -> str:
    try:
        address = ListenAddress.parse(text)
    except ValueError as error:
        raise ValueError(f"advertise: {error}") from None
    if address.port == 0:
        raise ValueError(f"advertise: {text} has no port that anybody could reach; name the one")
    return str(address)
