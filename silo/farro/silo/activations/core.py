"""What all activations of a silo share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from farro.client.clock import Clock
from farro.client.codec import Codec
from farro.silo.activations.carriers import Carriers
from farro.silo.activations.commit import Committer
from farro.silo.activations.loading import Loader
from farro.silo.grains.context import empty_context
from farro.silo.options import ActivationOptions
from farro.silo.ownership import Ownership
from farro.silo.tasks import TaskOwner

if TYPE_CHECKING:
    from farro.client.reference import Caller
    from farro.silo.activations.catalog import Catalog
    from farro.silo.activations.turns import Turns
    from farro.silo.grains.context import Turn
    from farro.silo.grains.reminder_book import ReminderBook


@dataclass(slots=True)
class Counters:
    """Facts counted since the silo started."""

    turns: int = 0
    turns_failed: int = 0
    turns_discarded: int = 0
    activations_created: int = 0
    activations_collected: int = 0


@dataclass(slots=True)
class Core:
    """Handed down to every activation; made once by the host."""

    clock: Clock
    random: Random
    codec: Codec
    ownership: Ownership
    committer: Committer
    loader: Loader
    tasks: TaskOwner
    options: ActivationOptions
    caller: Caller
    book: ReminderBook
    reminders_max: int  # per grain
    turns: Turns = field(init=False)
    catalog: Catalog = field(init=False)
    carriers: Carriers = field(init=False)
    desk: Any = field(init=False)  # the silo's ReminderDesk: a room above, handed through to its grain
    streams: Any = field(init=False)  # the silo's StreamService, likewise
    control: Any = field(init=False)  # the silo's Control: what its operators' grains may do
    running: set[Turn] = field(default_factory=set)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    context: Context = field(default_factory=empty_context)  # turns start here, not in their caller's
    counters: Counters = field(default_factory=Counters)
    suspect_from: float = math.inf  # loop time from which no activation may begin (a silo's lease)
    frozen_from: float = math.inf  # ... and no turn

    def __post_init__(self) -> None:
        self.carriers = Carriers(self.tasks)

    def begin(self, coro: Coroutine[Any, Any, None], *, inline: bool) -> None:
        """Run a turn in a context of its own: at once if it may, else as a task."""
        context = self.context.copy()
        if not (inline and self.carriers.run(coro, context)):
            self.tasks.start_turn(coro, "turn", context)
