"""Planted bugs: faults that somebody might really make, one at a time, to see that the simulation finds them.

Each is a context manager around a run; it wraps or replaces a piece of the running program from outside, and
the program itself has no switch for it.  :data:`FOUND_BY` has the first seed, from 1 on, that finds each
(``make simulate`` searches anew).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from farro.client.errors import CommitOutcomeUnknown, SiloUnavailable
from farro.providers.members import SiloStatus
from farro.silo.activations.activation import Activation
from farro.silo.activations.catalog import Catalog
from farro.silo.activations.invocation import Admission
from farro.silo.activations.turns import Turns
from farro.silo.cluster import router
from farro.silo.cluster.observing import Observer
from farro.silo.cluster.partitions import Partitions
from farro.silo.cluster.standing import Standing
from farro.silo.reminders import judging, ticks
from farro.silo.reminders.due_queue import DueQueue
from farro.silo.reminders.held import HeldReminders
from farro.silo.reminders.ticks import TickInFlight
from farro.silo.schedules import missed
from farro.silo.schedules.missed import Deliver, Skip
from farro.silo.store_clock import StoreClock
from farro.silo.testing.simulated_cluster import SimulatedCluster, SimulatedSilo
from tests.simulation.planting import PLANTED, SECOND_US, plants

# ---- turns


@plants
def activation_kept_after_an_unknown_outcome(cluster: SimulatedCluster) -> Generator[None]:
    """A grain whose commit may or may not have landed goes on with the memory it has."""
    end = Turns._end

    def wrong(self: Turns, activation: Activation, call: Any, *, keep: bool, error: Any, **rest: Any) -> None:
        end(self, activation, call, keep=keep or isinstance(error, CommitOutcomeUnknown), error=error, **rest)

    with patch.object(Turns, "_end", wrong):
        yield


@plants
def unknown_call_sent_again(cluster: SimulatedCluster) -> Generator[None]:
    """A call whose silo went away before it answered goes to the next owner, as if it had not run."""
    with patch.object(router, "_never_left", lambda error: isinstance(error, SiloUnavailable)):
        yield


# ---- membership


@plants
def expiry_by_wall_clock(cluster: SimulatedCluster) -> Generator[None]:
    """Who has expired is told by comparing its stored sign of life with one's own clock."""

    def wrong(self: Observer, silos: Any, now: float) -> list[Any]:
        place = next(each for each in cluster.silos if each.state == "up" and each.number == self._number)
        lease_us = int(self._lease_s * SECOND_US)
        return [
            row
            for row in silos
            if row.status.is_member
            and row.number != self._number
            and place.clock.now() - row.renewed_at > lease_us
            and row.status is not SiloStatus.JOINING
        ]

    saw = Observer.saw

    def guarded(self: Observer, silos: Any, now: float) -> list[Any]:
        rows = list(silos)
        saw(self, rows, now)
        known = any(each.state == "up" and each.number == self._number for each in cluster.silos)
        return wrong(self, rows, now) if known else []

    with patch.object(Observer, "saw", guarded):
        yield


@plants
def no_freeze(cluster: SimulatedCluster) -> Generator[None]:
    """A silo that cannot renew serves on."""
    trust = Standing.trust

    def wrong(self: Standing, sent_at: float) -> None:
        trust(self, sent_at)
        self._core.suspect_from = self._core.frozen_from = float("inf")

    with patch.object(Standing, "trust", wrong):
        yield


@plants
def thaw_without_a_look_at_the_epochs(cluster: SimulatedCluster) -> Generator[None]:
    """A silo that was taken for dead keeps what it owned, with its memory."""
    forget = Partitions.forget

    def wrong(self: Partitions, partitions: frozenset[int]) -> None:
        if partitions <= self._ownership.closing:
            forget(self, partitions)

    with (
        patch.object(Partitions, "forget", wrong),
        patch.object(Partitions, "lost", lambda self, rows: frozenset()),
    ):
        yield


@plants
def renewed_although_the_loop_is_stuck(cluster: SimulatedCluster) -> Generator[None]:
    """The heartbeat does not care whether anything else of the silo still runs."""
    freeze = SimulatedSilo.freeze

    def beat(place: SimulatedSilo, number: int) -> None:
        row = cluster.store.service.silos.get(number)
        if place.state != "frozen" or row is None or not row.status.is_member or not number:
            return
        if not cluster.store.down:
            cluster.store.service.silos[number] = replace(
                row, renewals=row.renewals + 1, renewed_at=place.clock.now()
            )
            cluster.store.sign(number, place.clock.now())
        cluster.simulation.after(SECOND_US, partial(beat, place, number))

    def wrong(self: SimulatedSilo) -> None:
        number = self.number
        freeze(self)
        beat(self, number)

    with patch.object(SimulatedSilo, "freeze", wrong):
        yield


