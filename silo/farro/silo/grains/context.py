"""The turn that the running code belongs to."""

from __future__ import annotations

from contextvars import Context, ContextVar
from hashlib import blake2b

from farro.client.errors import TurnEnded
from farro.client.identity import GrainId
from farro.client.reminders import Tick
from farro.silo.grains.effects import Effects

Link = tuple[str, str, str, bool]


class RequestIds:
    """The ids of the requests that one turn makes.

    ``base`` names the turn.  A turn that is run again under the same name gives its calls the same ids, in
    the order they are made, so that what they did the first time is not done twice.
    """

    __slots__ = ("_base", "_made")

    def __init__(self, base: str) -> None:
        self._base = base
        self._made = 0

    def next(self, target: str) -> str:
        """An id for the next call, to ``TYPE/KEY.METHOD``: 32 hexadecimal digits."""
        self._made += 1
        return blake2b(f"{self._base}\x00{self._made}\x00{target}".encode(), digest_size=16).hexdigest()


class Turn:
    """One message being worked on.  ``open`` until its code has returned or raised.

    ``owner`` is the grain object, ``before`` the calls that led to it; ``deadline`` and ``started_at`` are
    loop time.  ``request_id`` is that of the request it answers, if it does.
    """

    __slots__ = (
        "_before", "_effects", "_id", "deadline", "method", "open", "owner", "readonly", "request_id",
        "requests", "started_at", "tick", "warned",
    )  # fmt: skip

    def __init__(
        self,
        owner: object,
        grain_id: GrainId,
        method: str,
        deadline: float,
        before: tuple[Link, ...],
        readonly: bool,
        started_at: float,
    ) -> None:
        self.owner = owner
        self._id = grain_id
        self.method = method
        self.deadline = deadline
        self._before = before
        self.readonly = readonly
        self.started_at = started_at
        self.tick: Tick | None = None
        self.open = True
        self.warned = False
        self.request_id: str | None = None
        self.requests: RequestIds | None = None
        self._effects: Effects | None = None

    @property
    def chain(self) -> tuple[Link, ...]:
        """The calls that led to this turn, and itself as the last."""
        return (*self._before, (self._id.type, self._id.key, self.method, self.readonly))

    @property
    def effects(self) -> Effects:
        """What the turn has asked for; made when first looked at, for most turns ask for nothing."""
        if self._effects is None:
            self._effects = Effects(self.readonly)
        return self._effects

    @property
    def has_effects(self) -> bool:
        return self._effects is not None and bool(self._effects)

    @property
    def destroys(self) -> bool:
        return self._effects is not None and self._effects.destroy

    @property
    def caller(self) -> str | None:
        """``type/key.method`` of the grain that called, None for a client, a tick or a hook."""
        if not self._before:
            return None
        grain_type, key, method, _ = self._before[-1]
        return f"{grain_type}/{key}.{method}"


CURRENT: ContextVar[Turn | None] = ContextVar("farro_turn", default=None)


def turn_of(grain: object, what: str) -> Turn:
    """The open turn of ``grain`` that the calling code runs in; raises :class:`TurnEnded` otherwise."""
    turn = CURRENT.get()
    if turn is None:
        raise TurnEnded(f"{what} is only possible inside a turn of the grain; no turn is running here")
    if turn.owner is not grain:
        raise TurnEnded(f"{what} on another grain's object: call that grain through a reference instead")
    if not turn.open:
        raise TurnEnded(
            f"{what} came after the turn {turn.method!r} had ended, from a task that outlived it; "
            "await the task inside the method"
        )
    return turn


def empty_context() -> Context:
    """The context that every turn starts from: no turn, and nothing of whoever called."""
    context = Context()
    context.run(CURRENT.set, None)
    return context
