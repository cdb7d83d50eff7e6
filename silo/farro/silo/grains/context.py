"""The turn that the running code belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farro.client.errors import TurnEnded
from farro.client.reminders import Tick

if TYPE_CHECKING:
    from farro.silo.grains.effects import Effects

Link = tuple[str, str, str, bool]


@dataclass(slots=True, eq=False)
class Turn:
    """One message being worked on.  ``open`` until its code has returned or raised."""

    owner: object  # the grain instance whose turn this is
    method: str
    deadline: float
    chain: tuple[Link, ...]  # ends with this turn
    readonly: bool
    effects: Effects
    started_at: float
    tick: Tick | None = None
    open: bool = True
    warned: bool = False

    @property
    def caller(self) -> str | None:
        """``type/key.method`` of the grain that called, None for a client, a tick or a hook."""
        if len(self.chain) < 2:
            return None
        grain_type, key, method, _ = self.chain[-2]
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
