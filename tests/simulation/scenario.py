"""What happens in one seed: its clients, its faults, its end.

Each seed draws its own mood: which kinds of faults it has at all, how often, how many silos and clients.
Seeds that have everything at once find less than seeds that do one thing hard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from farro.client.errors import FarroError
from farro.client.reminders import MissedReminderAction, ReminderPriority
from farro.silo.options import ClusterOptions, ReminderOptions, SiloOptions
from farro.silo.testing.faulty_provider import Fault
from farro.silo.testing.simulated_cluster import CALM, SimulatedClient, SimulatedCluster, SimulatedSilo
from tests.simulation.grains import Chimes, Ledger
from tests.simulation.histories import Call, History

SECOND_US = 1_000_000
LENGTH_S = 600
FAULTS_END_S = 500
PROBES_BEGIN_S = 570  # everything has had more than a minute to recover
LOOK_S = 5

LEDGERS = [f"l{number}" for number in range(8)]
CHIMES = [f"c{number}" for number in range(6)]
REMINDERS = ["a", "b", "slow", "d"]
SENDS_MAX = 4
CALL_TIMEOUT_S = 12.0

LEASES = (0.6, 0.95, 1.05, 1.2, 2.0)  # freezes, in leases: some end in the middle of being taken for dead

KINDS = ("crash", "freeze", "stop", "outage", "cut store", "cut network", "clock", "trouble", "slow")


@dataclass(frozen=True, slots=True)
class Mood:
    """What a seed is like."""

    silos: int
    clients: int
    pause_s: float  # between two calls of a client, on average
    kinds: tuple[str, ...]
    every_s: float  # between two faults, on average
    lease_s: float
    grace_s: float  # missed_grace
    skew_us: int  # clocks differ from the true time by up to this
    store_has_clock: bool

    @classmethod
    def drawn(cls, random: Random) -> Mood:
        few = random.randint(1, 4)
        kinds = KINDS if random.random() < 0.3 else tuple(sorted(random.sample(KINDS, few)))
        return cls(
            silos=random.choice((2, 3, 3, 4)),
            clients=random.randint(2, 3),
            pause_s=random.choice((1.0, 3.0, 6.0)),
            kinds=kinds,
            every_s=random.choice((8.0, 20.0, 45.0)),
            lease_s=random.choice((4.0, 8.0, 12.0)),
            grace_s=random.choice((2.0, 10.0, 30.0)),
            skew_us=random.choice((0, 0, 200_000, 5 * SECOND_US)),
            store_has_clock=random.random() < 0.5,
        )

    @property
    def options(self) -> SiloOptions:
        return replace(
            CALM,
            cluster=ClusterOptions(
                lease=timedelta(seconds=self.lease_s), renew_interval=timedelta(seconds=self.lease_s / 4)
            ),
            reminders=ReminderOptions(missed_grace=timedelta(seconds=self.grace_s)),
        )


class Scenario:
    """Drives one cluster through its ten minutes."""

    def __init__(self, cluster: SimulatedCluster, history: History, mood: Mood) -> None:
        self.cluster = cluster
        self.history = history
        self.mood = mood
        self.random = history.random
        cluster.store.has_clock = mood.store_has_clock
        self._operations = 0
        self._faulty = True

    def run(self) -> None:
        simulation = self.cluster.simulation
        for place in self.cluster.silos:
            place.skew_us = int(self.random.uniform(-1, 1) * self.mood.skew_us)
            simulation.after(place.index * SECOND_US // 2, place.start)
        clients = [self.cluster.client(f"client-{number}") for number in range(self.mood.clients)]
        for client in clients:
            client.start(self._client(client))
        self._later(5.0, self._fault)
        simulation.after(LOOK_S * SECOND_US, self._look)
        simulation.run_until(FAULTS_END_S * SECOND_US)
        self._faults_end()
        simulation.run_until(PROBES_BEGIN_S * SECOND_US)
        clients[0].start(self._probes(clients[0]))
        simulation.run_until(LENGTH_S * SECOND_US)

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self.cluster.simulation.after(int(seconds * SECOND_US), act)

    # ---- clients

    async def _client(self, client: SimulatedClient) -> None:
        random = self.random
        while client.loop.time() - client.began < PROBES_BEGIN_S:
            await asyncio.sleep(random.expovariate(1 / self.mood.pause_s))
            await self._one_call(client, *self._chosen())

    def _chosen(self) -> tuple[type[Any], str, str, tuple[Any, ...]]:
        random = self.random
        dice = random.random()
        if dice < 0.6:
            key = random.choice(LEDGERS)
            method = random.choices(("add", "move", "tell", "read"), (5, 1, 1, 2))[0]
            # towards higher keys only, so that no two chains cross
            others = [other for other in LEDGERS if other > key]
            if method == "move":
                return (Ledger, key, "move", (random.choice(others),)) if others else (Ledger, key, "add", ())
            return Ledger, key, method, ()
        key, name = random.choice(CHIMES), random.choice(REMINDERS)
        kind = random.choices(("every", "once", "cron", "cancel"), (3, 5, 1, 2))[0]
        if kind == "cancel":
            return Chimes, key, kind, (name,)
        seconds = random.choice((1.0, 5.0, 10.0, 30.0, 45.0, 120.0))
        priority = random.choice(tuple(ReminderPriority))
        action = random.choice(tuple(MissedReminderAction))
        if kind == "every":
            seconds = max(seconds, 5.0)
        return Chimes, key, kind, (name, seconds, int(priority), int(action))

    async def _one_call(
        self, client: SimulatedClient, cls: type[Any], key: str, method: str, args: tuple[Any, ...]
    ) -> Call:
        """One operation, sent again as long as the answer says that this is safe."""
        self._operations += 1
        operation = f"op{self._operations}"
        began_at = self.history.now()
        result: object = None
        code, turn_ran = "", None
        for _ in range(SENDS_MAX):
            place = self.random.choice(self.cluster.silos)
            try:
                result = await client.call(
                    place.address, cls, key, method, operation, *args, timeout_s=CALL_TIMEOUT_S
                )
            except FarroError as error:
                code, turn_ran = error.code, error.turn_ran
                # (what a move has called may have committed although the move has not)
                if error.turn_ran is not False or not error.retry_safe or method == "move":
                    break
                await asyncio.sleep(0.2 + self.random.random())
            else:
                code, turn_ran = "", True
                break
        grain = (cls.__farro_class__.type_name, key)
        call = Call(operation, grain, method, began_at, self.history.now(), code, turn_ran, result)
        self.history.calls.append(call)
        return call

    async def _probes(self, client: SimulatedClient) -> None:
        """After the faults everything is served again."""
        for key in LEDGERS:
            self.history.probes.append(await self._one_call(client, Ledger, key, "add", ()))

    # ---- faults

    def _fault(self) -> None:
        if self._faulty:
            kind = self.random.choice(self.mood.kinds)
            getattr(self, "_" + kind.replace(" ", "_"))(self.random.choice(self.cluster.silos))
            self._later(1.0 + self.random.expovariate(1 / self.mood.every_s), self._fault)

    def _crash(self, place: SimulatedSilo) -> None:
        place.crash()
        self._later(self.random.choice((0.1, 3.0, 20.0, 60.0)), partial(self._start, place))

    def _start(self, place: SimulatedSilo) -> None:
        if place.state == "down":
            place.start()

    def _freeze(self, place: SimulatedSilo) -> None:
        place.freeze()
        self._later(
            self.random.choice((0.5, 2.5, 20.0, 50.0, *(self.mood.lease_s * part for part in LEASES))),
            place.thaw,
        )

    def _stop(self, place: SimulatedSilo) -> None:
        place.stop()
        self._later(15.0 + self.random.random() * 20, partial(self._start, place))

    def _outage(self, _: SimulatedSilo) -> None:
        store = self.cluster.store
        if not store.down:
            self.cluster.tell("the database is away")
            store.stop()
            self._later(self.random.choice((0.2, 3.0, 6.0, 20.0, 50.0)), self._outage_ends)

    def _outage_ends(self) -> None:
        self.cluster.tell("the database is back")
        self.cluster.store.restart()

    def _cut_store(self, place: SimulatedSilo) -> None:
        if place.loop is not None and place.state in ("up", "frozen"):
            self.cluster.tell(f"{place.name} is cut off from the database")
            provider = place.provider
            provider.reachable = False
            self._later(self.random.choice((0.5, 3.0, 5.0, 15.0, 40.0)), partial(self._reach, provider))

    def _reach(self, provider: Any) -> None:
        provider.reachable = True

    def _cut_network(self, place: SimulatedSilo) -> None:
        others = [other for other in self.cluster.silos if other is not place]
        other = self.random.choice(others).address if others else "client-0"
        self.cluster.tell(f"cut between {place.name} and {other}")
        self.cluster.network.cut(place.address, other)
        if self.random.random() < 0.6:
            self.cluster.network.cut(other, place.address)
        self._later(self.random.choice((1.0, 5.0, 15.0)), self.cluster.network.heal)

    def _clock(self, place: SimulatedSilo) -> None:
        by_s = self.random.choice((-90.0, -20.0, -0.5, 0.5, 10.0, 45.0, 120.0))
        place.set_clock(int(by_s * SECOND_US))

    def _trouble(self, place: SimulatedSilo) -> None:
        if place.loop is None:
            return
        fault, chance = self.random.choice(tuple(Fault)), self.random.choice((0.05, 0.3))
        self.cluster.tell(f"{place.name}: one request in {1 / chance:.0f} to the store is {fault.value}")
        trouble = place.provider.trouble
        trouble.chances = {fault: chance}
        self._later(self.random.choice((5.0, 20.0, 60.0)), trouble.chances.clear)

    def _slow(self, place: SimulatedSilo) -> None:
        if place.loop is None:
            return
        trouble = place.provider.trouble
        trouble.slow, trouble.slow_us = self.random.choice(
            ((0.1, 3_000_000), (0.5, 800_000), (0.02, 8_000_000))
        )
        self.cluster.tell(f"{place.name}: the store is slow, up to {trouble.slow_us / 1e6:g} s")
        self._later(self.random.choice((10.0, 40.0)), partial(setattr, trouble, "slow", 0.0))

    def _faults_end(self) -> None:
        self.cluster.tell("the faults end")
        self._faulty = False
        self.cluster.store.restart()
        self.cluster.network.heal()
        for place in self.cluster.silos:
            place.thaw()
            if place.loop is not None:
                place.provider.reachable = True
                place.provider.trouble.chances.clear()
                place.provider.trouble.slow = 0.0
            self._later(0.0 if place.state == "down" else 30.0, partial(self._start, place))

    # ---- looks

    def _look(self) -> None:
        for place in self.cluster.silos:
            if place.state == "up" and place.silo is not None:
                self.history.look(place)
        self.cluster.simulation.after(LOOK_S * SECOND_US, self._look)
