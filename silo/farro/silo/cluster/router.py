"""Where a call goes whose grain does not live here: on a link to its owner, or held until there is one.

Theory of operation.  The catalog asks the router only about what it cannot serve itself.  A *place* is a
partition, whose owner the map tells, or one silo.  A call for a place whose owner is linked is sent there and
its answer handed back as it came.  Every other call is held: nobody owns the partition yet, the link is down,
or it is to be ours but is not taken, handed over or frozen.  What is held is looked at again when the map
changes, a link comes up, a partition is taken, and after a short pause when a peer said that it was not its
own; it leaves at its deadline at the latest.

A call that came from a peer is never sent on: two silos that each believe the other to be the owner would
play ping-pong with it.  It is answered :class:`NotMine`, and the silo that forwarded it looks at a newer map.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

from farro.client.cluster_map import ClusterMap
from farro.client.connection import Connection
from farro.client.errors import (
    CallCancelled,
    CallCycle,
    CallTimeout,
    FarroError,
    NotMine,
    Overloaded,
    SiloStopping,
    SiloUnavailable,
)
from farro.client.protocol import CHAIN_LINKS_MAX, TIMEOUT_MS_MAX
from farro.silo.activations.invocation import Invocation
from farro.silo.cluster.links import Links
from farro.silo.ownership import Ownership

HELD_CALLS_MAX = 10_000  # in one silo; the next one is Overloaded
RETRY_AFTER_S = 0.2  # what Overloaded advises
PAUSE_MIN_S = 0.005  # before a place is tried again whose owner said that it was not
PAUSE_MAX_S = 0.1


class Local(Protocol):
    """The catalog, as the router sees it."""

    def submit_again(self, call: Invocation) -> None: ...


class SiloPlace(Protocol):
    """A place that is one silo and no partition."""

    @property
    def number(self) -> int: ...


Place = int | SiloPlace


@dataclass(frozen=True, slots=True)
class RouterFigures:
    """Facts of a router since the silo started; ``held`` is now."""

    forwarded: int
    held: int
    sent_again: int
    refused: int


class Router:
    """Routes the calls of silo :attr:`number`.

    What it gets from the catalog is what may not run here now; what comes to be served here goes back by
    ``submit_again``.  :attr:`on_stale` is told of a view that is newer than the map.
    """

    def __init__(
        self,
        number: int,
        ownership: Ownership,
        catalog: Local,
        links: Links,
        random: Random,
        *,
        held_max: int = HELD_CALLS_MAX,
    ) -> None:
        self.number = number
        self.on_stale: Callable[[int], None] = _not_asked
        self._ownership = ownership
        self._catalog = catalog
        self._links = links
        self._random = random
        self._held_max = held_max
        self._loop = asyncio.get_running_loop()
        self._map: ClusterMap | None = None
        self._held: dict[Place, dict[Invocation, None]] = {}  # in the order they came
        self._held_count = 0
        self._pauses: dict[Place, asyncio.TimerHandle] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at = math.inf
        self._closed: str | None = None
        self._forwarded = self._sent_again = self._refused = 0
        ownership.listen(taken=self._taken)
        links.on_up = self._linked

    # ---- calls

    def submit(self, call: Invocation, place: Place) -> None:
        """Bring a call to its place, which the caller has found not to be served here.  Answers it once."""
        if self._closed is not None:
            call.respond(None, SiloStopping(self._closed))
            return
        owner = self._owner_of(place)
        if owner is None:
            gone = f"the silo that {call.target} lives on is no member of the cluster"
            call.respond(None, SiloUnavailable(gone, turn_ran=False))
        elif owner == self.number:
            self.hold(call, place)
        elif call.forwarded:
            view = 0 if self._map is None else self._map.view
            text = f"silo {self.number} does not own the partition of {call.target} (view {view})"
            call.respond(None, NotMine(text, view=view))
        elif owner == 0 or not self._try_to_forward(call, place, owner):
            self.hold(call, place)

    def _owner_of(self, place: Place) -> int | None:
        """The silo to ask; 0 when that is not known yet, None when it never will be."""
        cluster = self._map
        if cluster is None:
            return 0
        if isinstance(place, int):
            return cluster.owners[place]
        known = place.number in cluster.addresses or place.number == self.number
        return place.number if known else None

    # ---- forwarding

    def _try_to_forward(self, call: Invocation, place: Place, owner: int) -> bool:
        """Send it on the link to its owner, or answer it; False when there is no link."""
        link = self._links.to(owner)
        if link is None:
            return False
        left = call.deadline - self._loop.time()
        problem = self._why_not(call, link, left)
        if problem is not None:
            self._refused += 1
            call.respond(None, problem)
            return True
        try:
            call_id, future = link.send_call(
                call.grain_type,
                call.grain_key,
                call.method,
                call.args,
                call.kwargs,
                min(left, TIMEOUT_MS_MAX / 1_000),
                call.deadline,
                False,  # a @oneway call too is answered on a link: one that met no owner must not be lost
                call.chain,
                call.request,
            )
        except FarroError as error:  # an older silo does not carry what it is
            call.respond(None, error)
            return True
        assert future is not None
        self._forwarded += 1
        call.cancel_running = partial(link.ask_to_cancel, call_id)
        future.add_done_callback(partial(self._answered, call, place))
        return True

    def _why_not(self, call: Invocation, link: Connection, left: float) -> FarroError | None:
        if left <= 0:
            return _too_late(call)
        if call.cancelled:
            return CallCancelled(f"{call.target} was cancelled before it was sent")
        if link.full:
            return Overloaded(f"too many calls are out to {link.address}", retry_after=RETRY_AFTER_S)
        if len(call.chain) > CHAIN_LINKS_MAX:
            return CallCycle(
                f"{call.target} would be the end of a chain of more than {CHAIN_LINKS_MAX} calls",
                chain=[f"{link[0]}/{link[1]}.{link[2]}" for link in call.chain[-8:]],
            )
        return None

    def _answered(self, call: Invocation, place: Place, future: asyncio.Future[Any]) -> None:
        call.cancel_running = None
        error = future.exception()
        if error is None:
            call.respond(future.result(), None)
        elif isinstance(error, NotMine | SiloStopping) or _never_left(error):
            self._route_anew(call, place, error)
        elif isinstance(error, FarroError):
            call.respond(None, error)
        else:
            raise error  # a connection fails its futures with nothing else

    def _route_anew(self, call: Invocation, place: Place, error: BaseException) -> None:
        """Its owner is another, or about to be.  Wait for the news, or a little while."""
        self._sent_again += 1
        known = 0 if self._map is None else self._map.view
        if isinstance(error, NotMine):
            owner = self._owner_of(place)
            view: object = error.view  # as the peer sent it
            if isinstance(view, int) and view > known:
                self.on_stale(view)
            elif owner and isinstance(view, int) and view < known:
                self._links.tell_news(known, only=owner)
        self.hold(call, place)
        if self._closed is None and place not in self._pauses:
            pause = self._random.uniform(PAUSE_MIN_S, PAUSE_MAX_S)
            self._pauses[place] = self._loop.call_later(pause, self._pause_over, place)

    # ---- holding

    def hold(self, call: Invocation, place: Place) -> None:
        """Keep it until its place is served, here or elsewhere.  Beyond the bound it is answered."""
        if self._closed is not None:
            call.respond(None, SiloStopping(self._closed))
            return
        if call.deadline <= self._loop.time() or call.cancelled:
            call.respond(None, _too_late(call))
            return
        if self._held_count >= self._held_max:
            self._refused += 1
            text = f"{self._held_max:,} calls already wait for the owners of their partitions"
            call.respond(None, Overloaded(text, retry_after=RETRY_AFTER_S))
            return
        self._held.setdefault(place, {})[call] = None
        self._held_count += 1
        call.cancel_running = partial(self._cancel_held, call, place)
        if call.deadline < self._expires_at:
            self._arm(call.deadline)

    def _cancel_held(self, call: Invocation, place: Place) -> None:
        call.cancel_running = None
        held = self._held.get(place)
        if held is None or call not in held:
            return  # it is being released in this very moment; who gets it sees that it was cancelled
        del held[call]
        self._held_count -= 1
        call.respond(None, CallCancelled(f"{call.target} was cancelled while it waited for an owner"))

    def _release(self, places: Iterable[Place]) -> None:
        """Look again at what is held for these places; some of it may be held again."""
        for place in places:
            pause = self._pauses.pop(place, None)
            if pause is not None:
                pause.cancel()
            held = self._held.pop(place, None) or ()
            self._held_count -= len(held)
            here = self._owner_of(place) == self.number and (
                not isinstance(place, int) or self._ownership.serves(place)
            )
            for call in held:
                call.cancel_running = None
                if here:
                    self._catalog.submit_again(call)
                else:
                    self.submit(call, place)

    def _pause_over(self, place: Place) -> None:
        self._pauses.pop(place, None)
        self._release([place])

    def _arm(self, at: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = at
        self._expiry = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        """Answer what has waited too long; look again when the next one will have."""
        self._expiry, self._expires_at = None, math.inf
        now = self._loop.time()
        late: list[Invocation] = []
        first = math.inf
        for place, held in list(self._held.items()):
            late += [call for call in held if call.deadline <= now]
            left = dict.fromkeys(call for call in held if call.deadline > now)
            if left:
                self._held[place] = left
                first = min(first, min(call.deadline for call in left))
            else:
                del self._held[place]
        self._held_count -= len(late)
        if first < math.inf:
            self._arm(max(first, now + PAUSE_MIN_S))  # each look goes through all that is held
        for call in late:
            call.cancel_running = None
            call.respond(None, _too_late(call))

    # ---- what changes the routes

    def update(self, cluster: ClusterMap) -> None:
        """A newer map: what is held may have an owner now."""
        if self._map is not None and cluster.view < self._map.view:
            return
        self._map = cluster
        self._release(list(self._held))

    def go_on(self) -> None:
        """What was closing or frozen may be served here again."""
        self._release(list(self._held))

    def _taken(self, partitions: frozenset[int]) -> None:
        """These partitions may be served here from now on, whatever the map says."""
        for place in [each for each in self._held if isinstance(each, int) and each in partitions]:
            held = self._held.pop(place)
            self._held_count -= len(held)
            for call in held:
                call.cancel_running = None
                self._catalog.submit_again(call)

    def _linked(self, number: int) -> None:
        """There is a link to that silo."""
        self._release([place for place in self._held if self._owner_of(place) == number])

    @property
    def held(self) -> int:
        """How many calls wait."""
        return self._held_count

    def held_partitions(self) -> frozenset[int]:
        """The partitions that calls wait for: to be taken first."""
        return frozenset(place for place in self._held if isinstance(place, int))

    def figures(self) -> RouterFigures:
        return RouterFigures(self._forwarded, self._held_count, self._sent_again, self._refused)

    def close(self, reason: str) -> None:
        """Answer what is held, and from now on everything, with :class:`SiloStopping`.  Repeatable."""
        self._closed = reason
        timers = [*self._pauses.values(), *([self._expiry] if self._expiry is not None else [])]
        for timer in timers:
            timer.cancel()
        self._pauses.clear()
        self._expiry = None
        held = [call for calls in self._held.values() for call in calls]
        self._held.clear()
        self._held_count = 0
        for call in held:
            call.cancel_running = None
            call.respond(None, SiloStopping(reason))


def _never_left(error: BaseException) -> bool:
    return isinstance(error, SiloUnavailable) and error.turn_ran is False


def _too_late(call: Invocation) -> CallTimeout:
    return CallTimeout(f"{call.target} reached no owner of its partition before its deadline", turn_ran=False)


def _not_asked(view: int) -> None:
    """Where nobody wants to hear."""
