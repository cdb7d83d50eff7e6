"""Brings events to their subscribers, wherever these live, and passes over what none of them can take.

A subscriber's turn runs, and its watermark moves, where its partition is owned.  A publisher's lane that is
served elsewhere asks that owner, by the grain ``farro.partition/<p>``, to bring the event.  The owner answers
what became of it, or after a while that it still runs: asking again then waits for the same turn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from farro.client.errors import (
    AlreadyConsumed,
    CommitOutcomeUnknown,
    Conflict,
    FarroError,
    Fenced,
    GrainDestroyed,
    NoSuchMethod,
    SiloStopping,
    StorageUnavailable,
    UnknownGrainType,
)
from farro.client.identity import GrainId
from farro.client.interface import grain_interface, interface_of
from farro.client.reference import Caller, reference
from farro.client.streams import StoredEvent, unpack_event
from farro.providers.errors import StoreError
from farro.providers.rows import Outcome, Watermark
from farro.silo.activations.invocation import Invocation
from farro.silo.grains.subscriptions import subscriptions_of
from farro.silo.streams.core import Brought, Fate, Place, StreamCore, begun_mark, positions_in, source_of
from farro.silo.streams.delivery import EventDelivery

log = logging.getLogger("farro.streams")

HOLD_S = 5.0  # of loop time: how long an owner waits for a turn before it says that it runs; no slow turn
CALL_TIMEOUT_S = 4 * HOLD_S
NOT_CONSUMED = (
    Fenced, Conflict, StorageUnavailable, CommitOutcomeUnknown, SiloStopping, GrainDestroyed,
    UnknownGrainType, NoSuchMethod,
)  # fmt: skip
"""What does not speak against the event itself: it is brought again, until a silo takes it."""

OutKey = tuple[str, str, str, int, int]


@grain_interface("farro.partition")
class OwnerApi(Protocol):
    """What the owner of a subscriber's partition does for the silo that serves the publisher's."""

    async def bring(
        self, grain_type: str, grain_key: str, method: str, stream: str, event: StoredEvent
    ) -> Brought: ...

    async def pass_over(
        self, grain_type: str, grain_key: str, stream: str, partition: int, sequence: int
    ) -> bool: ...

    async def begin_now(self, place_type: str, place_key: str, stream: str) -> bool: ...


class Subscribers:
    def __init__(self, core: StreamCore, caller: Caller) -> None:
        self._core = core
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._out: dict[OutKey, asyncio.Future[Brought]] = {}  # events whose turns run, or wait, here

    def _owner(self, partition: int) -> OwnerApi:
        owner = reference(interface_of(OwnerApi), str(partition), self._caller, CALL_TIMEOUT_S)
        return cast(OwnerApi, owner)

    def _partition_of(self, place: Place) -> int:
        return self._core.ownership.partition_of(*place)

    def _owns(self, partition: int) -> bool:
        return self._core.ownership.owned(partition) is not None

    # ---- an event

    async def bring(self, target: GrainId, method: str, stream: str, event: StoredEvent) -> Brought:
        """Have the event consumed, however long its turn takes.  Raises nothing of farro's."""
        partition = self._partition_of((target.type, target.key))
        if self._owns(partition):
            return await asyncio.shield(self._bring_here(target, method, stream, event))
        answer = Brought(Fate.RUNNING)
        while answer.fate == Fate.RUNNING:
            try:
                answer = await self._owner(partition).bring(target.type, target.key, method, stream, event)
            except FarroError as error:  # of the way there or back: nobody knows
                return Brought(Fate.UNKNOWN, str(error))
        return answer

    async def bring_for_other(
        self, grain_type: str, grain_key: str, method: str, stream: str, event: StoredEvent
    ) -> Brought:
        """:meth:`bring` at the owner's, for another silo: says after a while that the turn still runs."""
        known = self._core.catalog.known(grain_type)
        wanted = () if known is None else subscriptions_of(known)
        if not any((each.stream, each.method) == (stream, method) for each in wanted):
            return Brought(Fate.UNKNOWN, f"this silo knows no subscription {grain_type}.{method} to {stream}")
        running = self._bring_here(GrainId(grain_type, grain_key), method, stream, event)
        await asyncio.wait((running,), timeout=HOLD_S)
        return running.result() if running.done() else Brought(Fate.RUNNING)

    def _bring_here(
        self, target: GrainId, method: str, stream: str, event: StoredEvent
    ) -> asyncio.Future[Brought]:
        """The turn of an event on this silo; the one that is out already, if one is."""
        key = (target.type, target.key, stream, event.partition, event.sequence)
        running = self._out.get(key)
        if running is not None:
            return running
        done: asyncio.Future[Brought] = self._loop.create_future()
        self._out[key] = done
        mark = Watermark(source_of(stream, event.partition), event.sequence)
        delivery = EventDelivery(self._core, unpack_event(self._core.codec, stream, event), mark)

        def respond(_: object, error: FarroError | None) -> None:
            self._out.pop(key, None)
            if not done.done():
                done.set_result(Brought(Fate.UNKNOWN) if delivery.dropped else _fate(error))

        self._core.catalog.submit(
            Invocation(
                target.type,
                target.key,
                method,
                [],
                None,
                float("inf"),
                (),
                respond,
                external=False,
                delivery=delivery,
            )
        )
        return done

    # ---- an event that is given up

    async def pass_over(self, target: GrainId, stream: str, partition: int, sequence: int) -> bool:
        """Move the subscriber's watermark over the event where it lives; False: not now."""
        owner = self._partition_of((target.type, target.key))
        try:
            if self._owns(owner):
                return await self.pass_over_here(target.type, target.key, stream, partition, sequence)
            return await self._owner(owner).pass_over(target.type, target.key, stream, partition, sequence)
        except FarroError as trouble:
            log.warning("an event of stream %r is not passed over yet: %s", stream, trouble)
            return False

    async def pass_over_here(
        self, grain_type: str, grain_key: str, stream: str, partition: int, sequence: int
    ) -> bool:
        place = (grain_type, grain_key)
        return await self._move(place, Watermark(source_of(stream, partition), sequence))

    # ---- where a subscription begins

    async def begin_now(self, place: Place, stream: str) -> bool:
        """Settle ``after="now"``, once for all silos; False: not now."""
        owner = self._partition_of(place)
        try:
            if self._owns(owner):
                return await self.begin_now_here(*place, stream)
            return await self._owner(owner).begin_now(*place, stream)
        except FarroError as trouble:
            log.warning("where a subscription to %r begins is not settled yet: %s", stream, trouble)
            return False

    async def begin_now_here(self, place_type: str, place_key: str, stream: str) -> bool:
        """One commit, which a second one duplicates: whoever comes later finds what was settled first."""
        place = (place_type, place_key)
        try:
            watermarks = await self._core.provider.watermarks(*place)
            if begun_mark(stream).source in watermarks or positions_in(watermarks, stream):
                return True
            heads = await self._core.provider.stream_heads(stream)
        except StoreError as error:
            raise StorageUnavailable(f"stream {stream!r} could not be read: {error}") from error
        marks = [Watermark(source_of(stream, each), head) for each, head in heads]
        return await self._move(place, begun_mark(stream), *marks)

    async def _move(self, place: Place, *marks: Watermark) -> bool:
        core = self._core
        verdict = await core.committer.commit(core.watermark_commit(place, self._partition_of(place), *marks))
        return verdict.outcome in (Outcome.COMMITTED, Outcome.DUPLICATE)


def _fate(error: FarroError | None) -> Brought:
    if error is None:
        return Brought(Fate.CONSUMED)
    if isinstance(error, AlreadyConsumed):
        return Brought(Fate.ALREADY)
    return Brought(Fate.UNKNOWN if isinstance(error, NOT_CONSUMED) else Fate.FAILED, str(error))
