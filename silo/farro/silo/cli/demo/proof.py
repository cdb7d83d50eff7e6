"""What the file says after a crash, held against arithmetic on the schedules.

Nothing here asks a silo.  What ran is what the grains' stored states say; what had to run is computed from
the cron texts; what was on record before comes from two other libraries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from farro.client.clock import from_us, to_us
from farro.client.codec import Codec
from farro.providers.opening import open_provider
from farro.providers.rows import GrainRow, ReminderFilter, ReminderRow
from farro.silo.cli.demo.crontabs import CrontabLine
from farro.silo.cli.demo.grains import Account, CronJob, Runs, Subscription
from farro.silo.grains.state import StateSpec
from farro.silo.schedules.cron import Cron

S = TypeVar("S")

ROWS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class OnFile:
    """The demo's rows as they stand in the file: counted ticks by job, reminders by job, accounts by name."""

    ran: dict[str, Runs]
    reminders: dict[str, ReminderRow]
    accounts: dict[str, Account]
    renewals: dict[str, ReminderRow]

    @property
    def counted(self) -> int:
        return sum(len(each.due) for each in self.ran.values())

    def owed(self, now: int) -> int:
        """How many jobs owe a tick that fell due by ``now``."""
        return sum(
            1 for row in self.reminders.values() if row.next_due_at is not None and row.next_due_at <= now
        )


async def read_file(store: str, now: int, jobs: Sequence[str], accounts: Sequence[str]) -> OnFile:
    """Read the store without a silo; changes nothing."""
    provider = open_provider(store, read_only=True)
    await provider.open(now)
    try:
        rows = await provider.list_reminders(ReminderFilter(grain_type=CronJob.__farro_type__), ROWS_MAX)
        renewals = await provider.list_reminders(
            ReminderFilter(grain_type=Subscription.__farro_type__), ROWS_MAX
        )
        job_rows = await provider.load([(CronJob.__farro_type__, key) for key in jobs])
        account_rows = await provider.load([(Subscription.__farro_type__, key) for key in accounts])
    finally:
        await provider.close()
    job_state, account_state = CronJob.__farro_class__.state, Subscription.__farro_class__.state
    return OnFile(
        {key: _decoded(job_state, row, Runs()) for key, row in zip(jobs, job_rows, strict=True)},
        {row.grain_key: row for row in rows},
        {
            key: _decoded(account_state, row, Account())
            for key, row in zip(accounts, account_rows, strict=True)
        },
        {row.grain_key: row for row in renewals},
    )


def _decoded(spec: StateSpec | None, row: GrainRow | None, empty: S) -> S:
    """A grain's stored state; ``empty`` where it never wrote one."""
    if spec is None or row is None or row.state is None:
        return empty
    state: S = spec.decode(row.state, row.layout, Codec())
    return state


@dataclass(frozen=True, slots=True)
class Verdict:
    """Sums over all jobs.

    ``stuck``: jobs that had not come past the horizon; ``passed_over``: occurrences that FIRE_ALL's
    bound left out, as counted by ticks and rows; ``off_record``: recorded instants that were not counted.
    ``faults``: a line for each job whose ticks are not those of its schedule.
    """

    due: int
    counted: int
    lost: int
    twice: int
    uncalled_for: int
    passed_over: int
    stuck: int
    recorded: int
    off_record: int
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        wrong = (self.lost, self.twice, self.uncalled_for, self.stuck, self.off_record)
        return 0 < self.counted == self.due - self.passed_over and not any(wrong)


def verdict(lines: Iterable[CrontabLine], file: OnFile, horizon: datetime) -> Verdict:
    """Hold every job's counted ticks against its schedule, from its first instant to its last settled one.

    Every job must have settled all instants up to ``horizon``.
    """
    sums: Counter[str] = Counter()
    faults: list[str] = []
    for line in lines:
        ran = file.ran[line.key].due
        row = file.reminders.get(line.key)
        if row is None:
            sums["stuck"] += 1  # the row of a cron reminder that fires is never deleted
            continue
        must = due_instants(line.expression, row.start_at, row.last_fire_at)
        sums["due"] += len(must)
        sums["counted"] += len(ran)
        passed_over = file.ran[line.key].passed_over + row.missed_count
        sums["passed_over"] += passed_over
        sums["lost"] += max(0, len(set(must) - set(ran)) - passed_over)
        sums["twice"] += len(ran) - len(set(ran))
        sums["uncalled_for"] += len(set(ran) - set(must))
        sums["stuck"] += row.next_due_at is None or row.next_due_at <= to_us(horizon)
        on_record = [
            to_us(at) for at in line.recorded if row.start_at <= to_us(at) <= (row.last_fire_at or 0)
        ]
        sums["recorded"] += len(on_record)
        sums["off_record"] += max(0, len(set(on_record) - set(ran)) - passed_over)
        if sorted(ran) != must and not passed_over:
            missing, uncalled = Counter(must) - Counter(ran), Counter(ran) - Counter(must)
            faults.append(
                f"{line.key} {line.expression!r} from {from_us(row.start_at)}: not counted {_told(missing)}; "
                f"counted without being owed {_told(uncalled)}"
            )
    names = Verdict.__dataclass_fields__.keys() - {"faults"}
    return Verdict(**{name: sums[name] for name in names}, faults=tuple(faults))


def _told(instants: Counter[int]) -> str:
    return ", ".join(str(from_us(at)) for at in sorted(instants.elements())) or "none"


def due_instants(expression: str, first: int, last: int | None) -> list[int]:
    """Every instant of a cron text from ``first`` to ``last``, both included, in microseconds."""
    if last is None:
        return []
    schedule, found = Cron(expression), []
    at = schedule.next(from_us(first - 1))
    while at is not None and to_us(at) <= last:
        found.append(to_us(at))
        at = schedule.next(at)
    return found


def renewal_faults(account: Account, row: ReminderRow | None) -> int:
    """How many charges of a running renewal differ from its grid."""
    if row is None or row.period_us is None:
        return 1
    must = list(range(row.start_at, (row.last_fire_at or row.start_at - 1) + 1, row.period_us))
    return len(set(must) ^ set(account.charged)) + len(account.charged) - len(set(account.charged))


def begun(journal: Path) -> Counter[tuple[str, int]]:
    """How often each tick began, by (job, due instant), from the jobs' own journal."""
    ticks: Counter[tuple[str, int]] = Counter()
    if journal.exists():
        for line in journal.read_text(encoding="utf-8").splitlines():
            key, _, due = line.partition(" ")
            ticks[key, int(due)] += 1
    return ticks
