"""The rooms of a running silo: built bottom-up, closed top-down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

from farro.client.clock import Clock, duration_us
from farro.client.codec import Codec
from farro.providers.contracts import Provider
from farro.silo.activations import requests
from farro.silo.activations.calls import LocalCaller
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.activations.core import Core
from farro.silo.activations.loading import Loader
from farro.silo.activations.turns import Turns
from farro.silo.activations.watch import TurnWatch
from farro.silo.grains.grain_class import GrainClass
from farro.silo.grains.reminder_book import ReminderBook
from farro.silo.grains.reminder_rows import RowMaker
from farro.silo.options import ReminderOptions, SiloOptions
from farro.silo.ownership import Ownership
from farro.silo.reminders.machine_load import MachineLoad
from farro.silo.reminders.management import ReminderDesk
from farro.silo.reminders.management_owners import ClusterDesk
from farro.silo.reminders.registration import DeclaredReminders
from farro.silo.reminders.service import ReminderService
from farro.silo.streams.service import StreamService
from farro.silo.tasks import TaskOwner

FORGET_TIMES_PER_WINDOW = 48  # so that an answer is kept at most a fiftieth longer than the window

log = logging.getLogger("farro.silo")


class Rooms:
    """Everything between an open store and a gateway."""

    def __init__(
        self,
        provider: Provider,
        ownership: Ownership,
        classes: Sequence[GrainClass],
        options: SiloOptions,
        clock: Clock,
        random: Random,
        machine_load: Callable[[], MachineLoad],
    ) -> None:
        self._provider = provider
        self._options = options
        self._provider = provider
        self._clock = clock
        reminders = options.reminders or ReminderOptions()
        activations = options.activations
        self.tasks = TaskOwner("silo")
        self.turn_tasks = TaskOwner("turns")
        self.commit_tasks = TaskOwner("commits")
        self.committer = Committer(
            provider,
            clock,
            self.commit_tasks,
            batch_max=activations.commit_batch_max,
            batch_bytes_max=activations.commit_bytes_max,
        )
        self.caller = LocalCaller(activations.call_timeout.total_seconds(), random)
        self.codec = Codec(self.caller)
        self._row_maker = RowMaker(clock, ownership, reminders.minimum_period)
        self.core = Core(
            clock=clock,
            random=random,
            codec=self.codec,
            ownership=ownership,
            committer=self.committer,
            loader=Loader(provider, self.commit_tasks),
            tasks=self.turn_tasks,
            options=activations,
            caller=self.caller,
            book=ReminderBook(self._row_maker, self.codec, provider),
            reminders_max=reminders.reminders_per_grain_max,
        )
        self.core.turns = Turns(self.core)
        self.catalog = Catalog(self.core, classes)
        self.caller.connect(self.catalog)
        self.streams = self.core.streams = StreamService(
            provider=provider,
            clock=clock,
            codec=self.codec,
            catalog=self.catalog,
            committer=self.committer,
            ownership=ownership,
            options=options.streams,
            random=random,
            classes=classes,
            caller=self.caller,
        )
        self.reminders: ReminderService | None = None
        if options.reminders is not None:
            self.reminders = ReminderService(
                provider=provider,
                clock=clock,
                codec=self.codec,
                catalog=self.catalog,
                committer=self.committer,
                ownership=ownership,
                options=options.reminders,
                random=random,
                machine_load=machine_load,
                declared=DeclaredReminders(
                    classes,
                    provider=provider,
                    committer=self.committer,
                    ownership=ownership,
                    rows=self._row_maker,
                ),
            )
        here = ReminderDesk(
            provider=provider,
            committer=self.committer,
            ownership=ownership,
            catalog=self.catalog,
            clock=clock,
            rows=self._row_maker,
            service=self.reminders,
            reminders_max=self.core.reminders_max,
        )
        self.core.desk = ClusterDesk(
            here, provider=provider, ownership=ownership, caller=self.caller, committer=self.committer
        )

    async def open(self) -> None:
        """Begin what repeats, then streams and reminders: what the latter publish finds its subscribers."""
        options = self._options.activations
        self.tasks.repeat(self._collect, options.collect_interval.total_seconds(), "collect")
        watch = TurnWatch(self.core, options.slow_turn.total_seconds())
        self.tasks.repeat(watch.look, options.slow_turn.total_seconds() / 2, "watch turns")
        window_s = self._clock.loop_seconds(duration_us(self._options.request_window))
        self.tasks.repeat(self._forget_requests, window_s / FORGET_TIMES_PER_WINDOW, "forget requests")
        await self.streams.start()
        if self.reminders is not None:
            await self._open_reminders(self.reminders)

    async def _open_reminders(self, service: ReminderService) -> None:
        await service.start()
        every_s = self._clock.loop_seconds(duration_us(service.options.repair_interval))
        self.tasks.repeat(service.repair, every_s, "repair reminders")

    async def settled(self, limit_s: float) -> None:
        """Wait until partitions just taken are served in full; what takes longer goes on by itself."""
        try:
            async with asyncio.timeout(limit_s):
                await self.streams.settled()
                if self.reminders is not None:
                    await self.reminders.settled()
        except TimeoutError:
            log.warning("not everything due on the partitions of this silo is at hand yet")

    @property
    def healthy(self) -> bool:
        """The store takes commits and answers loads and polls."""
        polls = self.reminders is None or self.reminders.healthy
        return self.committer.healthy and self.core.loader.healthy and polls

    @property
    def quiet(self) -> bool:
        """No turn runs, and no reminder is due."""
        return not (self.core.running or (self.reminders is not None and self.reminders.held.queue.ready))

    async def _forget_requests(self) -> None:
        window_us = duration_us(self._options.request_window)
        await requests.forget_old(self._provider, self._clock, window_us)

    async def _collect(self) -> None:
        self.catalog.collect()

    def trust(self, lease: bool) -> None:
        """Begin ticks only while the silo may trust that its partitions are its own."""
        if self.reminders is not None:
            if lease:
                self.reminders.resume()
            else:
                self.reminders.pause()

    def begin_nothing_new(self, reason: str) -> None:
        """Take no calls from clients, no ticks and no events any more; what has begun goes on."""
        self.catalog.refuse(reason)
        if self.reminders is not None:
            self.reminders.stop()
        self.streams.stop()

    async def turns_end(self, deadline: float) -> bool:
        """Wait until no turn runs and no commit is under way; False when ``deadline`` came first.

        The end of a commit may begin the next turn of its grain, and a turn may bring the next commit.
        """
        loop = asyncio.get_running_loop()
        while self.turn_tasks.busy or self.commit_tasks.busy:
            for tasks in (self.turn_tasks, self.commit_tasks):
                if not await tasks.wait(deadline - loop.time()):
                    return False
        return True

    async def close(self, commit_wait_s: float) -> None:
        """Cut off what still runs; commits under way may take ``commit_wait_s`` seconds to be answered."""
        if self.reminders is not None:
            await self.reminders.close()
        await self.streams.close()
        self.catalog.close()
        self.core.carriers.close()
        await self.turn_tasks.stop()
        await self.tasks.stop()
        await self.commit_tasks.wait(commit_wait_s)
        await self.commit_tasks.stop()
        await self.turn_tasks.stop()  # the end of a commit may have begun another
        self.caller.close()
