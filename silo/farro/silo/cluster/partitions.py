"""Takes, hands over and gives up partitions: the store first, then the tables of the silo."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from farro.client.clock import Clock
from farro.providers.contracts import Provider
from farro.providers.errors import Unavailable
from farro.providers.members import ClusterRows
from farro.silo.activations.catalog import Catalog
from farro.silo.options import ClusterOptions
from farro.silo.ownership import Owned, Ownership

log = logging.getLogger("farro.cluster")


class Partitions:
    """One silo's own.  ``number`` changes when the silo has to join anew."""

    def __init__(
        self,
        provider: Provider,
        ownership: Ownership,
        catalog: Catalog,
        clock: Clock,
        options: ClusterOptions,
        number: int,
    ) -> None:
        self.number = number
        self._provider = provider
        self._ownership = ownership
        self._catalog = catalog
        self._clock = clock
        self._options = options
        self._handing_over = asyncio.Lock()

    async def take(self, partitions: Sequence[int], epochs: Sequence[int]) -> int:
        """Take what is free, in batches; how many were taken.  Raises what the store raises."""
        taken, number = 0, self.number
        most = self._options.take_batch_max
        for start in range(0, len(partitions), most):
            batch = partitions[start : start + most]
            now = self._clock.now()
            seen = [epochs[partition] for partition in batch]
            rows = await self._provider.take(number, batch, now, seen)
            if number != self.number:
                break  # it was taken for dead meanwhile, and these with it
            # This silo's since the store took the request, which nobody here can date: what fell due since it
            # was asked may have fallen due to this owner, and is delivered.
            self._ownership.take_all(
                {row.partition: Owned(row.epoch, now, row.previous_alive_at) for row in rows}
            )
            taken += len(rows)
            await asyncio.sleep(0)
        return taken

    async def hand_over(self, partitions: Sequence[int]) -> None:
        """Let what is awake there come to rest, free them in the store, forget them; each as soon as it can.

        Calls that come meanwhile wait for the next owner.  Raises what the store raises.  If the store took
        nothing they stay; if that is not known they may be another's already: they are served no more, and
        the next look takes them again or lets them go.
        """
        going = frozenset(partitions)
        limit_s = self._options.hand_over_timeout.total_seconds()
        async with self._handing_over:
            self._ownership.close(going)
            try:
                async with aclosing(self._catalog.leave(going, limit_s)) as leaving:
                    async for at_rest in leaving:
                        await self._free(at_rest)
            finally:
                self._ownership.keep(going)

    async def _free(self, partitions: frozenset[int]) -> None:
        # The silo may be taken for dead meanwhile, join anew and take some of them again: those stay.
        epoch = self._ownership.epoch
        going = {each: epoch(each) for each in partitions & self._ownership.closing}
        freed = True
        try:
            await self._provider.release(self.number, sorted(going), self._clock.now())
        except Unavailable:
            freed = False
            raise
        finally:
            if freed:
                self.forget(frozenset(each for each, before in going.items() if epoch(each) == before))

    async def let_go(self, partitions: Sequence[int]) -> None:
        """Free what the store has under this silo's number and the silo does not serve."""
        await self._provider.release(self.number, partitions, self._clock.now())

    def forget(self, partitions: frozenset[int]) -> None:
        """They are another silo's, or nobody's."""
        self._ownership.drop(partitions)
        self._catalog.drop(partitions)

    def lost(self, rows: ClusterRows) -> frozenset[int]:
        """Of those the silo thinks its own, those that the store gives to somebody else."""
        return frozenset(
            partition
            for partition in self._ownership.all() - self._ownership.closing
            if rows.owners[partition] != self.number
            or rows.epochs[partition] != self._ownership.epoch(partition)
        )

    def begin_anew(self, alive_until: int) -> None:
        """A silo that was frozen has thawed: what fell due meanwhile was missed by absence, not by load."""
        now = self._clock.now()
        owned = {partition: self._ownership.owned(partition) for partition in self._ownership.all()}
        self._ownership.take_all(
            {partition: Owned(each.epoch, now, alive_until) for partition, each in owned.items() if each}
        )
