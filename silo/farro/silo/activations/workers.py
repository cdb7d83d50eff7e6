"""Stateless workers: several activations of one grain id on one silo, calls to whichever is free.

Theory of operation.  A worker keeps nothing between calls, so it needs no owner: each silo that is called
wakes activations of its own, up to the class's ``max_local``.  A call begins at once in an activation that
does nothing, else in a new one, else it waits.  All activations of a grain id share one line of waiting
calls, and whoever is free first takes the first: no call waits behind a long one while another activation
has nothing to do.  Each activation runs one turn at a time, ``@readonly`` or not.

An activation is never waited for by name, so a call may come back to its own worker: another activation runs
it.  Only when every activation that the silo may have is busy, and the call's own chain accounts for as many,
nobody is left who could ever become free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from farro.client.errors import CallCycle, CallTimeout, Overloaded, StatelessTurn
from farro.client.identity import GrainId
from farro.silo.activations.activation import ACTIVE, Activation
from farro.silo.activations.invocation import Invocation
from farro.silo.activations.phases import Event, after
from farro.silo.grains.grain_class import GrainClass

if TYPE_CHECKING:
    from farro.silo.activations.core import Core

NO_PARTITION = -1  # no epoch is ever above 0 there, so every commit would be fenced


class Workers:
    """Every stateless worker that is awake on this silo."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pools: dict[tuple[str, str], Pool] = {}

    def __len__(self) -> int:
        return sum(len(pool.activations) for pool in self._pools.values())

    def __iter__(self) -> Iterator[Activation]:
        """As of now: what is done to one may change which there are."""
        return iter([each for pool in self._pools.values() for each in pool.activations])

    def submit(self, known: GrainClass, call: Invocation) -> None:
        """Bring a call to an activation, or let it wait for one.

        Raises :class:`CallCycle`, :class:`Overloaded`, and :class:`StatelessTurn` for a tick or an event that
        was meant for the class before it became a worker.
        """
        if call.delivery is not None:
            raise StatelessTurn(
                f"{call.target}: {known.where} is a stateless worker, so it takes no ticks and no events; "
                "cancel what still brings them"
            )
        key = call.grain_type, call.grain_key
        pool = self._pools.get(key)
        if pool is None:
            pool = Pool(self._core, known, GrainId(*key), self._forget)
            self._pools[key] = pool
        pool.submit(call)

    def _forget(self, pool: Pool) -> None:
        self._pools.pop((pool.id.type, pool.id.key), None)


class Pool:
    """The activations of one grain id here, and the calls that wait for one of them."""

    def __init__(self, core: Core, known: GrainClass, grain_id: GrainId, forget: Any) -> None:
        self.id = grain_id
        self.activations: list[WorkerActivation] = []
        self.waiting: deque[Invocation] = deque()
        self._core = core
        self._known = known
        self._forget = forget

    def submit(self, call: Invocation) -> None:
        call.readonly = False
        free = None if self.waiting else next((each for each in self.activations if not each.busy), None)
        if free is not None:
            free.post(call)
        elif len(self.activations) < self._known.max_local:
            self._wake(call)
        else:
            self._refuse_cycle(call)
            self._enqueue(call)

    def _wake(self, call: Invocation) -> None:
        activation = WorkerActivation(self._core, self._known, self.id, self)
        self.activations.append(activation)
        activation.post(call)
        self._core.turns.wake(activation, call)

    def _refuse_cycle(self, call: Invocation) -> None:
        # A link of a chain does not say on which silo it runs: a chain that went through as many activations
        # on other silos is refused as well.
        own = sum(link[0] == self.id.type and link[1] == self.id.key for link in call.chain)
        if own >= self._known.max_local:
            chain = [f"{link[0]}/{link[1]}.{link[2]}" for link in call.chain] + [call.target]
            raise CallCycle(
                f"the call comes back to a stateless worker whose activations, max_local={own} of them, all "
                "wait for it: " + " -> ".join(chain),
                chain=chain,
            )

    def _enqueue(self, call: Invocation) -> None:
        waiting_max = self._core.options.mailbox_max * self._known.max_local
        if len(self.waiting) >= waiting_max:
            self._drop_unwanted()
        if len(self.waiting) >= waiting_max:
            raise Overloaded(
                f"{self.id} already has {len(self.waiting)} messages waiting (mailbox_max for each of its "
                f"{self._known.max_local} activations)",
                retry_after=1.0,
            )
        call.inline = False  # it begins when another turn ends, and that one's caller is still to be answered
        self.waiting.append(call)

    def _drop_unwanted(self) -> None:
        now = self._core.loop.time()
        waiting = list(self.waiting)
        self.waiting.clear()
        self.waiting.extend(each for each in waiting if not each.cancelled and each.deadline >= now)
        for each in waiting:
            if each.cancelled or each.deadline < now:
                each.respond(None, CallTimeout(f"{each.target} was no longer wanted", turn_ran=False))

    def gone(self, activation: WorkerActivation) -> None:
        """Its place is free: for the first call that waits, or for nobody."""
        self.activations.remove(activation)
        if self.waiting:
            self._wake(self.waiting.popleft())
        elif not self.activations:
            self._forget(self)


class WorkerActivation(Activation):
    """One activation of a pool.  What ends in it makes room for what waits in the pool."""

    __slots__ = ("_pool",)

    def __init__(self, core: Core, known: GrainClass, grain_id: GrainId, pool: Pool) -> None:
        super().__init__(core, known, grain_id, NO_PARTITION)
        self._pool = pool

    @property
    def book(self) -> NoReturn:
        raise StatelessTurn(f"{self.id} is a stateless worker and has no reminders; let a grain have them")

    @property
    def streams(self) -> NoReturn:
        raise StatelessTurn(
            f"{self.id} is a stateless worker and publishes no events: they are part of a commit, and it has "
            "none; return the value to a grain that publishes it"
        )

    def activated(self) -> Invocation | None:
        first = super().activated()
        self._serve_the_pool()
        return first

    def turn_over(self, readonly: bool) -> None:
        self._take_next()  # first, so that one who is to sleep when idle is not idle
        super().turn_over(readonly)
        self._serve_the_pool()

    def _serve_the_pool(self) -> None:
        while self.idle and self._take_next():
            self._pump()  # which begins it, or drops it because nobody wants it any more

    def _take_next(self) -> bool:
        if self.phase is not ACTIVE or self._mailbox or not self._pool.waiting:
            return False
        self._mailbox = deque([self._pool.waiting.popleft()])
        return True

    def _gone(self, event: Event) -> None:
        self.phase = after(self.phase, event)
        self._pool.gone(self)
