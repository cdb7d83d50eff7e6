"""The rooms of several silos in one loop on virtual time, sharing one store in memory.

Partitions move when the test says so, and calls find their owner after a hop of a millisecond each way: no
links, no leases, no balance.  What the cluster room does to a silo's tables is done here step by step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from random import Random
from typing import Any, TypeVar, cast

from farro.client.errors import CallTimeout, FarroError, SiloUnavailable
from farro.client.identity import canonical_key
from farro.client.interface import interface_of
from farro.client.management import Reminders
from farro.client.reference import reference
from farro.client.streams import EventStream
from farro.providers.members import SiloStatus
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.providers.rows import Commit, Outcome, PutReminder, ReminderRow
from farro.silo.activations.invocation import Invocation
from farro.silo.grains.grain import Grain
from farro.silo.options import SiloOptions
from farro.silo.ownership import Owned, Ownership
from farro.silo.placement import OnSilo
from farro.silo.reminders.machine_load import MachineLoad
from farro.silo.reminders.management_grain import ReminderManagement
from farro.silo.reminders.service import ReminderService
from farro.silo.rooms import Rooms
from farro.silo.streams.stream_grains import StreamConsumer, StreamReading
from farro.silo.system_grains import PartitionGrain, SiloGrain
from farro.silo.testing.faulty_provider import FaultyProvider
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.kit import Bell, Rung, World

G = TypeVar("G")

PARTITIONS = 64
HOP_S = 0.001
SYSTEM: tuple[type[Grain[Any]], ...] = (
    ReminderManagement, StreamReading, StreamConsumer, PartitionGrain, SiloGrain
)  # fmt: skip


class Member:
    """One silo's rooms, and what it owns."""

    def __init__(self, group: Group, number: int, store: FaultyProvider) -> None:
        self.number = number
        self.store = store
        self.ownership = Ownership(PARTITIONS)
        self.alive = True
        self.rooms = Rooms(
            store,
            self.ownership,
            [each.__farro_class__ for each in (*group.grains, *SYSTEM)],
            group.options,
            group.clock,
            Random(number),
            lambda: MachineLoad(cpus=4, memory_load=0.0),
        )
        self.rooms.committer.owner = number
        self.rooms.catalog.elsewhere = partial(group.route, self)

    @property
    def service(self) -> ReminderService:
        assert self.rooms.reminders is not None
        return self.rooms.reminders

    @property
    def reminders(self) -> Reminders:
        return Reminders(self.rooms.caller)

    def grain(self, cls: type[G], key: str) -> G:
        return cast(G, reference(interface_of(cls), canonical_key(key), self.rooms.caller))

    def stream(self, name: str, **given: Any) -> EventStream:
        return EventStream(self.rooms.caller, name, **given)

    def owns(self, grain_type: str, key: str) -> bool:
        return self.ownership.serves(self.ownership.partition_of(grain_type, key))

    def key(self, grain_type: str, number: int = 0) -> str:
        """The ``number``-th key of that type that lives here."""
        keys = (str(i) for i in range(100_000) if self.owns(grain_type, str(i)))
        return next(key for i, key in enumerate(keys) if i == number)

    def held(self) -> list[tuple[str, str, str]]:
        return sorted(entry.key for entry in self.service.held.queue)


