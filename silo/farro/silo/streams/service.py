"""The stream line of one silo: what turns publish, whom it is brought to, who reads it, when it goes.

Theory of operation.  ``publish`` stages an event in the running turn; it is appended by that turn's commit.
The committer tells of every commit that carried events: their subscriptions' lanes and their waiting readers
wake.  Nothing polls.  A commit whose answer was lost tells nothing although its events may be there, so when
commits have failed, and twice a minute anyway, the heads of subscribed streams are compared with what was
brought.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from farro.client.clock import Clock, duration_us
from farro.client.codec import Codec
from farro.client.errors import FarroError, InvalidPayload
from farro.client.reference import Caller
from farro.client.streams import checked_stream, pack_event
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.rows import Commit, EventRow, Outcome, Verdict, Watermark
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.commit import Committer
from farro.silo.activations.failures import printable
from farro.silo.grains.context import turn_of
from farro.silo.grains.grain import Grain
from farro.silo.grains.grain_class import GrainClass
from farro.silo.grains.subscriptions import subscriptions_of
from farro.silo.options import StreamOptions
from farro.silo.ownership import Ownership
from farro.silo.streams.core import KNOWN, StreamCore, StreamStatistics
from farro.silo.streams.pump import Pump
from farro.silo.streams.reading import StreamReader
from farro.silo.streams.subscribers import Subscribers
from farro.silo.streams.trimming import Trimmer
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.streams")

LOOK_S = 30.0  # of loop time
BEGIN_AGAIN_S = 1.0  # of loop time, after lanes could not begin


class StreamService:
    """One per silo; ``publish`` is what :meth:`Grain.publish` calls, ``reader`` what readers' grains call."""

    def __init__(
        self,
        *,
        provider: Provider,
        clock: Clock,
        codec: Codec,
        catalog: Catalog,
        committer: Committer,
        ownership: Ownership,
        options: StreamOptions,
        random: Random,
        classes: Iterable[GrainClass],
        caller: Caller,
    ) -> None:
        self._core = StreamCore(
            provider=provider,
            clock=clock,
            codec=codec,
            catalog=catalog,
            committer=committer,
            ownership=ownership,
            options=options,
            random=random,
            tasks=TaskOwner("streams"),
        )
        self.reader = StreamReader(self._core)
        self.subscribers = Subscribers(self._core, caller)
        self._trimmer = Trimmer(self._core)
        self._pumps: dict[str, list[Pump]] = {}
        for known in classes:
            for subscription in subscriptions_of(known):
                self._pumps.setdefault(subscription.stream, []).append(
                    Pump(self._core, self.subscribers, subscription)
                )
        self._known: set[str] = set()
        self._failures_seen = committer.failures
        self._looking = False
        self._epochs: dict[int, int] = {}  # of the partitions served, or about to be
        self._pending: set[int] = set()  # of them, those whose lanes have not begun
        self._begun = asyncio.Event()  # nothing is pending
        self._beginning = False
        committer.listen(self._committed)
        ownership.listen(taken=self._taken, closing=self.reader.leave, dropped=self._dropped)

    @property
    def statistics(self) -> StreamStatistics:
        return self._core.statistics

    # ---- life

    async def start(self) -> None:
        """Read where every subscription stands and begin to deliver.  Raises what the store raises."""
        core = self._core
        core.running = True
        self._known = set(await core.provider.watermarks(*KNOWN))
        self._want(core.ownership.all())
        self._beginning = True
        await self._begin_pending()
        self._beginning = False
        self._begun.set()
        self._begin_soon()
        if self._pumps:
            core.tasks.repeat(self._look, LOOK_S, "look at streams")
        core.tasks.start(self._trim_again_and_again(), "trim streams")

    def stop(self) -> None:
        """Begin no new delivery and answer every waiting reader.  What runs goes on to its commit."""
        self._core.running = False
        self.reader.wake_all()
        for pump in self._all_pumps():
            pump.save()

    async def close(self) -> None:
        self.stop()
        await self._core.tasks.stop()

    # ---- partitions that come and go

    def _want(self, partitions: frozenset[int]) -> None:
        """Serve them; under the epoch they are served by now it was a thaw, and their lanes stand."""
        epoch = self._core.ownership.epoch
        fresh = frozenset(each for each in partitions if self._epochs.get(each) != epoch(each))
        self._end(fresh)
        self._epochs.update((each, epoch(each)) for each in fresh)
        self._pending |= fresh

    def _taken(self, partitions: frozenset[int]) -> None:
        if not self._core.running:
            return  # the start looks at what is owned
        self._want(partitions)
        self._begin_soon()

    def _begin_soon(self) -> None:
        if self._pending and not self._beginning:
            self._beginning = True
            self._begun.clear()
            self._core.tasks.start(self._begin_in_time(), "begin lanes")

    async def _begin_in_time(self) -> None:
        try:
            while self._pending and self._core.running:
                try:
                    begun = await self._begin_pending()
                except StoreError as error:
                    log.warning("streams of partitions just taken wait for the store: %s", error)
                    begun = False
                if not begun:
                    await asyncio.sleep(BEGIN_AGAIN_S)
        finally:
            self._beginning = False
            if not self._pending:
                self._begun.set()

    async def settled(self) -> None:
        """Wait until the lanes of partitions just taken have begun."""
        await self._begun.wait()

    async def _begin_pending(self) -> bool:
        """Begin the lanes of every subscription; False: some are to be tried again."""
        while partitions := frozenset(self._pending):
            epochs = {each: self._epochs[each] for each in partitions}
            begun = [await pump.begin(partitions) for pump in self._all_pumps()]
            if not all(begun):
                return False
            for each in partitions:
                if self._epochs.get(each) == epochs[each]:
                    self._pending.discard(each)
                else:  # it has gone, and perhaps come back, since: what was read may be old
                    self._end_lanes((each,))
        return True

    def _dropped(self, partitions: frozenset[int]) -> None:
        self._end(partitions)
        self.reader.leave(partitions)
        self.reader.others_publish()

    def _end(self, partitions: Iterable[int]) -> None:
        for each in partitions:
            self._epochs.pop(each, None)
            self._pending.discard(each)
        self._end_lanes(partitions)

    def _end_lanes(self, partitions: Iterable[int]) -> None:
        for pump in self._all_pumps():
            pump.end(partitions)

    def _all_pumps(self) -> list[Pump]:
        return [pump for pumps in self._pumps.values() for pump in pumps]

    # ---- publish

    def publish(self, grain: Grain[Any], stream: str, value: object) -> None:
        """Stage an event of the grain's running turn."""
        turn = turn_of(grain, "publish()")
        turn.effects.check("publish()")
        options = self._core.options
        stream = checked_stream(stream)
        if stream not in self._known and len(self._known) >= options.streams_max:
            raise InvalidPayload(
                f"stream {stream!r} would be one more than StreamOptions.streams_max "
                f"({options.streams_max}); put what distinguishes the events into their value"
            )
        if len(turn.effects.events) >= options.events_per_turn_max:
            raise InvalidPayload(
                f"a turn publishes at most {options.events_per_turn_max} events "
                "(StreamOptions.events_per_turn_max); publish one with many parts"
            )
        payload = pack_event(self._core.codec, grain.id, value)
        if len(payload) > options.event_bytes_max:
            raise InvalidPayload(
                f"the event for stream {stream!r} takes {len(payload):,} bytes packed; at most "
                f"{options.event_bytes_max:,} are allowed: publish a pointer to where it is stored"
            )
        turn.effects.events.append(EventRow(stream, payload, self._core.clock.now()))

    # ---- what commits tell

    def _committed(self, members: list[tuple[Commit, Verdict]]) -> None:
        for commit, _ in members:
            if commit.events:
                self._published(commit)
        if self._core.committer.failures != self._failures_seen and self._core.running:
            self._failures_seen = self._core.committer.failures
            if not self._looking:
                self._core.tasks.start(self._look(), "look at streams")

    def _published(self, commit: Commit) -> None:
        for stream, count in Counter(event.stream for event in commit.events).items():
            self.statistics.published += count
            if stream not in self._known:
                self._make_known(stream, commit.partition)
            if commit.partition in self._epochs:
                for pump in self._pumps.get(stream, ()):
                    pump.wake(commit.partition)
            self.reader.wake(stream)

    def _make_known(self, stream: str, partition: int) -> None:
        """Write the name down: nothing else says which streams there are to trim."""
        self._known.add(stream)
        core = self._core
        done = core.committer.commit(core.watermark_commit(KNOWN, partition, Watermark(stream, 1)))
        done.add_done_callback(lambda done: self._made_known(stream, done))

    def _made_known(self, stream: str, done: asyncio.Future[Verdict]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None and done.result().outcome in (Outcome.COMMITTED, Outcome.DUPLICATE):
            return
        self._known.discard(stream)  # its next event tries again, here or on whoever owns the partition then
        log.info("stream %s is not yet on record: %s", printable(stream), error or done.result().outcome.name)

    async def _look(self) -> None:
        """Wake whatever is behind."""
        self._looking = True
        self._failures_seen = self._core.committer.failures
        try:
            self.reader.wake_all()
            for pump in self._all_pumps():
                await pump.look()
        except StoreError as error:
            log.warning("streams could not be looked at; the next look comes soon: %s", error)
        finally:
            self._looking = False

    # ---- retention

    async def _trim_again_and_again(self) -> None:
        core = self._core
        pause = min(core.options.trim_interval, core.options.first_trim_after)
        while True:
            await asyncio.sleep(core.clock.loop_seconds(duration_us(pause)))
            await self.trim()
            pause = core.options.trim_interval

    async def trim(self) -> None:
        """Delete what is older than the retention, in every stream on record; repeated by the service.

        Each silo trims the partitions it owns; other silos may have put streams on record since.
        """
        try:
            self._known |= set(await self._core.provider.watermarks(*KNOWN))
        except StoreError as error:
            log.warning("the streams on record could not be read: %s", error)
        for stream in sorted(self._known):
            try:
                await self._trimmer.trim(stream, self._pumps.get(stream, ()))
            except (StoreError, FarroError) as error:
                log.warning("stream %s was not trimmed: %s", printable(stream), error)
