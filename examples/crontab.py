"""A crontab file run by a grain: durable, and what fell due while nobody was there is not forgotten.

Serve it:   farro silo examples.crontab
Load it:    python examples/crontab.py          (reads crontab.txt beside this file)
Look:       farro reminders list crontabs main
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from farro.client import Client
from farro.silo import Cron, Grain, readonly

FIELDS = 5
JOBS = {  # what a line may name; a file must not be able to run anything else
    "heartbeat": "still here",
    "backup": "files copied",
    "report": "figures sent",
    "tidy": "old files removed",
}


@dataclass(frozen=True)
class Line:
    expression: str
    job: str


@dataclass
class CrontabState:
    jobs: list[str] = field(default_factory=list[str])
    ran: dict[str, int] = field(default_factory=dict[str, int])


class Crontab(Grain[CrontabState], name="crontabs"):
    async def load(self, text: str) -> dict[str, datetime]:
        """Run the lines of ``text`` from now on, and no others; when each is due next.

        One bad line refuses the whole text and changes nothing: a turn that raises has no effects.
        """
        self.unschedule_all(self.run)
        due: dict[str, datetime] = {}
        for line in parse(text):
            # cron joins two restricted day fields by "or", farro by "and" unless it is told
            cron = Cron(line.expression, timezone="Europe/Berlin", day_match="or")
            self.schedule(self.run, line.job, cron=cron, key=line.job)
            reminder = await self.reminder(self.run, key=line.job)
            if reminder is not None and reminder.next_run_at is not None:
                due[line.job] = reminder.next_run_at
        self.state.jobs = list(due)
        return due

    async def run(self, job: str) -> None:
        self.log.info("%s: %s", job, JOBS[job])
        self.state.ran[job] = self.state.ran.get(job, 0) + 1

    @readonly
    async def ran(self) -> dict[str, int]:
        return self.state.ran


def parse(text: str) -> list[Line]:
    """The lines of a crontab; ``#`` begins a comment.  Raises ``ValueError`` naming the line."""
    lines: list[Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.partition("#")[0].split()
        if not words:
            continue
        width = 1 if words[0].startswith("@") else FIELDS
        if len(words) != width + 1 or words[-1] not in JOBS:
            raise ValueError(f"line {number}: expected {width} fields and one of {', '.join(JOBS)}")
        lines.append(Line(" ".join(words[:-1]), words[-1]))
    return lines


async def load(client: Client, text: str) -> list[str]:
    """Give the crontab grain its lines; one line of text for each job and its next run."""
    due = await client.grain(Crontab, "main").load(text)
    return [f"{at:%Y-%m-%d %H:%M} UTC  {job}" for job, at in sorted(due.items(), key=lambda pair: pair[1])]


async def main(text: str) -> None:
    async with Client("http://127.0.0.1:11111") as client:
        print("\n".join(await load(client, text)))


if __name__ == "__main__":
    asyncio.run(main(Path(__file__).with_name("crontab.txt").read_text(encoding="utf-8")))