class Group:
    """The members, and the way between them.  ``lose``: is the answer to this call lost on its way back?"""

    def __init__(
        self, clock: VirtualClock, *grains: type[Grain[Any]], options: SiloOptions | None = None
    ) -> None:
        self.clock = clock
        self.grains: tuple[type[Grain[Any]], ...] = (Bell, *grains)
        self.options = options or SiloOptions()
        self.memory = MemoryStore()
        self.members: list[Member] = []
        self.lose: Callable[[Invocation], bool] = lambda call: False
        self.calls: list[str] = []  # that went from one silo to another
        self.rungs: list[Rung] = []  # what Bell writes down
        self.handler: Callable[[Bell], Any] | None = None
        self.code: dict[int, Callable[[Any], Any]] = {}
        self.results: dict[int, Any] = {}
        self._waiting: list[tuple[Member, Invocation, int | OnSilo]] = []
        Bell.world = cast(World, self)

    # ---- life

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def join(self, partitions: Iterable[int] = ()) -> Member:
        store = FaultyProvider(MemoryProvider(self.memory))
        await store.open(self.clock.now())
        row = await store.join(f"10.0.0.{len(self.members) + 1}:1", self.clock.now())
        await store.set_status(row.number, SiloStatus.ACTIVE, self.clock.now())
        member = Member(self, row.number, store)
        self.members.append(member)
        await member.rooms.open()
        await self.take(member, partitions)
        return member

    async def start(self, silos: int) -> list[Member]:
        """So many members, each with every so many-th partition."""
        return [await self.join(range(index, PARTITIONS, silos)) for index in range(silos)]

    async def close(self) -> None:
        for member in self.members:
            if member.alive:
                member.rooms.begin_nothing_new("the test ends")
                await member.rooms.close(1.0)
            await member.store.close()

    async def crash(self, member: Member) -> frozenset[int]:
        """End it as a kill would; the partitions that nobody serves from now on."""
        owned = member.ownership.all()
        member.alive = False
        member.store.cut()
        await member.rooms.close(0.0)
        return owned

    # ---- partitions

    async def take(self, member: Member, partitions: Iterable[int]) -> None:
        now = self.clock.now()
        rows = await member.store.take(member.number, sorted(partitions), now)
        member.ownership.take_all(
            {row.partition: Owned(row.epoch, now, row.previous_alive_at) for row in rows}
        )
        await asyncio.sleep(0)
        self._look_again()

    async def hand_over(self, source: Member, target: Member, partitions: Iterable[int]) -> None:
        """A planned move: what is awake comes to rest first."""
        going = frozenset(partitions) & source.ownership.all()
        source.ownership.close(going)
        async with aclosing(source.rooms.catalog.leave(going, 5.0)) as leaving:
            async for at_rest in leaving:
                await source.store.release(source.number, sorted(at_rest), self.clock.now())
                self._forget(source, at_rest)
                await self.take(target, at_rest)

    async def seize(self, target: Member, partitions: Iterable[int], *, unseen_s: float = 0.0) -> None:
        """A take-over: who owned them notices ``unseen_s`` later."""
        going = frozenset(partitions)
        await self.take(target, going)
        await asyncio.sleep(unseen_s)
        for member in self.members:
            if member is not target:
                self._forget(member, going)

    def _forget(self, member: Member, partitions: frozenset[int]) -> None:
        member.ownership.drop(partitions)
        member.rooms.catalog.drop(partitions)

    def owner_of(self, place: int | OnSilo) -> Member | None:
        for member in self.members:
            if isinstance(place, OnSilo):
                if member.number == place.number:
                    return member
            elif member.alive and member.ownership.serves(place):
                return member
        return None

    # ---- calls

    def route(self, source: Member, call: Invocation, place: int | OnSilo) -> None:
        asyncio.get_running_loop().call_later(HOP_S, self._arrive, source, call, place)

    def _arrive(self, source: Member, call: Invocation, place: int | OnSilo) -> None:
        owner = self.owner_of(place)
        if owner is None:
            self._hold(source, call, place)
        elif owner is source:
            source.rooms.catalog.submit_again(call)
        elif owner.alive:
            self.calls.append(call.target)
            owner.rooms.catalog.submit(
                Invocation(
                    call.grain_type,
                    call.grain_key,
                    call.method,
                    call.args,
                    call.kwargs,
                    call.deadline,
                    call.chain,
                    partial(self._answered, call),
                    external=False,
                    inline=False,
                )
            )

    def _answered(self, call: Invocation, value: Any, error: FarroError | None) -> None:
        if self.lose(call):
            value, error = None, SiloUnavailable(f"the link broke while {call.target} was out")
        asyncio.get_running_loop().call_later(HOP_S, call.respond, value, error)

    def _hold(self, source: Member, call: Invocation, place: int | OnSilo) -> None:
        waiting = (source, call, place)
        self._waiting.append(waiting)

        def too_late() -> None:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                call.respond(None, CallTimeout(f"nobody owns {call.target}", turn_ran=False))

        asyncio.get_running_loop().call_at(call.deadline, too_late)

    def _look_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._arrive(*each)

    # ---- rows

    async def do(self, key: str, code: Callable[[Bell], Any], *, by: Member | None = None) -> Any:
        """Run ``code`` in a turn of the bell ``key``, called from one of the silos."""
        token = len(self.results) + len(self.code)
        self.code[token] = code
        await (by or next(each for each in self.members if each.alive)).grain(Bell, key).do(token)
        return self.results[token]

    async def rung(self, key: str) -> int:
        """The committed count of a bell's ticks."""
        return int(await self.do(key, lambda bell: bell.state.rung))

    async def row(self, key: str, name: str = "ring") -> ReminderRow | None:
        return await self.members[-1].store.inner.reminder("bell", key, name)

    async def write(self, *rows: ReminderRow) -> None:
        """Put rows into the table behind everybody's back."""
        for row in rows:
            owner = self.owner_of(row.partition)
            assert owner is not None
            commit = Commit(
                partition=row.partition,
                epoch=owner.ownership.epoch(row.partition),
                grain_type=row.grain_type,
                grain_key=row.grain_key,
                reminders=(PutReminder(row),),
            )
            (verdict,) = await owner.store.inner.commit([commit], owner.number, self.clock.now())
            assert verdict.outcome is Outcome.COMMITTED
