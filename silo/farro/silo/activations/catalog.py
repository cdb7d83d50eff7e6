"""Which grains are awake here: finds, creates and collects activations.

The future activation is in the map before the first await, so two messages never make two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

from farro.client.errors import (
    CallCycle,
    FarroError,
    Fenced,
    NoSuchMethod,
    SiloStopping,
    UnknownGrainType,
)
from farro.client.identity import GrainId
from farro.client.reference import close_names
from farro.silo.activations.activation import Activation
from farro.silo.activations.core import Core
from farro.silo.activations.failures import printable
from farro.silo.activations.invocation import Invocation
from farro.silo.activations.phases import Phase
from farro.silo.activations.workers import NO_PARTITION, Workers
from farro.silo.grains.grain_class import RECEIVE_REMINDER, SYSTEM_PREFIX, GrainClass, Operation
from farro.silo.placement import OnSilo

Elsewhere = Callable[[Invocation, int | OnSilo], None]  # the call and the place of its grain

LOOK_AGAIN_S = 0.02


class Catalog:
    """The activations of one silo."""

    def __init__(self, core: Core, classes: Iterable[GrainClass]) -> None:
        self._core = core
        core.catalog = self
        self._classes: dict[str, GrainClass] = {}
        self._awake: dict[tuple[str, str], Activation] = {}
        self._workers = Workers(core)
        self._system_awake = 0
        self._refusing: str | None = None
        self._closed = False
        self.elsewhere: Elsewhere = _nowhere
        self._leaving: dict[Activation, None] = {}  # in the order they woke
        self._left = asyncio.Event()
        self._at_rest: frozenset[int] = frozenset()  # of the partitions that are being left
        for known in classes:
            for operation in known.operations.values():
                operation.spec.resolve()  # names that did not exist yet when the class was declared
            other = self._classes.setdefault(known.type_name, known)
            if other is not known:
                raise TypeError(
                    f"two grain classes are named {known.type_name!r}: {other.where} and {known.where}; "
                    "give one of them another name="
                )
            core.ownership.know(known.type_name, known)

    def __len__(self) -> int:
        """How many grains are awake; what the silo itself is made of does not count."""
        return len(self._awake) - self._system_awake + len(self._workers)

    def known(self, grain_type: str) -> GrainClass | None:
        return self._classes.get(grain_type)

    @property
    def type_names(self) -> list[str]:
        return sorted(self._classes)

    def awake(self, grain_type: str, grain_key: str) -> Activation | None:
        return self._awake.get((grain_type, grain_key))

    # ---- messages

    def submit(self, call: Invocation) -> None:
        """Bring a message to its grain, waking it if need be.  Refusals answer the call at once."""
        try:
            known = self._classes.get(call.grain_type)
            if known is None or self._refusing is not None:
                known = self._served(call)
            operation = known.operations.get(call.method)
            if operation is None or call.delivery is not None or not operation.remote:
                operation = self._found(call, known)
            call.operation = operation
            call.readonly = operation.spec.readonly and call.delivery is None
            activation = self._awake.get((call.grain_type, call.grain_key))
            if activation is None:
                self._wake(known, call)
                return
            if self._leaving and activation in self._leaving and not self._holds_up(call):
                self.set_aside(call, activation.partition)
                return
            if call.chain and activation.busy:
                self._refuse_cycle(call)
        except FarroError as error:
            call.respond(None, error)
            return
        activation.post(call)

    def _served(self, call: Invocation) -> GrainClass:
        if self._refusing is not None and (call.external or self._closed):
            raise SiloStopping(self._refusing)
        known = self._classes.get(call.grain_type)
        if known is None:
            names = [name for name in self.type_names if not name.startswith(SYSTEM_PREFIX)]
            hint = close_names(call.grain_type, names) or f"; it serves: {', '.join(names) or 'none'}"
            number, missing = self._core.committer.owner, printable(call.grain_type)
            raise UnknownGrainType(
                f"silo {number} serves no grain type {missing!r}{hint} "
                "(all silos of a service must serve the same classes; others need a service id of their own)"
            )
        return known

    def _found(self, call: Invocation, known: GrainClass) -> Operation:
        """What the call asks for, where that is not simply a remote method."""
        if call.delivery is not None and call.method == RECEIVE_REMINDER:
            operation = known.receive_reminder
        else:
            operation = known.operations.get(call.method)
        if operation is None or not (operation.remote or call.delivery is not None):
            raise NoSuchMethod(
                f"{known.type_name} has no method {printable(call.method)!r} that can be called; it has: "
                + (", ".join(sorted(known.interface.methods)) or "none")
            )
        return operation

    def _wake(self, known: GrainClass, call: Invocation) -> None:
        if known.max_local:
            self._workers.submit(known, call)
            return
        core = self._core
        ownership = core.ownership
        partition = ownership.place_of(call.grain_type, call.grain_key)
        if not isinstance(partition, int):
            assert isinstance(partition, OnSilo), "stateless workers have gone their way"
            if partition.number != core.committer.owner:
                self.elsewhere(call, partition)
                return
            partition = NO_PARTITION
        elif (
            ownership.owned(partition) is None
            or (partition in ownership.closing and not self._goes_on_in(partition, call))
            or core.loop.time() >= core.suspect_from
        ):
            self.set_aside(call, partition)
            return
        grain_id = GrainId(call.grain_type, call.grain_key)
        activation = Activation(core, known, grain_id, partition)
        key = (call.grain_type, call.grain_key)
        self._system_awake += known.system and key not in self._awake
        self._awake[key] = activation
        if partition in ownership.closing:
            self._leaving[activation] = None
        activation.post(call)
        core.turns.wake(activation, call)

    def _goes_on_in(self, closing: int, call: Invocation) -> bool:
        return closing not in self._at_rest and self._holds_up(call)

    def _holds_up(self, call: Invocation) -> bool:
        """Does a turn wait for it that has to end before its partition goes?

        Then it goes on here, or the turn would wait for the next owner.
        """
        return any(self._awake.get((link[0], link[1])) in self._leaving for link in call.chain)

    def set_aside(self, call: Invocation, partition: int) -> None:
        """This silo does not serve the partition now: the call goes to whoever does.

        What the silo itself would bring to a grain (a tick, an event) goes nowhere: its owner has it too.
        """
        if call.delivery is not None:
            call.respond(None, Fenced(f"this silo does not serve {call.target} now; nothing changed"))
        else:
            self.elsewhere(call, partition)

    def submit_again(self, call: Invocation) -> None:
        """A message that an activation could no longer serve goes to the next one."""
        call.external = False  # it was accepted before; a drain does not take that back
        self.submit(call)

    def forget(self, activation: Activation) -> None:
        key = (activation.id.type, activation.id.key)
        if self._awake.get(key) is activation:
            del self._awake[key]
            self._system_awake -= activation.known.system
        if self._leaving and activation in self._leaving:
            del self._leaving[activation]
            self._left.set()

    def _refuse_cycle(self, call: Invocation) -> None:
        """A call to a grain that is waiting for this very call can never run: say so at once."""
        for grain_type, grain_key, _, readonly in call.chain:
            if grain_type == call.grain_type and grain_key == call.grain_key:
                if readonly and call.readonly:
                    continue  # readers interleave
                chain = [f"{link[0]}/{link[1]}.{link[2]}" for link in call.chain] + [call.target]
                raise CallCycle(
                    "the call comes back to a grain that waits for it: " + " -> ".join(chain), chain=chain
                )

    # ---- life

    def collect(self) -> int:
        """Put to sleep what has been idle longer than its class allows, oldest first."""
        now = self._core.loop.time()
        old = [
            each
            for each in (*self._awake.values(), *self._workers)
            if each.phase is Phase.ACTIVE and each.idle and now - each.last_active >= each.known.idle_after_s
        ]
        old.sort(key=lambda each: each.last_active)
        for each in old:
            each.put_to_sleep("idle")
        self._core.counters.activations_collected += len(old)
        return len(old)

    def refuse(self, reason: str) -> None:
        """From now on calls from clients are refused; what was accepted, and calls between grains, go on."""
        self._refusing = reason

    def close(self) -> None:
        """From now on every message is refused: what is being cut off must not begin new turns."""
        self._refusing = self._refusing or "this silo has stopped"
        self._closed = True

    def put_all_to_sleep(self, reason: str) -> None:
        for each in (*self._awake.values(), *self._workers):
            each.put_to_sleep(reason)

    # ---- partitions that go

    def awake_in(self) -> frozenset[int]:
        """The partitions in which something is awake."""
        return frozenset(each.partition for each in self._awake.values())

    async def leave(self, partitions: frozenset[int], limit_s: float) -> AsyncGenerator[frozenset[int]]:
        """Put to sleep whatever is awake in partitions that are being handed over.

        Yields them as they come to rest, each once: none waits for the turns of another.  Calls from outside,
        those that wait in a mailbox already too, are the next owner's from now on; running turns, and what
        they call within, go on for ``limit_s`` seconds at most, then the rest is yielded as it is.  One at a
        time.
        """
        self._leaving = {each: None for each in self._awake.values() if each.partition in partitions}
        deadline = self._core.loop.time() + limit_s
        waiting = partitions
        for each in list(self._leaving):
            each.set_waiting_aside(unless=self._holds_up)
        try:
            while waiting:
                for each in list(self._leaving):
                    each.put_to_sleep("its partition moves to another silo")
                left_s = deadline - self._core.loop.time()
                busy = {each.partition for each in self._leaving} if left_s > 0 else ()
                if at_rest := waiting.difference(busy):
                    waiting -= at_rest
                    self._at_rest |= at_rest
                    yield at_rest
                    continue
                self._left.clear()
                try:
                    async with asyncio.timeout(min(LOOK_AGAIN_S, left_s)):
                        await self._left.wait()
                except TimeoutError:
                    continue  # one that was still loading can be put to sleep now
        finally:
            self._leaving, self._at_rest = {}, frozenset()

    def drop(self, partitions: frozenset[int]) -> None:
        """Forget whatever is awake in partitions that are this silo's no more; who waits goes elsewhere."""
        for each in [each for each in self._awake.values() if each.partition in partitions]:
            each.discard()


def _nowhere(call: Invocation, place: int | OnSilo) -> None:
    """A silo alone, without a cluster: nobody else can serve what it does not own."""
    call.respond(None, Fenced(f"this silo does not own {call.target}, which lives in {place}"))
