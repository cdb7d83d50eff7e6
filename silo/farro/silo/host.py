"""``Silo``: builds the rooms bottom-up, stops them in reverse."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, TypeVar, cast

from farro.client.clock import Clock, SystemClock, duration_us
from farro.client.codec import Codec
from farro.client.identity import Key, canonical_key
from farro.client.interface import MethodSpec, interface_of
from farro.client.management import Reminders
from farro.client.reference import reference
from farro.client.streams import After, EventStream
from farro.providers.contracts import Provider
from farro.providers.errors import StoreChanged, StoreError
from farro.providers.opening import open_provider
from farro.silo.activations.calls import LocalCaller
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.activations.core import Core
from farro.silo.activations.loading import Loader
from farro.silo.activations.turns import Turns
from farro.silo.activations.watch import TurnWatch
from farro.silo.gateway.limits import GatewayOptions
from farro.silo.gateway.websocket import Gateway
from farro.silo.grains.grain import Grain
from farro.silo.grains.grain_class import GrainClass
from farro.silo.grains.reminder_book import ReminderBook
from farro.silo.grains.reminder_rows import RowMaker
from farro.silo.metrics import SiloStatistics, TurnFigures
from farro.silo.options import ReminderOptions, SiloOptions
from farro.silo.ownership import Owned, Ownership
from farro.silo.reminders.machine_load import MachineLoad, read_machine_load
from farro.silo.reminders.management import ReminderDesk
from farro.silo.reminders.management_grain import ReminderManagement
from farro.silo.reminders.registration import register_declared
from farro.silo.reminders.service import ReminderService
from farro.silo.streams.service import StreamService
from farro.silo.streams.stream_grains import StreamConsumer, StreamReading
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.silo")

G = TypeVar("G")

RENEW_S = 10.0  # loop seconds between stored signs of life where no commit carries one


class Silo:
    """One silo in this process.

    ``async with Silo(grains=[Shipment], store="sqlite:///farro.db", listen="127.0.0.1:11111") as silo:``
    serves until the block ends, then drains: no new calls from clients, running turns finish (at most
    ``options.stop_timeout``), every activation is put to sleep.  ``listen=None``: no gateway, calls come
    from this process only.  ``store`` is a URL or a provider that is not open yet.
    """

    def __init__(
        self,
        grains: Iterable[type[Grain[Any]]],
        store: str | Provider = "memory://",
        listen: str | None = None,
        *,
        options: SiloOptions | None = None,
        service_id: str = "default",
        clock: Clock | None = None,
        random: Random | None = None,
        machine_load: Callable[[], MachineLoad] = read_machine_load,
    ) -> None:
        self._machine_load = machine_load
        self.options = options if options is not None else SiloOptions()
        self.options.validate()
        self._classes = [
            _declared(each) for each in (*grains, ReminderManagement, StreamReading, StreamConsumer)
        ]
        self._store = store
        self._service_id = service_id
        self._listen = listen
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._random = random if random is not None else Random(SystemRandom().getrandbits(64))
        self._switch_intervals: tuple[float, float] | None = None  # as found, as set; in seconds
        self._state = "new"
        self._failure: str | None = None
        self._tell_failure: Callable[[str], None] | None = None

    # ---- start

    async def __aenter__(self) -> Silo:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store, own its partitions, wake the reminders, open the gateway: in this order."""
        if self._state != "new":
            raise RuntimeError(f"this silo is {self._state}; make a new Silo to start again")
        self._state = "starting"
        if self.options.switch_interval is not None:
            self._lower_switch_interval(self.options.switch_interval.total_seconds())
        try:
            await self._open_store()
            await self._build()
            await self._open_gateway()
        except BaseException:
            await self.tear_down()
            raise
        self._state = "running"
        log.info(
            "silo started number=%d store=%s listen=%s grains=%s",
            self.number,
            self.store_url,
            self.address or "none",
            ",".join(self._catalog.type_names),
        )

    def _lower_switch_interval(self, interval_s: float) -> None:
        found = sys.getswitchinterval()
        if interval_s < found:
            sys.setswitchinterval(interval_s)
            self._switch_intervals = (found, sys.getswitchinterval())

    def _restore_switch_interval(self) -> None:
        if self._switch_intervals is not None:
            found, lowered = self._switch_intervals
            if sys.getswitchinterval() == lowered:  # else somebody has changed it since
                sys.setswitchinterval(found)
            self._switch_intervals = None

    async def _open_store(self) -> None:
        if isinstance(self._store, str):
            self.provider: Provider = open_provider(self._store, service_id=self._service_id)
        else:
            self.provider = self._store
        now = self._clock.now()
        info = await self.provider.open(now)
        self.store_url = info.url
        self._ownership = Ownership(info.partitions)
        row = await self.provider.join(self._listen or "local", now)
        self.number = row.number
        taken = await self.provider.take(self.number, range(info.partitions), now)
        for each in taken:
            self._ownership.take(each.partition, Owned(each.epoch, now, each.previous_alive_at))

    async def _build(self) -> None:
        options, clock = self.options.activations, self._clock
        self._tasks = TaskOwner("silo")
        self._turn_tasks = TaskOwner("turns")
        self._commit_tasks = TaskOwner("commits")
        self._committer = Committer(
            self.provider,
            clock,
            self._commit_tasks,
            owner=self.number,
            batch_max=options.commit_batch_max,
            batch_bytes_max=options.commit_bytes_max,
        )
        self._committer.on_dispossessed = self._dispossessed
        self._caller = LocalCaller(options.call_timeout.total_seconds())
        self.codec = Codec(self._caller)
        reminders = self.options.reminders or ReminderOptions()
        rows = RowMaker(clock, self._ownership, reminders.minimum_period)
        core = Core(
            clock=clock,
            random=self._random,
            codec=self.codec,
            ownership=self._ownership,
            committer=self._committer,
            loader=Loader(self.provider, self._commit_tasks),
            tasks=self._turn_tasks,
            options=options,
            caller=self._caller,
            book=ReminderBook(rows, self.codec, self.provider),
            reminders_max=reminders.reminders_per_grain_max,
        )
        core.turns = Turns(core)
        self._core = core
        self._catalog = Catalog(core, self._classes)
        self._caller.connect(self._catalog)
        self._tasks.repeat(self._collect, options.collect_interval.total_seconds(), "collect")
        self._tasks.repeat(self._renew, RENEW_S, "renew")
        watch = TurnWatch(core, options.slow_turn.total_seconds())
        self._tasks.repeat(watch.look, options.slow_turn.total_seconds() / 2, "watch turns")
        await self._start_streams()
        await self._start_reminders(rows)

    async def _start_streams(self) -> None:
        """Before the reminders: what they publish finds its subscribers awake."""
        service = self._core.streams = self.stream_service = StreamService(
            provider=self.provider,
            clock=self._clock,
            codec=self.codec,
            catalog=self._catalog,
            committer=self._committer,
            ownership=self._ownership,
            options=self.options.streams,
            random=self._random,
            classes=self._classes,
        )
        await service.start()

    async def _start_reminders(self, rows: RowMaker) -> None:
        options = self.options.reminders
        self.reminder_service: ReminderService | None = None
        if options is not None:
            self.reminder_service = ReminderService(
                provider=self.provider,
                clock=self._clock,
                codec=self.codec,
                catalog=self._catalog,
                committer=self._committer,
                ownership=self._ownership,
                options=options,
                random=self._random,
                machine_load=self._machine_load,
            )
        self._core.desk = ReminderDesk(
            provider=self.provider,
            committer=self._committer,
            ownership=self._ownership,
            catalog=self._catalog,
            clock=self._clock,
            rows=rows,
            service=self.reminder_service,
            reminders_max=self._core.reminders_max,
        )
        if options is not None and self.reminder_service is not None:
            await register_declared(
                self._classes,
                provider=self.provider,
                committer=self._committer,
                ownership=self._ownership,
                rows=rows,
            )
            await self.reminder_service.start()
            every_s = self._clock.loop_seconds(duration_us(options.repair_interval))
            self._tasks.repeat(self.reminder_service.repair, every_s, "repair reminders")

    async def _open_gateway(self) -> None:
        self._gateway: Gateway | None = None
        if self._listen is not None:
            self._gateway = Gateway(
                self._listen,
                self._catalog,
                self.codec,
                options=GatewayOptions(allow_insecure_bind=self.options.allow_insecure_bind),
                facts={"silo": self.number, "service": self._service_id},
            )
            await self._gateway.start()

    # ---- use

    @property
    def address(self) -> str | None:
        """``host:port`` that clients reach, None without a gateway."""
        gateway = getattr(self, "_gateway", None)
        return gateway.address if gateway is not None else None

    def grain(self, cls: type[G], key: Key) -> G:
        """A reference to a grain, called from this process."""
        return cast(G, reference(interface_of(cls), canonical_key(key), self._caller))

    async def call(self, grain_type: str, key: Key, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by name, untyped."""
        spec = MethodSpec.untyped(grain_type, method)
        return await self._caller.invoke(grain_type, canonical_key(key), spec, args, kwargs, None)

    @property
    def reminders(self) -> Reminders:
        """The management verbs, called in this process."""
        return Reminders(self._caller)

    @property
    def healthy(self) -> bool:
        """Running, and the store takes commits and answers loads and polls."""
        if self._state != "running" or self._failure is not None:
            return False
        polls = self.reminder_service is None or self.reminder_service.healthy
        return self._committer.healthy and self._core.loader.healthy and polls

    def statistics(self) -> SiloStatistics:
        """The silo's figures at this moment."""
        counters = self._core.counters
        service = self.reminder_service
        return SiloStatistics(
            number=self.number,
            state=self._state,
            healthy=self.healthy,
            active_grains=len(self._catalog),
            activations_created=counters.activations_created,
            activations_collected=counters.activations_collected,
            turns=TurnFigures(
                len(self._core.running), counters.turns, counters.turns_failed, counters.turns_discarded
            ),
            commits=self._committer.figures(),
            reminders=None if service is None else service.figures(),
        )

    def stream(self, name: str, *, consumer: str | None = None, after: After = "now") -> EventStream:
        """Follow a stream in this process, as :meth:`farro.client.client.Client.stream` does from outside."""
        return EventStream(
            self._caller, name, consumer=consumer, after=after, is_open=lambda: self._state == "running"
        )

    @property
    def active_grains(self) -> int:
        return len(self._catalog)

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
        if self.reminder_service is not None:
            self.reminder_service.stop()
        if self._tell_failure is not None:
            self._tell_failure(reason)

    async def stop(self) -> None:
        """Drain and close.  Repeatable.  Ends within ``stop_timeout`` plus the hooks' own bound."""
        if self._state in ("stopped", "new"):
            self._state = "stopped"
            return
        self._state = "stopping"
        limit = self.options.stop_timeout.total_seconds()
        deadline = asyncio.get_running_loop().time() + limit
        self._catalog.refuse("this silo is stopping; call another one")
        if self.reminder_service is not None:
            self.reminder_service.stop()
        self.stream_service.stop()
        if self._gateway is not None:
            await self._gateway.stop(limit)
        self._catalog.put_all_to_sleep("the silo stops")
        if not await self._turns_end(deadline):
            log.warning(
                "%d turns did not end within %g s (stop_timeout) and are cut off; nothing of them commits",
                len(self._core.running),
                limit,
            )
        await self.tear_down(max(0.1, deadline - asyncio.get_running_loop().time()))
        log.info("silo stopped number=%d", self.number)

    async def _turns_end(self, deadline: float) -> bool:
        """Wait until no turn runs and no commit is under way; False when ``deadline`` came first.

        The end of a commit may begin the next turn of its grain, and a turn may bring the next commit.
        """
        loop = asyncio.get_running_loop()
        while self._turn_tasks.busy or self._commit_tasks.busy:
            for tasks in (self._turn_tasks, self._commit_tasks):
                if not await tasks.wait(deadline - loop.time()):
                    return False
        return True

    async def tear_down(self, commit_wait_s: float = 0.1) -> None:
        """Close whatever was opened, top-down; used by stop and by a start that failed half-way."""
        try:
            await self._close_rooms(commit_wait_s)
        finally:
            await self._leave_store()
            self._restore_switch_interval()
            self._state = "stopped"

    async def _close_rooms(self, commit_wait_s: float) -> None:
        gateway = getattr(self, "_gateway", None)
        if gateway is not None:
            await gateway.stop(0)
        service = getattr(self, "reminder_service", None)
        if service is not None:
            await service.close()
        streams = getattr(self, "stream_service", None)
        if streams is not None:
            await streams.close()
        if hasattr(self, "_core"):
            self._catalog.close()
            self._core.carriers.close()
            await self._turn_tasks.stop()
            await self._tasks.stop()
            await self._commit_tasks.wait(commit_wait_s)
            await self._commit_tasks.stop()
            await self._turn_tasks.stop()  # the end of a commit may have begun another
            self._caller.close()

    async def _leave_store(self) -> None:
        """What the store says to it is logged: nobody can do more about a silo that ends."""
        if not hasattr(self, "provider"):
            return
        if hasattr(self, "number"):
            try:
                await self.provider.leave(self.number, self._clock.now())
            except Exception as error:
                fault = not isinstance(error, StoreError)
                text = "the store did not take the good-bye of silo %d: %s"
                log.warning(text, self.number, error, exc_info=fault)
        try:
            await self.provider.close()
        except Exception:
            log.exception("the store did not close in order")

    # ---- repeated work

    async def _collect(self) -> None:
        self._catalog.collect()

    async def _renew(self) -> None:
        try:
            known = await self.provider.renew(self.number, self._clock.now())
        except StoreChanged as error:
            self._dispossessed(str(error))
        else:
            if not known:
                self._dispossessed("the store no longer knows this silo")


def _declared(cls: Any) -> GrainClass:
    if not (isinstance(cls, type) and issubclass(cls, Grain) and cls is not Grain):
        raise TypeError(f"grains= takes subclasses of farro.silo.Grain, not {cls!r}")
    return cls.__farro_class__
