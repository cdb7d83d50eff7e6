"""The management verbs wherever the reminders' grains live: each change is made by the silo that owns them.

Theory of operation.  A verb on one reminder comes to this silo because its grain lives here; then nothing is
different from a silo that is alone.  When it lives elsewhere (a key that is too long to route by, a partition
that has just moved) the verb is passed on to ``farro.partition/<p>``, which lives where the partition is
owned.  A bulk verb reads its page of rows here, changes what is owned here, and asks each of the other owners
once per partition.  What a partition on its way between two silos refuses is tried again until the deadline
of the call: a refused change has changed nothing, and a repeated one finds its work done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, cast

from farro.client.errors import (
    FarroError,
    Fenced,
    NotMine,
    SiloStopping,
    SiloUnavailable,
    StorageUnavailable,
)
from farro.client.identity import GrainId
from farro.client.interface import grain_interface, interface_of
from farro.client.management import BulkPage, ReminderApi
from farro.client.reference import Caller, reference
from farro.client.reminders import PastTick, ReminderQuery, TickHistory
from farro.providers.contracts import Provider
from farro.providers.errors import StoreError
from farro.providers.members import SiloStatus
from farro.providers.rows import FAILED, PAUSED, SCHEDULED, ReminderRow
from farro.silo.activations.commit import Committer
from farro.silo.grains.context import CURRENT
from farro.silo.ownership import Ownership
from farro.silo.reminders.management import BULK_MAX, Names, ReminderDesk, all_of
from farro.silo.reminders.management_moves import checked_note
from farro.silo.reminders.management_reading import PageKey, checked_limit, name_key

OWNERS_AT_A_TIME = 16  # calls of one bulk verb that are out together
MOVE_WAIT_S = 10.0  # of loop time: a partition is somewhere by then, or its verb fails
AGAIN_FIRST_S, AGAIN_MAX_S = 0.02, 0.5
HISTORY_WAIT_S = 2.0  # for a silo's last ticks; one that takes longer is named
SERVING = (SiloStatus.ACTIVE, SiloStatus.DRAINING)

T = TypeVar("T")
Verb = Callable[[ReminderApi], Awaitable[None]]
"""Asks whoever carries it out."""


@grain_interface("farro.partition")
class OwnerApi(ReminderApi, Protocol):
    """What the owner of a partition does to its reminders for other silos."""

    async def pause_some(self, names: Names, note: str | None) -> int: ...

    async def resume_some(self, names: Names, note: str | None) -> int: ...

    async def delete_some(self, names: Names) -> int: ...


@grain_interface("farro.silo")
class SiloApi(Protocol):
    """What a silo tells the others of itself."""

    async def last_ticks(
        self, grain_type: str | None, grain_key: str | None, name: str | None, limit: int
    ) -> list[PastTick]: ...


class ClusterDesk:
    """The verbs for grains anywhere; ``here`` are those for the partitions of this silo, ``look`` reads."""

    def __init__(
        self,
        here: ReminderDesk,
        *,
        provider: Provider,
        ownership: Ownership,
        caller: Caller,
        committer: Committer,
    ) -> None:
        self.here = here
        self.look = here.look
        self._provider = provider
        self._ownership = ownership
        self._caller = caller
        self._committer = committer
        self._loop = asyncio.get_running_loop()

    @property
    def number(self) -> int:
        """This silo's in the store; another one after it was taken for dead."""
        return self._committer.owner

    # ---- one reminder

    async def for_grain(self, grain: GrainId, verb: Verb) -> None:
        """Carry out a verb for a reminder of that grain: here, or by whoever owns its partition."""
        partition = self._ownership.partition_of(grain.type, grain.key)
        if self._ownership.owned(partition) is not None:
            try:
                await verb(self.here)
                return
            except Fenced:  # it has moved since: nothing changed here
                pass
        await self._at_owner(partition, verb)

    async def _at_owner(self, partition: int, ask: Callable[[OwnerApi], Awaitable[T]]) -> T:
        """The answer of a partition's owner, whoever comes to be it before the deadline of the call."""
        owner = cast(OwnerApi, reference(interface_of(OwnerApi), str(partition), self._caller))
        turn = CURRENT.get()
        give_up_at = self._loop.time() + MOVE_WAIT_S
        if turn is not None:
            give_up_at = min(give_up_at, turn.deadline)
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                return await ask(owner)
            except FarroError as error:
                if not _moves(error) or self._loop.time() + pause_s > give_up_at:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MAX_S)

    # ---- in bulk

    async def pause_all(self, query: ReminderQuery, note: str | None, page: PageKey) -> BulkPage:
        note = checked_note(note)
        rows = await self.look.rows(query, BULK_MAX, page, (SCHEDULED,))
        return await self._for_rows(
            rows,
            lambda mine: self.here.pause_rows(mine, note),
            lambda owner, names: owner.pause_some(names, note),
        )

    async def resume_all(self, query: ReminderQuery, note: str | None, page: PageKey) -> BulkPage:
        """What cannot be read stays failed."""
        note = checked_note(note)
        rows = await self.look.rows(query, BULK_MAX, page, (PAUSED, FAILED))
        return await self._for_rows(
            rows,
            lambda mine: self.here.resume_rows(mine, note),
            lambda owner, names: owner.resume_some(names, note),
        )

    async def delete_all(self, query: ReminderQuery, page: PageKey) -> BulkPage:
        rows = await self.look.rows(query, BULK_MAX, page)
        return await self._for_rows(
            rows,
            lambda mine: self.here.delete_rows(mine),
            lambda owner, names: owner.delete_some(names),
        )

    async def _for_rows(
        self,
        rows: Sequence[ReminderRow],
        here: Callable[[Sequence[ReminderRow]], Awaitable[int]],
        there: Callable[[OwnerApi, Names], Awaitable[int]],
    ) -> BulkPage:
        """Change what is owned here at once, the rest by one call to each partition's owner."""
        changed = 0
        mine = [row for row in rows if self._ownership.owned(row.partition) is not None]
        others = [row for row in rows if self._ownership.owned(row.partition) is None]
        if mine:
            try:
                changed += await here(mine)
            except Fenced:  # some have moved since; what was changed is found so by whoever owns it
                others += mine
        names: dict[int, Names] = {}
        for row in others:
            names.setdefault(row.partition, []).append((row.grain_type, row.grain_key, row.name))
        places = asyncio.Semaphore(OWNERS_AT_A_TIME)

        async def one(partition: int, some: Names) -> int:
            async with places:
                return await self._at_owner(partition, lambda owner: there(owner, some))

        changed += sum(await all_of(one(partition, some) for partition, some in names.items()))
        return BulkPage(changed, name_key(rows[-1]) if len(rows) == BULK_MAX else None)

    # ---- what was

    async def history(self, grain: GrainId | None, name: str | None, limit: int) -> TickHistory:
        """The last ticks of every silo, newest first; silos that did not tell theirs in time are named."""
        limit = checked_limit(limit)
        try:
            silos = await self._provider.silos()
        except StoreError as error:
            raise StorageUnavailable(f"the silos of this service could not be read: {error}") from error
        others = [each.number for each in silos if each.status in SERVING and each.number != self.number]
        found = self.here.history(grain, name, limit)
        unanswered: list[int] = []
        answers = await asyncio.gather(*(self._ticks_of(each, grain, name, limit) for each in others))
        for number, answer in zip(others, answers, strict=True):
            if answer is None:
                unanswered.append(number)
            else:
                found += answer
        found.sort(key=lambda tick: tick.fired_at, reverse=True)
        return TickHistory(found[:limit], unanswered)

    async def _ticks_of(
        self, number: int, grain: GrainId | None, name: str | None, limit: int
    ) -> list[PastTick] | None:
        silo = cast(SiloApi, reference(interface_of(SiloApi), str(number), self._caller, HISTORY_WAIT_S))
        grain_type, grain_key = (None, None) if grain is None else (grain.type, grain.key)
        try:
            return await silo.last_ticks(grain_type, grain_key, name, limit)
        except FarroError:
            return None  # its number in the answer says so


def _moves(error: FarroError) -> bool:
    """Did nothing happen because a partition is on its way between two silos?"""
    passing = isinstance(error, (Fenced, NotMine, SiloStopping, SiloUnavailable))
    return passing and error.turn_ran is False
