"""A simulated cluster as the cases want it: silos, a client, chimes that ring and counts that are called."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar

from farro.client.codec import Codec
from farro.providers.members import SiloStatus
from farro.silo.grains.grain import Grain
from farro.silo.options import ClusterOptions
from farro.silo.testing.simulated_cluster import CALM, SimulatedCluster, SimulatedSilo
from farro.silo.testing.simulated_store import Committed, Member
from farro.silo.testing.simulated_time import SimulatedLoop

STEP_S = 0.02
CODEC = Codec(None)


@dataclass
class CountState:
    count: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The code of a turn has begun.  ``at``: simulated seconds; ``silo``: the number it ran under."""

    at: float
    silo: int
    key: str
    what: str  # a tick's id, or the method


class Counting(Grain[CountState]):
    """Writes down each turn whose code begins, and each memory that is made."""

    scene: ClassVar[Scene]

    def _note(self, what: str) -> None:
        self.scene.runs.append(Run(self.scene.now_s, self.scene.here().number, self.key, what))
        self.state.count += 1


class Chime(Counting, name="chime"):
    async def every(self, first_s: float, period_s: float, turn_s: float) -> None:
        period, first = timedelta(seconds=period_s), timedelta(seconds=first_s)
        self.schedule(self.ring, turn_s, every=period, after=first)

    async def ring(self, turn_s: float) -> None:
        assert self.tick is not None
        self._note(self.tick.id)
        if turn_s:
            await asyncio.sleep(turn_s)


class Hot(Counting, name="hot"):
    woken: ClassVar[list[str]]
    failures_left: ClassVar[int]

    async def on_activate(self) -> None:
        Hot.woken.append(self.key)
        await asyncio.sleep(0.05)
        if Hot.failures_left:
            Hot.failures_left -= 1
            raise OSError(f"not yet, {Hot.failures_left} more")

    async def add(self, turn_s: float = 0.0) -> int:
        self._note("add")
        if turn_s:
            await asyncio.sleep(turn_s)
        return self.state.count

    async def add_and_sleep(self) -> int:
        if self.state.count % 7 == 0:
            self.deactivate()
        return await self.add(0.01)

    async def instance(self) -> int:
        return id(self)

    async def pass_on(self, path: list[str]) -> str:
        return await self.grain(Hot, path[0]).pass_on(path[1:]) if path else "end"


