"""A silo that is killed (SIGKILL, by itself) at one step of the reminder line.

    python -m tests.acceptance.crash_points STORE.db POINT

It serves the file's reminders and dies when the step has come for the seventh time.  The points are known to
this program alone: a wrapper around the store, and the grain's own method.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from farro.providers.opening import open_provider
from farro.providers.rows import Commit, GrainRow, Verdict
from farro.silo import Grain, ReminderOptions, Silo, SiloOptions, TickStatus

POINTS = {
    "before the turn": "the grain is about to be read for its tick",
    "inside the turn": "its code runs",
    "sent": "the commit was handed to the store, which has not applied it",
    "applied": "the store has applied the commit and has not answered",
    "acknowledged": "the answer is there, the next tick has not begun",
}
NTH = 7
GRACE = timedelta(milliseconds=200)
LIFE_S = 30.0


def options() -> SiloOptions:
    return SiloOptions(reminders=ReminderOptions(missed_grace=GRACE))


class Crash:
    """Counts how often its step comes, and kills this process at the seventh time."""

    def __init__(self, point: str | None) -> None:
        self.point = point
        self._seen = 0

    def at(self, point: str) -> None:
        if point == self.point:
            self._seen += 1
            if self._seen == NTH:
                os.kill(os.getpid(), signal.SIGKILL)


crash = Crash(None)


@dataclass
class KeptState:
    occurrences: list[int] = field(default_factory=list)


class Kept(Grain[KeptState], name="kept"):
    """Writes down each occurrence that it was given."""

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        assert self.tick is not None
        self.state.occurrences.append(self.tick.occurrence)
        crash.at("inside the turn")


class CrashingStore:
    """A store in front of which, in which or behind which the process dies."""

    def __init__(self, url: str) -> None:
        self._inner = open_provider(url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def load(self, grains: Sequence[tuple[str, str]]) -> list[GrainRow | None]:
        if any(grain_type == "kept" for grain_type, _ in grains):
            crash.at("before the turn")
        return await self._inner.load(grains)

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        return await self._watched(
            any(each.settle is not None for each in batch), lambda: self._inner.commit(batch, owner, now)
        )

    async def _watched(self, watched: bool, act: Callable[[], Awaitable[list[Verdict]]]) -> list[Verdict]:
        if not watched:
            return await act()
        crash.at("sent")
        verdicts = await act()
        crash.at("applied")
        asyncio.get_running_loop().call_soon(crash.at, "acknowledged")
        return verdicts


async def serve(url: str) -> None:
    store: Any = CrashingStore(url)
    async with Silo(grains=[Kept], store=store, options=options()):
        await asyncio.sleep(LIFE_S)  # the crash ends it; a silo that outlives this was not killed


if __name__ == "__main__":
    crash.point = sys.argv[2]
    asyncio.run(serve(f"sqlite:///{sys.argv[1]}"))