@plants
def handed_over_without_waiting(cluster: SimulatedCluster) -> Generator[None]:
    """A partition is freed first, and left a second later: until then its old owner serves it too."""
    drop = Catalog.drop

    def wrong(self: Partitions, partitions: frozenset[int]) -> None:
        loop = self._catalog._core.loop
        loop.call_later(1.0, self._ownership.drop, partitions)
        loop.call_later(1.0, drop, self._catalog, partitions)

    with patch.object(Partitions, "forget", wrong):
        yield


# ---- reminders


@plants
def early_tick(cluster: SimulatedCluster) -> Generator[None]:
    """Ticks begin up to two seconds before they are due."""
    advance = DueQueue.advance
    with patch.object(DueQueue, "advance", lambda self, now: advance(self, now + 2 * SECOND_US)):
        yield


@plants
def due_by_the_machines_clock(cluster: SimulatedCluster) -> Generator[None]:
    """What falls due goes by the silo's own clock, although the store has one."""
    with patch.object(StoreClock, "now", lambda self: self._machine.now()):
        yield


@plants
def cancel_ignored_at_dequeue(cluster: SimulatedCluster) -> Generator[None]:
    """A tick that waits for its grain is not asked again whether its reminder is still there."""

    def wrong(self: TickInFlight) -> Admission:
        return self._firing.permit(self) if not self.entry.dead else Admission.START

    with patch.object(TickInFlight, "admit", wrong):
        yield


@plants
def missed_judged_by_lateness(cluster: SimulatedCluster) -> Generator[None]:
    """Whatever is overdue by more than the grace counts as missed, although its owner was there."""
    judge = missed.judge

    def wrong(row: Any, *, now: int, alive_until: Any, ownership_began: int, **rest: Any) -> Any:
        return judge(row, now=now, alive_until=None, ownership_began=now + 1, **rest)

    with patch.object(judging, "judge", wrong):
        yield


@plants
def one_shot_dropped_when_missed(cluster: SimulatedCluster) -> Generator[None]:
    """A one-shot that nobody was there for is passed over, whatever its action."""
    judge = missed.judge

    def wrong(
        row: Any, *, now: int, grace_us: int, alive_until: Any, ownership_began: int, **rest: Any
    ) -> Any:
        judged = judge(
            row, now=now, grace_us=grace_us, alive_until=alive_until, ownership_began=ownership_began, **rest
        )
        due = row.next_due_at
        lived = -1 if alive_until is None else alive_until
        absent = now - due > grace_us and due > lived + grace_us and due < ownership_began
        if isinstance(judged, Deliver) and absent and row.period_us is None and row.cron is None:
            return Skip(None, 1, due, False)
        return judged

    with patch.object(judging, "judge", wrong):
        yield


@plants
def occurrence_not_counted(cluster: SimulatedCluster) -> Generator[None]:
    """A settle moves the reminder on, but its next occurrence has the number of the last."""
    settle_delivered = missed.settle_delivered

    def wrong(row: Any, **rest: Any) -> Any:
        progress = settle_delivered(row, **rest)
        return None if progress is None else replace(progress, occurrence=row.occurrence)

    with patch.object(ticks, "settle_delivered", wrong):
        yield


@plants
def bucket_kept_when_partitions_go(cluster: SimulatedCluster) -> Generator[None]:
    """What a silo holds of partitions that are another's now stays where it is."""
    with patch.object(HeldReminders, "drop", lambda self, partitions: None):
        yield


def planted(name: str) -> Callable[[SimulatedCluster], Any]:
    """The bug of that name, for :func:`tests.simulation.running.run`."""
    return contextmanager(PLANTED[name])


FOUND_BY = {
    "no_fence": 15,
    "epoch_read_before_the_lock": 93,
    "commit_under_a_stale_snapshot": 27,
    "version_check_dropped": 4,
    "taken_without_a_new_epoch": 1,
    "settle_apart_from_the_state": 1,
    "reminders_in_a_second_transaction": 4,
    "unknown_outcome_sent_again": 6,
    "activation_kept_after_an_unknown_outcome": 4,
    "unknown_call_sent_again": 2,
    "expiry_by_wall_clock": 2,
    "no_freeze": 8,
    "thaw_without_a_look_at_the_epochs": 1,
    "renewed_although_the_loop_is_stuck": 2,
    "handed_over_without_waiting": 19,
    "early_tick": 1,
    "due_by_the_machines_clock": 1,
    "cancel_ignored_at_dequeue": 1,
    "missed_judged_by_lateness": 4,
    "one_shot_dropped_when_missed": 2,
    "occurrence_not_counted": 1,
    "bucket_kept_when_partitions_go": 1,
}
