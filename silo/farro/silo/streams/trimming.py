"""Deletes events that are older than the retention, by their age alone.

A subscriber or consumer that sleeps longer than the retention misses events: the silo's own subscriptions
are counted and warned of, a reader is told of the gap.  The first look comes a while after the start, so that
subscriptions of a service that was down for long can catch up before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import takewhile

from farro.client.clock import duration_us
from farro.providers.rows import Outcome, Watermark
from farro.silo.activations.failures import printable
from farro.silo.streams.core import TRIMMED_TYPE, StreamCore
from farro.silo.streams.pump import Pump

log = logging.getLogger("farro.streams")

PAGE = 500  # events deleted in one go


class Trimmer:
    def __init__(self, core: StreamCore) -> None:
        self._core = core

    async def trim(self, stream: str, pumps: Iterable[Pump]) -> None:
        """One stream, in the partitions owned here.  Raises what the store raises; repeatable."""
        core = self._core
        before = core.clock.now() - duration_us(core.options.retention)
        for partition, _ in await core.provider.stream_heads(stream):
            unread = dict.fromkeys(pumps, 0)
            while core.running and core.ownership.owned(partition) is not None:
                page = await core.provider.events(partition, stream, 0, PAGE)
                old = [number for number, _ in takewhile(lambda entry: entry[1].at < before, page)]
                if not old or not await self._delete(stream, partition, old[-1]):
                    break
                core.statistics.trimmed += len(old)
                for pump in unread:
                    unread[pump] += sum(number > pump.cursor(partition) for number in old)
                if len(old) < PAGE:
                    break
            self._tell(stream, partition, unread)

    async def _delete(self, stream: str, partition: int, until: int) -> bool:
        """The mark comes first: a reader must never meet a gap that nothing tells of."""
        core = self._core
        mark = Watermark(str(partition), until)
        verdict = await core.committer.commit(core.watermark_commit((TRIMMED_TYPE, stream), partition, mark))
        if verdict.outcome not in (Outcome.COMMITTED, Outcome.DUPLICATE):
            return False
        await core.provider.trim_events(stream, partition, until)
        return True

    def _tell(self, stream: str, partition: int, unread: dict[Pump, int]) -> None:
        for pump, count in unread.items():
            if not count:
                continue
            self._core.statistics.trimmed_unread += count
            log.warning(
                "%d events of stream %s were older than %s and are gone before %s.%s consumed them "
                "(partition %d); raise StreamOptions.retention if it falls behind for so long",
                count,
                printable(stream),
                self._core.options.retention,
                pump.subscription.grain_type,
                pump.subscription.method,
                partition,
            )
