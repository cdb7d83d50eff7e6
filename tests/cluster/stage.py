"""Silos in processes of their own on one store, a proxy before each door, and what spoils processes.

Clients and other silos reach a silo through its *front* proxy, the silo reaches PostgreSQL through its
*store* proxy; a ``direct`` stage, for measuring, has no proxy on the way to a silo.  A process that ends
without having been asked to is written down and started anew, as whoever looks after processes would.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from tests.acceptance.processes import NotReady
from tests.cluster.chaos_grains import MODULE
from tests.cluster.silo_process import SiloProcess
from tests.support.ports import free_port
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

START_TRIES_MAX = 20
AGAIN_S = 0.5  # after a start that failed, as during an outage of the database
PROCESSES_MAX = 2_000  # of one run: so many database users are made


class Place:
    """Where one silo process after the other serves.  ``port``: of each of them in a direct stage."""

    def __init__(self, number: int, front: TcpProxy, store: TcpProxy | None, port: int | None) -> None:
        self.number = number
        self.port = port
        self.front = front
        self.store = store
        self.process: SiloProcess | None = None
        self.lock = asyncio.Lock()  # of whoever starts or ends its process

    @property
    def address(self) -> str:
        """Where the silo is reached."""
        return self.front.address if self.port is None else f"127.0.0.1:{self.port}"

    @property
    def serving(self) -> SiloProcess:
        """Its process.  ``RuntimeError`` when there is none at this moment."""
        if self.process is None:
            raise RuntimeError(f"place {self.number} has no process")
        return self.process


class Stage:
    """Use through :func:`stage`.

    ``store_url(place, process)``: what the silo process of that number (from 1, never used twice) is given.
    """

    def __init__(
        self,
        folder: Path,
        places: list[Place],
        store_url: Callable[[Place, int], str],
        arguments: tuple[str, ...],
    ) -> None:
        self.folder = folder
        self.places = places
        self._store_url = store_url
        self._arguments = arguments
        self._started = 0
        self._watching: set[asyncio.Task[None]] = set()
        self.closing = False
        self.unasked_ends: list[str] = []
        self.starts_failed: list[str] = []

    @property
    def addresses(self) -> list[str]:
        """Where clients go."""
        return [f"http://{place.address}" for place in self.places]

    # ---- processes

    async def start(self, place: Place, tries: int = START_TRIES_MAX) -> SiloProcess:
        """Start a process there and wait until it is ready; the caller holds the place's lock.

        During an outage a start fails, and is tried again.
        """
        for _ in range(tries):
            process = await self._launch(place)
            try:
                place.front.target = await process.wait_ready()
            except NotReady as error:
                await process.end()
                self.starts_failed.append(f"place {place.number}: {str(error)[-500:]}")
                await asyncio.sleep(AGAIN_S)
                continue
            await place.front.listen()
            task = asyncio.create_task(self._look_after(place, process), name=f"looking after {process.pid}")
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
            return process
        raise NotReady(f"place {place.number} did not start: {self.starts_failed[-1]}")

    async def _launch(self, place: Place) -> SiloProcess:
        self._started += 1
        if self._started > PROCESSES_MAX:
            raise RuntimeError(f"more than {PROCESSES_MAX} processes were started")
        arguments = (
            *(MODULE, "--store", self._store_url(place, self._started)),
            *("--listen", f"127.0.0.1:{place.port or 0}", "--advertise", place.address),
            *self._arguments,
        )
        name = f"silo-{place.number}-{self._started}"
        place.process = await SiloProcess.start(arguments, self.folder, name)
        return place.process

    async def _look_after(self, place: Place, process: SiloProcess) -> None:
        code = await process.wait()
        if self.closing or process.asked_to_end:
            return
        last = process.errors.strip().splitlines()[-1:] or process.lines[-1:]
        self.unasked_ends.append(f"place {place.number}, silo {process.number}, exit {code}: {''.join(last)}")
        place.front.refuse()
        async with place.lock:
            if place.process is process and not self.closing:
                await process.end()
                await self.start(place)

    async def start_all(self) -> None:
        """The first start of each; nothing is wrong yet, so it must succeed at once."""
        async with asyncio.TaskGroup() as tasks:
            for place in self.places:
                tasks.create_task(self._start_locked(place))

    async def _start_locked(self, place: Place) -> None:
        async with place.lock:
            await self.start(place, tries=1)

    async def kill(self, place: Place, away_s: float) -> None:
        """SIGKILL; its port refuses, as the kernel has it; another process after ``away_s``."""
        async with place.lock:
            place.front.refuse()
            await place.serving.end()
            place.front.reset()
            await asyncio.sleep(away_s)
            await self.start(place)

    async def restart(self, place: Place, away_s: float) -> None:
        """SIGTERM, the end of its own accord, another process."""
        async with place.lock:
            process = place.serving
            await process.stop()
            place.front.refuse()
            await process.end()
            await asyncio.sleep(away_s)
            await self.start(place)

    async def freeze(self, place: Place, for_s: float) -> None:
        """SIGSTOP, SIGCONT."""
        async with place.lock:
            process = place.serving
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(for_s)
            process.signal(signal.SIGCONT)

    async def kill_all(self, away_s: float) -> None:
        await asyncio.gather(*(self.kill(place, away_s) for place in self.places))

    async def close(self) -> None:
        """End every process.  Repeatable."""
        self.closing = True
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        for place in self.places:
            if place.process is not None:
                await place.process.end()


@asynccontextmanager
async def stage(
    folder: Path,
    places: int,
    store_url: Callable[[Place, int], str],
    *,
    database: tuple[str, int] | None = None,
    arguments: tuple[str, ...] = (),
    direct: bool = False,
    chance: Random | None = None,
) -> AsyncGenerator[Stage]:
    """``places`` silos that have not been started yet.  ``database``: where the store proxies lead."""
    chance = chance or Random(0)
    async with AsyncExitStack() as stack:
        made = [
            Place(
                number,
                await stack.enter_async_context(tcp_proxy(None, chance)),
                None if database is None else await stack.enter_async_context(tcp_proxy(database, chance)),
                free_port() if direct else None,
            )
            for number in range(places)
        ]
        built = Stage(folder, made, store_url, arguments)
        stack.push_async_callback(built.close)
        yield built
