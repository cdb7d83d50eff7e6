"""The grains of the demo.  ``farro silo farro.silo.cli.demo.grains`` serves them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from datetime import timedelta

from farro.client.clock import to_us
from farro.client.reminders import MissedReminderAction, ReminderHandle
from farro.silo.grains.decorators import readonly
from farro.silo.grains.grain import Grain

JOURNAL_VARIABLE = "FARRO_DEMO_JOURNAL"  # a file that gets a line whenever a tick begins: an outside effect
WORK_S = 0.01  # what a job pretends to work
NIGHTLY_WORK_S = 0.2  # midnight's jobs take longer, so that the kill finds them in the middle


@dataclass
class Runs:
    """The due instants (microseconds) of the ticks that a grain has counted, in the order they came.

    ``passed_over``: what FIRE_ALL left out because more than a hundred were owed at once, as the ticks said.
    """

    due: list[int] = field(default_factory=list)
    passed_over: int = 0


class CronJob(Grain[Runs], name="demo.cron-jobs"):
    """One line of a crontab.  Counts its ticks in its state: the count and the tick commit together."""

    async def install(self, expression: str) -> None:
        # FIRE_ALL: what fell due while no silo ran is delivered one by one, so that each can be counted
        self.schedule(self.run, cron=expression, missed=MissedReminderAction.FIRE_ALL)

    async def run(self) -> None:
        assert self.tick is not None, "run is only ever scheduled"
        due = to_us(self.tick.due_at)
        _write_down(self.key, due)
        at_midnight = self.tick.due_at.hour == self.tick.due_at.minute == 0
        await asyncio.sleep(NIGHTLY_WORK_S if at_midnight else WORK_S)
        self.state.due.append(due)
        self.state.passed_over += self.tick.missed_count


@dataclass
class Account:
    status: str = "new"
    charged: list[int] = field(default_factory=list)  # due instants, microseconds
    renewal: ReminderHandle | None = None


class Subscription(Grain[Account], name="demo.subscriptions"):
    """Billing by reminders: a trial that ends once, a renewal that comes again until it is cancelled."""

    async def start_trial(self, length: timedelta) -> None:
        self.state.status = "trialing"
        self.schedule(self.trial_expired, after=length)

    async def trial_expired(self) -> None:
        self.state.status = "expired"

    async def convert_to_paid(self, period: timedelta) -> None:
        self.state.status = "active"
        self.unschedule(self.trial_expired)
        self.state.renewal = self.schedule(
            self.charge_renewal, every=period, missed=MissedReminderAction.FIRE_ALL
        )

    async def charge_renewal(self) -> None:
        assert self.tick is not None, "charge_renewal is only ever scheduled"
        self.state.charged.append(to_us(self.tick.due_at))

    async def cancel(self) -> None:
        """Cancel by the handle that convert_to_paid kept in the state."""
        if self.state.renewal is not None:
            self.unschedule(self.state.renewal)
        self.state.status = "cancelled"
        self.state.renewal = None

    @readonly
    async def summary(self) -> tuple[str, int]:
        """Status, and how often this subscription was charged."""
        return self.state.status, len(self.state.charged)


def _write_down(key: str, due: int) -> None:
    path = os.environ.get(JOURNAL_VARIABLE)
    if path is None:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{key} {due}\n".encode())
    finally:
        os.close(descriptor)
