"""``Grain``: the base class of everything an author writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, Protocol, Self, cast

from typing_extensions import TypeVar

from farro.client.errors import NotRemote, StatelessTurn, TurnEnded
from farro.client.identity import Affinity, GrainId, Key, canonical_key
from farro.client.interface import MethodSpec, interface_of
from farro.client.reference import reference
from farro.client.reminders import (
    MissedReminderAction,
    ReminderHandle,
    ReminderPriority,
    ReminderStatus,
    Tick,
    TickStatus,
)
from farro.silo.grains.context import Turn, turn_of
from farro.silo.grains.grain_class import GrainClass
from farro.silo.grains.subscriptions import subscriptions_of
from farro.silo.schedules.cron import Cron

if TYPE_CHECKING:
    from farro.client.reference import Caller
    from farro.silo.grains.reminder_book import ReminderBook

S = TypeVar("S", default=None)
G = TypeVar("G")
P = ParamSpec("P")
T = TypeVar("T")

_SILO_GIVES = (
    "_farro_runtime",
    "_farro_id",
    "state",
    "id",
    "key",
    "log",
)  # a property that fails is asked for


class GrainRuntime(Protocol):
    """What a silo hands to each grain object it makes."""

    @property
    def caller(self) -> Caller: ...

    @property
    def book(self) -> ReminderBook: ...

    @property
    def desk(self) -> Any: ...

    @property
    def streams(self) -> Any: ...

    @property
    def control(self) -> Any: ...

    def deactivate(self, grain: Grain[Any]) -> None: ...


class Grain(Generic[S]):
    """A virtual actor: addressed by type and key, awake when needed, one turn at a time.

    ``class Shipment(Grain[ShipmentState], name="shipments")``: the type parameter is the state (a dataclass,
    msgspec.Struct, pydantic model or dict, made without arguments the first time); without one the grain has
    no state.  ``name`` is the stored type name (default: the class name), ``layout`` the version of the
    state's shape, ``idle_after`` when an idle activation is put to sleep.  None of them is inherited.

    ``affinity`` makes grains that talk live together: a function from a key to a text (int, UUID); grains of
    one affinity, whatever their types, share a partition and so a silo.
    ``class OrderLine(Grain, affinity=lambda key: key.split("/")[0])`` puts line ``7/1`` where
    ``class Order(Grain, affinity=str)`` puts order ``7``.  A function, because only the author knows what is
    in a key, and no shorthand says more than ``split`` does.  It must answer every key of the class, always
    the same: it is part of where state lives, so once grains are stored a changed one leaves them behind
    (:class:`IncompatibleState` when they wake).

    Changes of ``self.state`` and the effects asked for during a turn are committed together when the method
    returns, or not at all.  Source: design/turns.md.
    """

    __farro_base__: ClassVar[bool] = True
    __farro_type__: ClassVar[str]
    __farro_affinity__: ClassVar[Affinity | None]
    __farro_class__: ClassVar[GrainClass]

    state: S
    _farro_id: GrainId
    _farro_runtime: GrainRuntime

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        layout: int = 1,
        idle_after: timedelta | None = None,
        affinity: Affinity | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.__farro_type__ = name if name is not None else cls.__name__
        cls.__farro_affinity__ = affinity
        cls.__farro_class__ = GrainClass(cls, layout, idle_after)
        subscriptions_of(cls.__farro_class__)  # a mistake there is one of this class's declaration

    # ---- who am I

    @property
    def id(self) -> GrainId:
        """This grain's id."""
        return self._farro_id

    @property
    def key(self) -> str:
        """This grain's key, in its canonical text form."""
        return self._farro_id.key

    @property
    def turn(self) -> Turn:
        """The running turn: ``caller``, ``deadline`` (loop time), ``chain``, ``request_id``."""
        return turn_of(self, "self.turn")

    @property
    def tick(self) -> Tick | None:
        """The reminder occurrence that this turn consumes; None when the turn is not a tick."""
        return turn_of(self, "self.tick").tick

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger named after the grain type; every record carries the grain id as ``grain``."""
        logger = logging.getLogger(f"farro.grain.{self._farro_id.type}")
        return logging.LoggerAdapter(logger, {"grain": str(self._farro_id)})

    # ---- hooks an author may override

    async def on_activate(self) -> None:
        """Runs as a turn before the first message; what it raises goes to every waiting caller."""

    async def on_deactivate(self, reason: str) -> None:
        """Runs as a turn before the activation goes; best effort, at most 30 s, never after a crash."""

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        """Gets the ticks of named reminders (:meth:`register_or_update_reminder`)."""
        raise NotImplementedError(f"{type(self).__name__} does not override receive_reminder")

    @classmethod
    def migrate(cls, from_version: int, data: Any) -> Any:
        """Bring stored state from layout ``from_version`` to the next one; called once per step.

        ``data`` is the plain stored form (dicts, lists, scalars).
        """
        raise NotImplementedError(
            f"{cls.__name__}: the stored state has layout {from_version} and there is no migrate() step"
        )

    # ---- other grains

    def with_options(self, *, timeout: float | None = None, request_id: str | None = None) -> Self:
        """On a reference: the same grain, called with another deadline (seconds), as one request of that id.

        ``request_id`` is for methods that are an ``@idempotent_request``.
        """
        raise NotRemote(f"with_options() is for references; this is the grain {self._farro_id} itself")

    def grain(self, cls: type[G], key: Key) -> G:
        """A reference to another grain.  Activates nothing."""
        return cast(G, reference(interface_of(cls), canonical_key(key), self._farro_runtime.caller))

    def call(self, grain_type: str, key: Key, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by name, untyped; awaitable."""
        spec = MethodSpec.untyped(grain_type, method)
        caller = self._farro_runtime.caller
        return caller.invoke(grain_type, canonical_key(key), spec, args, kwargs, None)

    async def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking code in a thread while the event loop goes on; the turn waits for it."""
        return await asyncio.to_thread(function, *args, **kwargs)

    # ---- life

    def destroy(self) -> None:
        """Delete this grain's state and reminders when the turn commits; the same id then starts empty."""
        turn = turn_of(self, "destroy()")
        if self.__farro_class__.max_local:
            raise StatelessTurn(f"{self.id} is a stateless worker: it has nothing to destroy")
        turn.effects.stage_destroy()

    def deactivate(self) -> None:
        """Put this activation to sleep once its mailbox is empty.  Changes nothing in the store."""
        self._farro_runtime.deactivate(self)

    # ---- streams

    def publish(self, stream: str, value: object) -> None:
        """Append an event to ``stream`` when the turn commits; if it does not commit, there is no event.

        ``value`` is plain data (what ``call`` takes untyped).  Subscribers get it afterwards, in turns of
        their own: nothing here waits for them.  Raises :class:`InvalidPayload` for a bad name, a value that
        does not travel or is too large; :class:`ReadonlyTurn`, :class:`TurnEnded`, :class:`GrainDestroyed`.
        """
        self._farro_runtime.streams.publish(self, stream, value)

    # ---- reminders: keyed operations

    def schedule(
        self,
        operation: Callable[P, Coroutine[Any, Any, Any]] | str,
        /,
        *args: Any,
        at: datetime | None = None,
        after: timedelta | None = None,
        every: timedelta | None = None,
        cron: str | Cron | None = None,
        key: Key | None = None,
        priority: ReminderPriority = ReminderPriority.NORMAL,
        missed: MissedReminderAction = MissedReminderAction.FIRE_IMMEDIATELY,
        timezone: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        until: datetime | None = None,
        times: int | None = None,
        jitter: timedelta | None = None,
        if_missing: bool = False,
    ) -> ReminderHandle:
        """Have ``operation`` of this grain run later, durably, with ``args`` and ``kwargs``.

        Give one of ``at`` (aware datetime) or ``after`` for once; ``every`` (with ``at``/``after`` as its
        first tick) or ``cron`` for again and again.  The name is ``operation`` or ``operation:key``;
        scheduling an existing name moves it, unless ``if_missing``.  Takes effect when the turn commits.

        Returns a handle: plain data that survives in state.  Raises :class:`InvalidSchedule`,
        :class:`UnknownOperation`, :class:`InvalidPayload`, :class:`TurnEnded`.
        """
        return self._farro_runtime.book.schedule(
            self,
            operation,
            args,
            dict(kwargs or {}),
            key=key,
            at=at,
            after=after,
            every=every,
            cron=cron,
            timezone=timezone,
            until=until,
            times=times,
            jitter=jitter,
            priority=priority,
            missed=missed,
            if_missing=if_missing,
        )

    def unschedule(
        self,
        operation_or_handle: Callable[..., Coroutine[Any, Any, Any]] | str | ReminderHandle,
        /,
        *,
        key: Key | None = None,
    ) -> None:
        """Cancel a reminder of this grain when the turn commits.  Absent: no error.

        Raises :class:`InvalidReminderHandle`, :class:`UnknownOperation`; ``TypeError`` for a handle plus key.
        """
        self._farro_runtime.book.unschedule(self, operation_or_handle, key)

    def unschedule_all(self, operation: Callable[..., Coroutine[Any, Any, Any]] | str, /) -> None:
        """Cancel every reminder of one operation, whatever its key, when the turn commits."""
        self._farro_runtime.book.unschedule_all(self, operation)

    async def reminder(
        self,
        operation_or_handle: Callable[..., Coroutine[Any, Any, Any]] | str | ReminderHandle,
        /,
        *,
        key: Key | None = None,
    ) -> ReminderStatus | None:
        """One reminder of this grain: committed, overlaid with what this turn has staged.  None if absent."""
        return await self._farro_runtime.book.reminder(self, operation_or_handle, key)

    async def reminders(
        self, operation: Callable[..., Coroutine[Any, Any, Any]] | str | None = None, /
    ) -> list[ReminderStatus]:
        """This grain's reminders by name, of one operation or all; overlaid like :meth:`reminder`."""
        return await self._farro_runtime.book.reminders(self, operation)

    # ---- reminders: Orleans' form

    async def register_or_update_reminder(
        self,
        name: str,
        due: timedelta | datetime | None = None,
        period: timedelta | None = None,
        *,
        cron: str | Cron | None = None,
        timezone: str | None = None,
        priority: ReminderPriority = ReminderPriority.NORMAL,
        action: MissedReminderAction | None = None,
    ) -> ReminderHandle:
        """Register a named reminder, delivered to :meth:`receive_reminder`, or move it.

        ``due`` from now (or an instant) and ``period``; without period it fires once; or ``cron``.  The
        default action is SKIP, for a one-shot FIRE_IMMEDIATELY.  Takes effect when the turn commits.
        """
        return self._farro_runtime.book.register(
            self, name, due, period, cron=cron, timezone=timezone, priority=priority, action=action
        )

    async def unregister_reminder(self, reminder: str | ReminderHandle | ReminderStatus) -> None:
        """Cancel a named reminder when the turn commits.  Absent: no error."""
        self._farro_runtime.book.unregister(self, reminder)

    async def get_reminder(self, name: str) -> ReminderStatus | None:
        """One reminder by its full name, or None; overlaid like :meth:`reminder`."""
        return await self._farro_runtime.book.named(self, name)

    async def get_reminders(self) -> list[ReminderStatus]:
        """Every reminder of this grain by name."""
        return await self._farro_runtime.book.reminders(self, None)

    if not TYPE_CHECKING:  # a checker that saw it would accept every misspelt attribute

        def __getattr__(self, name: str) -> Any:
            own = type(self).__name__
            if "_farro_runtime" not in self.__dict__ and name in _SILO_GIVES:
                text = f"this {own} was made by hand, not by a silo: use silo.grain({own}, key)"
                if name == "_farro_runtime":
                    raise TurnEnded(text)
                raise AttributeError(text)
            if name == "state":
                raise AttributeError(f"{own} has no state; declare it as class {own}(Grain[State])")
            raise AttributeError(f"{own!r} object has no attribute {name!r}")
