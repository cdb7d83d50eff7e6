"""A provider whose faults are ordered by the test: refused, lost, late, frozen or cut off.

It stands between a silo and any other provider.  What it does to a call is one of :class:`Fault`; the
contract of :mod:`farro.providers.contracts` holds all the same: after ``Unavailable`` nothing has changed,
after ``OutcomeUnknown`` it may have.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TypeVar

from farro.providers.contracts import Provider
from farro.providers.errors import OutcomeUnknown, Unavailable
from farro.providers.members import Members
from farro.providers.rows import (
    Commit,
    EventRow,
    GrainRow,
    OutboxRow,
    PollQuery,
    ReminderCount,
    ReminderFilter,
    ReminderRow,
    StoreInfo,
    Verdict,
)
from farro.silo.host import Silo
from farro.silo.testing.faulty_members import FaultyMembers

T = TypeVar("T")

BATCHES_KEPT = 10_000


class Fault(Enum):
    """What happens to one call."""

    UNAVAILABLE = "not taken"  # Unavailable; the store never hears of it
    LOST_BEFORE = "lost on the way there"  # OutcomeUnknown; the store never hears of it
    LOST_AFTER = "lost on the way back"  # OutcomeUnknown; the store has done it
    STRAGGLES = "lands later"  # OutcomeUnknown; the store does it when somebody loads, as late as it may


class FaultyProvider(FaultyMembers):
    """``inner`` with faults.  Without orders it passes everything through.

    ``calls`` counts the calls of each verb, ``batches`` keeps the sizes of the last commit batches;
    ``policy`` is asked for a fault of every call that has no order (None: none).  All verbs but ``open`` and
    ``close`` can be made to fail; names of verbs are those of the contract.
    """

    def __init__(self, inner: Provider) -> None:
        super().__init__(inner, self._through)
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.batches: deque[int] = deque(maxlen=BATCHES_KEPT)
        self.policy: Callable[[str], Fault | None] = lambda verb: None
        self._orders: dict[str, deque[Fault | None]] = {}
        self._delays: dict[str, tuple[float, float]] = {}
        self._frozen: dict[str, asyncio.Event] = {}
        self._waiting: Counter[str] = Counter()
        self._arrived = asyncio.Event()
        self._is_cut = False
        self._stragglers: deque[Callable[[], Awaitable[object]]] = deque()

    # ---- orders

    def fail(self, verb: str, *faults: Fault | None) -> None:
        """The next calls of ``verb`` meet these faults, one each, in order; None lets one pass."""
        self._orders.setdefault(verb, deque()).extend(faults)

    def delay(self, verb: str, seconds: float, *, answer: float = 0.0) -> None:
        """Calls of ``verb`` take ``seconds`` of loop time to the store and ``answer`` back; 0 ends that.

        A read whose answer takes long tells what was true when the store was asked.
        """
        self._delays[verb] = (seconds, answer)

    def freeze(self, *verbs: str) -> None:
        """Calls of these verbs wait in front of the store until :meth:`thaw` or :meth:`cut`."""
        for verb in verbs:
            self._frozen.setdefault(verb, asyncio.Event())

    def thaw(self) -> None:
        """Whatever waits goes on, in the order it came."""
        frozen, self._frozen = self._frozen, {}
        for gate in frozen.values():
            gate.set()

    async def until_frozen(self, verb: str, count: int = 1) -> None:
        """Wait until ``count`` calls of a frozen verb have arrived."""
        while self._waiting[verb] < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def land(self) -> None:
        """What straggles reaches the store now.  ``load`` and ``take`` see to it, as the contract says."""
        while self._stragglers:
            await self._stragglers.popleft()()

    def cut(self) -> None:
        """The store is out of reach for good: what waits and whatever comes is ``Unavailable``."""
        self._is_cut = True
        self.thaw()

    async def _through(self, verb: str, act: Callable[[], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        to_store, back = self._delays.get(verb, (0.0, 0.0))
        if to_store > 0:
            await asyncio.sleep(to_store)
        if (gate := self._frozen.get(verb)) is not None:
            self._waiting[verb] += 1
            self._arrived.set()
            try:
                await gate.wait()
            finally:
                self._waiting[verb] -= 1
        if self._is_cut:
            raise Unavailable(f"{verb}: the store is out of reach")
        orders = self._orders.get(verb)
        fault = orders.popleft() if orders else self.policy(verb)
        if fault is Fault.UNAVAILABLE:
            raise Unavailable(f"{verb}: not taken, as ordered")
        if fault is Fault.LOST_BEFORE:
            raise OutcomeUnknown(f"{verb}: lost, as ordered")
        if fault is Fault.STRAGGLES:
            self._stragglers.append(act)
            raise OutcomeUnknown(f"{verb}: on its way, as ordered")
        if verb in ("load", "take"):
            await self.land()
        answer = await act()
        if back > 0:
            await asyncio.sleep(back)
        if fault is Fault.LOST_AFTER:
            raise OutcomeUnknown(f"{verb}: the answer was lost, as ordered")
        return answer

    # ---- the contract

    @property
    def service_id(self) -> str:
        return self.inner.service_id

    async def open(self, now: int) -> StoreInfo:
        return await self.inner.open(now)

    def members(self) -> Members:
        """The heartbeat's handle meets the same faults."""
        return FaultyMembers(self.inner.members(), self._through)

    @property
    def lanes(self) -> int:
        return self.inner.lanes

    @property
    def lane_depth(self) -> int:
        return 1  # a batch that a fault holds up would be overtaken by the next one

    def lane_of(self, partition: int) -> int:
        return self.inner.lane_of(partition)

    async def answer_to(self, grain_type: str, grain_key: str, request_id: str) -> bytes | None:
        return await self._through(
            "answer_to", lambda: self.inner.answer_to(grain_type, grain_key, request_id)
        )

    async def forget_requests(self, before: int, limit: int) -> int:
        return await self._through("forget_requests", lambda: self.inner.forget_requests(before, limit))

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        return await self._through("load", lambda: self.inner.load(grains))

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        self.batches.append(len(batch))
        return await self._through("commit", lambda: self.inner.commit(batch, owner, now))

    async def reminder(self, grain_type: str, grain_key: str, name: str) -> ReminderRow | None:
        return await self._through("reminder", lambda: self.inner.reminder(grain_type, grain_key, name))

    async def reminders_of(self, grain_type: str, grain_key: str) -> list[ReminderRow]:
        return await self._through("reminders_of", lambda: self.inner.reminders_of(grain_type, grain_key))

    async def poll(self, queries: Sequence[PollQuery]) -> list[list[ReminderRow]]:
        return await self._through("poll", lambda: self.inner.poll(queries))

    async def list_reminders(
        self, where: ReminderFilter, limit: int, after: tuple[str, str, str] | None = None
    ) -> list[ReminderRow]:
        return await self._through("list_reminders", lambda: self.inner.list_reminders(where, limit, after))

    async def count_reminders(self, where: ReminderFilter) -> list[ReminderCount]:
        return await self._through("count_reminders", lambda: self.inner.count_reminders(where))

    async def events(self, partition: int, stream: str, after: int, limit: int) -> list[tuple[int, EventRow]]:
        return await self._through("events", lambda: self.inner.events(partition, stream, after, limit))

    async def outbox(self, partition: int, after: int, limit: int) -> list[tuple[int, OutboxRow]]:
        return await self._through("outbox", lambda: self.inner.outbox(partition, after, limit))

    async def stream_heads(self, stream: str) -> list[tuple[int, int]]:
        return await self._through("stream_heads", lambda: self.inner.stream_heads(stream))

    async def trim_events(self, stream: str, partition: int, until: int) -> int:
        return await self._through("trim_events", lambda: self.inner.trim_events(stream, partition, until))

    async def watermarks(self, grain_type: str, grain_key: str) -> dict[str, int]:
        return await self._through("watermarks", lambda: self.inner.watermarks(grain_type, grain_key))

    async def unpollable(self, limit: int) -> list[ReminderRow]:
        return await self._through("unpollable", lambda: self.inner.unpollable(limit))


async def crash(silo: Silo) -> None:
    """End a silo as a kill would: no drain, no good-bye, no further word to the store.

    The silo must have been started on a :class:`FaultyProvider`.  What was handed to the store before may
    have been applied.  Callers in this process get an error.
    """
    if not isinstance(silo.provider, FaultyProvider):
        raise TypeError("crash() needs a silo whose store is a FaultyProvider")
    silo.provider.cut()
    await silo.tear_down(0.0)
