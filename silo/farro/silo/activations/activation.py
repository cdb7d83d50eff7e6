"""One grain awake.

Theory of operation.  An activation is a small state machine (``phases``) with a mailbox that exists only
while something waits.  A message that arrives when the grain is idle starts its turn at once; otherwise it
waits.  Writing turns exclude everything, read-only turns exclude writers.  A writing turn ends with its
commit acknowledged; only then does the next one begin.

Every bad end goes one way: when memory may differ from the store (the turn raised after changing the state,
the commit was refused, its answer was lost) the activation is discarded and what waits in its mailbox goes to
a fresh one, which reads the truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from farro.client.errors import (
    CallCancelled,
    CallTimeout,
    FarroError,
    GrainDestroyed,
    Overloaded,
)
from farro.client.identity import GrainId
from farro.silo.activations.invocation import Admission, Invocation
from farro.silo.activations.phases import Event, Phase, after
from farro.silo.grains.grain_class import GrainClass

if TYPE_CHECKING:
    from farro.client.reference import Caller
    from farro.silo.activations.core import Core
    from farro.silo.grains.grain import Grain
    from farro.silo.grains.reminder_book import ReminderBook


# names of an Enum cost two calls to look up
ACTIVE = Phase.ACTIVE
GONE = Phase.GONE


class Activation:
    """Created by the catalog for the first message; what it can no longer serve goes back there."""

    __slots__ = (
        "_mailbox",
        "_readers",
        "_sleep_reason",
        "_writing",
        "baseline",
        "core",
        "epoch",
        "grain",
        "id",
        "known",
        "last_active",
        "layout_stale",
        "partition",
        "phase",
        "version",
        "waits_for",
    )

    def __init__(
        self,
        core: Core,
        known: GrainClass,
        grain_id: GrainId,
        partition: int,
    ) -> None:
        self.core = core
        self.known = known
        self.id = grain_id
        self.partition = partition
        # Kept from here on: a partition that is lost and taken again has other activations, and what this one
        # still commits is refused.
        self.epoch = core.ownership.epoch(partition)
        self.phase = Phase.LOADING
        self.grain: Grain[Any] | None = None
        self.version: int | None = None  # None: the row was not read yet (grains without state)
        self.baseline: bytes | None = None  # the encoding of the state as the store has it
        self.layout_stale = False  # the stored state has an older layout; the next commit writes it anew
        self.last_active = core.loop.time()
        self.waits_for: dict[tuple[str, str], int] | None = None  # type and key of whom its turn awaits
        self._mailbox: deque[Invocation] | None = None
        self._writing = False
        self._readers = 0
        self._sleep_reason: str | None = None

    # ---- what the grain object sees (GrainRuntime)

    @property
    def caller(self) -> Caller:
        return self.core.caller

    @property
    def book(self) -> ReminderBook:
        return self.core.book

    @property
    def desk(self) -> Any:
        return self.core.desk

    @property
    def streams(self) -> Any:
        return self.core.streams

    @property
    def control(self) -> Any:
        return self.core.control

    def deactivate(self, grain: Grain[Any]) -> None:
        del grain
        self.put_to_sleep("the grain asked for it")

    # ---- messages

    @property
    def idle(self) -> bool:
        return not (self._writing or self._readers or self._mailbox)

    @property
    def busy(self) -> bool:
        """Would a writing call have to wait?"""
        return self.phase is not Phase.ACTIVE or not self.idle

    def post(self, call: Invocation) -> None:
        """Start the call's turn now, or let it wait its turn.  Refuses it when the mailbox is full."""
        if self.phase is GONE:
            self.core.catalog.submit_again(call)
        elif (
            self.phase is ACTIVE
            and not self._mailbox
            and not self._writing
            and (call.readonly or not self._readers)
        ) or self._joins_its_own_readers(call):
            self._begin(call, inline=call.inline)
        else:
            self._enqueue(call)

    def _may_begin(self, call: Invocation) -> bool:
        return not self._writing and (call.readonly or not self._readers)

    def _joins_its_own_readers(self, call: Invocation) -> bool:
        """A read-only call that comes back from one of this grain's running readers must not queue behind a
        writer that waits for that reader."""
        return (
            bool(self._readers)
            and call.readonly
            and any(link[0] == self.id.type and link[1] == self.id.key for link in call.chain)
        )

    def _enqueue(self, call: Invocation) -> None:
        if self._mailbox is None:
            self._mailbox = deque()
        if len(self._mailbox) >= self.core.options.mailbox_max:
            self._drop_expired()
        if len(self._mailbox) >= self.core.options.mailbox_max and call.delivery is None:
            call.respond(
                None,
                Overloaded(
                    f"{self.id} already has {len(self._mailbox)} messages waiting (mailbox_max)",
                    retry_after=1.0,
                ),
            )
            return
        self._mailbox.append(call)

    def _drop_expired(self) -> None:
        """Make room: calls that nobody waits for any more hold no place against those that somebody does."""
        now = self.core.loop.time()
        waiting = self._take_mailbox()
        self._mailbox = deque(each for each in waiting if not each.cancelled and each.deadline >= now)
        for each in waiting:
            if each.cancelled or each.deadline < now:
                each.respond(None, CallTimeout(f"{each.target} was no longer wanted", turn_ran=False))

    def _pump(self) -> None:
        """Begin whatever may begin, in order."""
        while self._mailbox and self.phase is ACTIVE:
            if not self._may_begin(self._mailbox[0]):
                return
            # not within the turn that has just ended: its caller is still to be answered
            self._begin(self._mailbox.popleft(), inline=False)
        if self._mailbox is not None and not self._mailbox:
            self._mailbox = None
        if self._sleep_reason is not None and self.phase is Phase.ACTIVE and self.idle:
            self._fall_asleep(self._sleep_reason)

    def _begin(self, call: Invocation, *, inline: bool) -> None:
        if self._admitted(call):
            core = self.core
            core.begin(core.turns.run(self, call), inline=inline)

    def _admitted(self, call: Invocation) -> bool:
        """May the call's turn begin?  If so it counts as begun; if not, whoever waits has been told."""
        now = self.core.loop.time()
        if call.cancelled:
            call.respond(None, CallCancelled(f"{call.target} was cancelled before it began"))
        elif call.deadline < now:
            call.respond(
                None,
                CallTimeout(f"{call.target}: its deadline passed before it began", turn_ran=False),
            )
        elif now >= self.core.frozen_from and self.partition >= 0:  # what lives in no partition has no lease
            self.core.catalog.set_aside(call, self.partition)
        elif call.delivery is not None and (admission := call.delivery.admit()) is not Admission.START:
            if admission is Admission.DROP:
                call.respond(None, None)
        else:
            self.last_active = now
            if call.readonly:
                self._readers += 1
            else:
                self._writing = True
            return True
        return False

    def turn_over(self, readonly: bool) -> None:
        """A turn has ended, commit included; the next one may begin."""
        if readonly:
            self._readers -= 1
        else:
            self._writing = False
        self.last_active = self.core.loop.time()
        if self.phase is ACTIVE and (self._mailbox is not None or self._sleep_reason is not None):
            self._pump()

    @property
    def last_reader(self) -> bool:
        return self._readers == 1

    # ---- life

    def activated(self) -> Invocation | None:
        """Awake.  Answers the first call, begun, for the task that woke the grain; others begin beside it."""
        if self.phase is GONE:
            return None  # its partition went to another silo meanwhile, and whoever waited with it
        self.phase = after(self.phase, Event.ACTIVATED)
        first: Invocation | None = None
        while first is None and self._mailbox:
            call = self._mailbox.popleft()
            if self._admitted(call):
                first = call
        self._pump()
        return first

    def failed(self, error: FarroError) -> None:
        """Loading or ``on_activate`` failed: everybody who waits hears it, and nothing is left."""
        if self.phase is GONE:
            return
        self._gone(Event.FAILED)
        for call in self._take_mailbox():
            call.respond(None, error)

    def discard(self) -> None:
        """Memory and store may differ: forget this activation; what waits goes to a fresh one."""
        if self.phase is Phase.GONE:
            return
        self.core.counters.turns_discarded += 1
        self._gone(Event.DISCARDED)
        for call in self._take_mailbox():
            self.core.catalog.submit_again(call)

    def destroyed(self) -> None:
        """destroy() committed: what was queued for the old incarnation does not reach the new one."""
        self._gone(Event.DISCARDED)
        for call in self._take_mailbox():
            error = GrainDestroyed(
                f"{self.id} was destroyed while {call.method} waited; call again to start anew"
            )
            error.retry_safe = True
            call.respond(None, error)

    def set_waiting_aside(self, unless: Callable[[Invocation], bool]) -> None:
        """Its partition goes: what has not begun is the next owner's, but what a turn here waits for."""
        waiting = self._take_mailbox()
        for call in waiting:
            if unless(call):
                self._enqueue(call)
            else:
                self.core.catalog.set_aside(call, self.partition)

    def put_to_sleep(self, reason: str) -> None:
        """Deactivate when idle: at once, or as soon as the running turns and the mailbox are done."""
        if self.phase is not Phase.ACTIVE:
            return
        self._sleep_reason = reason
        if self.idle:
            self._fall_asleep(reason)

    def _fall_asleep(self, reason: str) -> None:
        self.phase = after(self.phase, Event.PUT_TO_SLEEP)
        if not self.known.has_on_deactivate:
            self.asleep()
            return
        core = self.core
        core.tasks.start(core.turns.deactivate(self, reason), "deactivate", core.context.copy())

    def asleep(self) -> None:
        """on_deactivate is over: the place is free for the next activation."""
        self._gone(Event.DEACTIVATED)
        for call in self._take_mailbox():
            self.core.catalog.submit_again(call)

    def _gone(self, event: Event) -> None:
        self.phase = after(self.phase, event)
        self.core.catalog.forget(self)

    def _take_mailbox(self) -> deque[Invocation]:
        waiting, self._mailbox = self._mailbox, None
        return waiting if waiting is not None else deque()