class Scene:
    """One cluster, the true time, and what happened."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.runs: list[Run] = []
        self.client = cluster.client("client")
        Counting.scene, Hot.woken, Hot.failures_left = self, [], 0

    @property
    def now_s(self) -> float:
        return self.cluster.simulation.now_us / 1e6

    @property
    def silos(self) -> list[SimulatedSilo]:
        return self.cluster.silos

    def here(self) -> SimulatedSilo:
        """The silo whose code is running."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        return self.cluster.place_of(loop)

    # ---- time

    def go_on(self, seconds: float) -> None:
        self.cluster.simulation.run_until(self.cluster.simulation.now_us + int(seconds * 1e6))

    def until(self, fact: Callable[[], Any], what: str, limit_s: float = 60.0) -> float:
        """Let time pass until it is so; how long that took, in seconds."""
        began = self.now_s
        while not fact():
            assert self.now_s - began < limit_s, f"still not: {what}"
            self.go_on(STEP_S)
        return self.now_s - began

    def ask(self, work: Coroutine[Any, Any, Any], limit_s: float = 60.0) -> Any:
        """What that coroutine of the client's answers."""
        simulation = self.cluster.simulation
        return simulation.run(self.client.loop, work, simulation.now_us + int(limit_s * 1e6))

    async def call(
        self, silo: SimulatedSilo, cls: type[Grain[Any]], key: str, method: str, *args: Any
    ) -> Any:
        return await self.client.call(silo.address, cls, key, method, *args, timeout_s=30.0)

    # ---- silos

    def start(self, *silos: SimulatedSilo) -> float:
        for silo in silos:
            silo.start()
        return self.until(lambda: all(silo.state == "up" for silo in silos), "the silos are up")

    def settled(self) -> bool:
        """Has each silo that is up its share, and does each partition have one owner that lives?"""
        up = [silo for silo in self.silos if silo.state == "up"]
        owned = [len(self.owned(silo)) for silo in up]
        partitions = self.cluster.store.service.partitions.values()
        owners = {row.owner for row in partitions}
        return (
            sum(owned) == 64
            and max(owned) <= 1.1 * 64 / len(up) + 1
            and owners == {silo.number for silo in up}
        )

    def balanced(self) -> None:
        self.until(self.settled, "each has its share")

    def owned(self, silo: SimulatedSilo) -> frozenset[int]:
        assert silo.silo is not None
        return silo.silo.rooms.core.ownership.all()

    def lives_on(self, silo: SimulatedSilo, key: str, grain_type: str = "hot") -> bool:
        assert silo.silo is not None
        ownership = silo.silo.rooms.core.ownership
        return ownership.serves(ownership.partition_of(grain_type, key))

    def awake(self, key: str, grain_type: str = "hot") -> list[int]:
        """The silos on which a grain is awake, by their numbers."""
        up = [silo for silo in self.silos if silo.silo is not None and silo.state in ("up", "frozen")]
        return [each.number for each in up if each.silo and each.silo.rooms.catalog.awake(grain_type, key)]

    def status_of(self, number: int) -> SiloStatus:
        return self.cluster.store.service.silos[number].status

    # ---- what happened

    def deaths(self) -> list[int]:
        """The numbers of all that were ever marked dead."""
        log = self.cluster.store.log
        return [each.silo for each in log if isinstance(each, Member) and each.status is SiloStatus.DEAD]

    def in_flight(self) -> int:
        """Ticks whose code has begun and that no commit has consumed yet; while none was repeated."""
        return sum(self.ticks().values()) - len(self.consumed())

    def consumed(self) -> Counter[tuple[str, int, int]]:
        """How often a commit with an effect consumed each occurrence (key, registration, occurrence)."""
        return Counter(
            (each.commit.grain_key, each.settled.registration, each.settled.occurrence)
            for each in self.cluster.store.log
            if isinstance(each, Committed) and each.settled is not None and each.commit.grain is not None
        )

    def ticks(self) -> Counter[str]:
        """How often the code of each tick has begun, by the tick's id."""
        return Counter(run.what for run in self.runs if "#" in run.what)

    def count(self, cls: type[Counting], key: str) -> int:
        """The count of a grain as it is committed."""
        known = cls.__farro_class__
        assert known.state is not None
        row = self.cluster.store.service.grains[known.type_name, key]
        return 0 if row.state is None else int(known.state.decode(row.state, row.layout, CODEC).count)

    def ring_all(self, keys: Iterable[str], first_s: float, period_s: float, turn_s: float = 0.0) -> None:
        async def register() -> None:
            for key in keys:
                await self.call(self.silos[0], Chime, key, "every", first_s, period_s, turn_s)

        self.ask(register())


@contextmanager
def scene(silos: int, *, spare: int = 0, seed: int = 1, lease_s: float = 4.0) -> Generator[Scene]:
    """``silos`` that are up and have their shares, and places for ``spare`` more.  At its end nothing was
    left uncaught."""
    options = replace(
        CALM,
        cluster=ClusterOptions(
            lease=timedelta(seconds=lease_s), renew_interval=timedelta(seconds=lease_s / 4)
        ),
    )
    with SimulatedCluster([Chime, Hot], seed=seed, silos=silos + spare, options=options) as cluster:
        made = Scene(cluster)
        if silos:
            made.start(*made.silos[:silos])
            made.balanced()
        yield made
        assert cluster.simulation.failures == []
