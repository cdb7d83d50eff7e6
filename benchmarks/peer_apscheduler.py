"""A peer: APScheduler 3 or 4 with its SQLAlchemy store on SQLite, firing a backlog of overdue jobs.

farro does not need it, and the two versions exclude each other, so each runs in a Python of its own, named by
an environment variable (PYTHONS):

    python -m venv /tmp/aps3 && /tmp/aps3/bin/pip install "apscheduler<4" sqlalchemy
    python -m venv /tmp/aps4 && /tmp/aps4/bin/pip install "apscheduler==4.0.0a6" "sqlalchemy[asyncio]" \
        aiosqlite sniffio
    FARRO_BENCH_APSCHEDULER3=/tmp/aps3/bin/python FARRO_BENCH_APSCHEDULER4=/tmp/aps4/bin/python \
        farro bench ticks

There this file is the whole program: ``python peer_apscheduler.py FILE JOBS`` prints jobs fired per second.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import datetime, timedelta, timezone
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

PYTHONS = {3: "FARRO_BENCH_APSCHEDULER3", 4: "FARRO_BENCH_APSCHEDULER4"}
WAIT_MAX_S = 120.0
UTC = timezone.utc  # noqa: UP017 — whatever Python the peer has

_fired = 0
_wanted = 0
_enough = asyncio.Event()


async def apscheduler_rate(release: int, path: Path, jobs: int) -> float | None:
    """Jobs fired per second; None where no Python is named that has this release."""
    python = os.environ.get(PYTHONS[release])
    if not python:
        return None
    process = await asyncio.create_subprocess_exec(
        python, __file__, str(path), str(jobs), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"APScheduler {release} in {python} failed; its error is above")
    return float(printed)


async def fire() -> None:
    """A job: stored by name, so it lives at the top of a module."""
    global _fired
    _fired += 1
    if _fired == _wanted:
        _enough.set()


async def _rate_of_3(path: str, jobs: int, overdue: datetime) -> float:
    """Recurring jobs, once overdue, as in farro's backlog; nothing else is stored."""
    schedulers = import_module("apscheduler.schedulers.asyncio")
    stores = import_module("apscheduler.jobstores.sqlalchemy")
    store = stores.SQLAlchemyJobStore(url=f"sqlite:///{path}")
    scheduler = schedulers.AsyncIOScheduler(jobstores={"default": store}, timezone=UTC)
    scheduler.start(paused=True)
    for number in range(jobs):
        scheduler.add_job(
            fire,
            "interval",
            days=1,
            id=f"job-{number}",
            next_run_time=overdue + timedelta(microseconds=number),
            misfire_grace_time=None,
        )
    begun = perf_counter()
    scheduler.resume()
    await asyncio.wait_for(_enough.wait(), WAIT_MAX_S)
    rate = jobs / (perf_counter() - begun)
    scheduler.shutdown(wait=False)
    store.engine.dispose()
    await asyncio.sleep(0)  # the scheduler takes itself down in the loop
    return rate


async def _rate_of_4(path: str, jobs: int, overdue: datetime) -> float:
    """The same schedules; each firing is a row of its own there, taken by a worker and deleted."""
    apscheduler = import_module("apscheduler")
    stores = import_module("apscheduler.datastores.sqlalchemy")
    triggers = import_module("apscheduler.triggers.interval")
    store = stores.SQLAlchemyDataStore(f"sqlite+aiosqlite:///{path}")
    async with apscheduler.AsyncScheduler(store) as scheduler:
        for number in range(jobs):
            start = overdue + timedelta(microseconds=number)
            trigger = triggers.IntervalTrigger(days=1, start_time=start)
            await scheduler.add_schedule(fire, trigger, id=f"job-{number}", misfire_grace_time=None)
        begun = perf_counter()
        await scheduler.start_in_background()
        await asyncio.wait_for(_enough.wait(), WAIT_MAX_S)
        rate = jobs / (perf_counter() - begun)
        await scheduler.stop()
    return rate


async def main(path: str, jobs: int) -> None:
    global _wanted
    _wanted = jobs
    overdue = datetime.now(UTC) - timedelta(seconds=10)
    of = _rate_of_3 if version("apscheduler").startswith("3.") else _rate_of_4
    print(await of(path, jobs, overdue))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
