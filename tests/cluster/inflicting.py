"""Carries the faults of a plan out on a stage, and undoes them."""

from __future__ import annotations

import asyncio
import pwd
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.faults import AT_ONCE, Fault, Kind
from tests.cluster.stage import Place, Stage
from tests.support.servers import Server
from tests.support.tcp_proxy import CLEAR, CUT, Line, TcpProxy

SLOW = Line(delay_s=0.05, jitter_s=0.15, bytes_per_s=2_000_000)
FULL_AT_BYTES = 1 << 20  # no file may grow beyond it: PostgreSQL's log has segments of that size here


@dataclass(frozen=True, slots=True)
class Faulty:
    """What faults happen to.  ``server`` None: the store is the SQLite file ``file``."""

    stage: Stage
    server: Server | None = None
    file: Path | None = None

    async def inflict(self, fault: Fault) -> None:
        """Until it is over and undone."""
        if fault.kind in _OF_ALL:
            await _OF_ALL[fault.kind](self, fault.lasts_s)
            return
        assert fault.place is not None
        place = self.stage.places[fault.place]
        if fault.kind in _OF_PROCESS:
            await _OF_PROCESS[fault.kind](self.stage, place, fault.lasts_s)
        else:
            await _spoil(place, fault)

    def heal(self) -> None:
        """Every line is clear again and every disk has room."""
        for place in self.stage.places:
            place.front.heal()
            if place.store is not None:
                place.store.heal()
        self.limit_files(None)

    async def restart_database(self, away_s: float) -> None:
        """As ``pg_ctl restart -m immediate``: SIGQUIT, no shutdown checkpoint, recovery at the next start."""
        assert self.server is not None
        await asyncio.to_thread(self.server.stop, signal.SIGQUIT)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self.server.start)

    async def fill_disk(self, for_s: float) -> None:
        """No file that the store's processes write may grow: RLIMIT_FSIZE needs no privilege and no tmpfs."""
        self.limit_files(self._full_at())
        try:
            await asyncio.sleep(for_s)
        finally:
            self.limit_files(None)

    async def kill_all(self, away_s: float) -> None:
        await self.stage.kill_all(away_s)

    def _full_at(self) -> int:
        if self.file is None:
            return FULL_AT_BYTES
        return max(path.stat().st_size for path in self.file.parent.glob(f"{self.file.name}*"))

    def limit_files(self, bytes_max: int | None) -> None:
        """For the processes that write the store, those to come included; None: no limit."""
        if sys.platform != "linux":
            raise RuntimeError("a full disk needs prlimit(2), which Linux has")
        limit = (resource.RLIM_INFINITY if bytes_max is None else bytes_max, resource.RLIM_INFINITY)
        uid = None if self.server is None else self.server.uid
        with suppress(psutil.NoSuchProcess):  # the database is being restarted: it comes back without a limit
            for pids in self._writers():
                _limit_file_size(pids, limit, uid)

    def _writers(self) -> Iterator[list[int]]:
        if self.server is None:
            yield [
                place.process.pid for place in self.stage.places if place.process and not place.process.ended
            ]
        elif self.server.proc is not None and self.server.proc.poll() is None:
            postmaster = psutil.Process(self.server.proc.pid)
            yield [postmaster.pid]  # first: what it forks from now on has the limit already
            yield [process.pid for process in postmaster.children(recursive=True)]


_OF_ALL: dict[Kind, Callable[[Faulty, float], Awaitable[None]]] = {
    Kind.RESTART_DATABASE: Faulty.restart_database,
    Kind.FILL_DISK: Faulty.fill_disk,
    Kind.KILL_ALL: Faulty.kill_all,
}
_OF_PROCESS: dict[Kind, Callable[[Stage, Place, float], Awaitable[None]]] = {
    Kind.KILL: Stage.kill,
    Kind.RESTART: Stage.restart,
    Kind.BLINK: Stage.freeze,
    Kind.FREEZE: Stage.freeze,
}
# (way up, way down) of the proxy; up is towards whom the proxy stands for: the database, or the silo
_LINES: dict[Kind, tuple[Line, Line]] = {
    Kind.CUT_STORE: (CUT, CUT),
    Kind.DEAF_STORE: (CLEAR, CUT),
    Kind.MUTE_STORE: (CUT, CLEAR),
    Kind.SLOW_STORE: (SLOW, SLOW),
    Kind.CUT_FRONT: (CUT, CUT),
    Kind.DEAF_FRONT: (CUT, CLEAR),
    Kind.SLOW_FRONT: (SLOW, SLOW),
}
_STORE = frozenset({Kind.CUT_STORE, Kind.DEAF_STORE, Kind.MUTE_STORE, Kind.SLOW_STORE, Kind.RESET_STORE})


async def _spoil(place: Place, fault: Fault) -> None:
    proxy: TcpProxy | None = place.store if fault.kind in _STORE else place.front
    assert proxy is not None, f"{fault.kind.value} needs a proxy before the store"
    if fault.kind in AT_ONCE:
        proxy.reset()
        return
    up, down = _LINES[fault.kind]
    proxy.become(up=up, down=down)
    await asyncio.sleep(fault.lasts_s)
    proxy.heal()


def _limit_file_size(pids: list[int], limit: tuple[int, int], uid: int | None) -> None:
    """As the user that they run as: even root may not, in a container, limit a process of somebody else."""

    def set_limits() -> None:
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended meanwhile
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)

    subprocess.run(
        ["true"],
        user=uid,
        group=None if uid is None else pwd.getpwuid(uid).pw_gid,
        extra_groups=None if uid is None else [],
        preexec_fn=set_limits,
        check=True,
    )
