"""A peer: APScheduler 3 with its SQLAlchemy store on SQLite, firing a backlog of overdue jobs.

Measured only where it is installed (``pip install "apscheduler<4" sqlalchemy``); farro does not need it.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from time import perf_counter

WAIT_MAX_S = 60.0

_fired = 0
_wanted = 0
_enough = asyncio.Event()


async def fire() -> None:
    """A job: stored by name, so it lives at the top of a module."""
    global _fired
    _fired += 1
    if _fired == _wanted:
        _enough.set()


async def apscheduler_rate(path: Path, jobs: int) -> float:
    """Jobs fired per second.  Recurring jobs, once overdue, as in farro's backlog; nothing else is stored."""
    global _fired, _wanted, _enough
    _fired, _wanted, _enough = 0, jobs, asyncio.Event()
    schedulers = import_module("apscheduler.schedulers.asyncio")
    stores = import_module("apscheduler.jobstores.sqlalchemy")
    store = stores.SQLAlchemyJobStore(url=f"sqlite:///{path}")
    scheduler = schedulers.AsyncIOScheduler(jobstores={"default": store}, timezone=UTC)
    scheduler.start(paused=True)
    overdue = datetime.now(UTC) - timedelta(seconds=10)
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
