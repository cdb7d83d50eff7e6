"""What clients do while everything goes wrong: calls that write themselves down, and chimes that ring."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from farro.client.client import Client
from farro.client.errors import FarroError, GrainCallFailed, InvalidPayload
from farro.client.reminders import MissedReminderAction
from tests.cluster.chaos_grains import Chime, Ledger, Relay
from tests.cluster.evidence import Started
from tests.cluster.history import History, Made, Read

LEDGERS_AT_ONCE = 40
ENTRIES_MAX = 150  # then a ledger's calls go to its successor: states stay small
RELAYED_SHARE = 0.2
READ_SHARE = 0.2
CALL_LIMIT_S = 10.0
MARGIN_S = 5.0  # of the harness itself, which shares two cores with everything
START_TRIES_S = 60.0
PERIOD_S = 1.0
ASKED_AT_ONCE = 50
AGAIN_S = 0.1
ACTIONS = (
    MissedReminderAction.FIRE_ALL,
    MissedReminderAction.SKIP,
    MissedReminderAction.FIRE_IMMEDIATELY,
    MissedReminderAction.NOTIFY,
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much.  ``think_s``: the longest pause of a caller between two calls."""

    callers: int = 12
    think_s: float = 0.1
    chimes: int = 60
    ticks_each: int = 100  # then a chime is finished and its successor begins


class Workload:
    """Begun by :meth:`run`, ended by :meth:`stop`; then the history is complete."""

    def __init__(self, addresses: Sequence[str], load: Load, seed: int) -> None:
        self._addresses = addresses
        self._load = load
        self._seed = seed
        self._stopping = asyncio.Event()
        self.history = History()
        self.chimes: list[Started] = []
        self.not_started: list[str] = []
        self._used = [0] * LEDGERS_AT_ONCE  # entries asked of each ledger, its predecessors' included

    @property
    def ledgers(self) -> list[str]:
        return sorted({each.ledger for each in self.history.made})

    def stop(self) -> None:
        """No new calls; what is out ends by its deadline."""
        self._stopping.set()

    async def run(self) -> None:
        """Until :meth:`stop`."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._load.callers):
                tasks.create_task(self._caller(number), name=f"caller {number}")
            tasks.create_task(self._ring(), name="chimes")

    # ---- calls

    async def _caller(self, number: int) -> None:
        chance = Random(f"{self._seed}/{number}")
        count = 0
        async with _patient_client(self._addresses, chance) as client:
            while not self._stopping.is_set():
                place = chance.randrange(LEDGERS_AT_ONCE)
                if chance.random() < READ_SHARE:
                    await self._read(client, self._ledger(place))
                else:
                    count += 1
                    self._used[place] += 1
                    relay = (
                        f"r{chance.randrange(LEDGERS_AT_ONCE)}" if chance.random() < RELAYED_SHARE else None
                    )
                    await self._add(
                        client, self._ledger(place), number << 32 | count, chance.randrange(100), relay
                    )
                await asyncio.sleep(chance.random() * self._load.think_s)

    def _ledger(self, place: int) -> str:
        return f"l{place}-{self._used[place] // ENTRIES_MAX}"

    async def _add(self, client: Client, ledger: str, call: int, amount: int, relay: str | None) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        place: int | None = None
        turn_ran: bool | None = None
        error = ""
        try:
            async with asyncio.timeout(CALL_LIMIT_S + MARGIN_S):
                if relay is None:
                    place = await client.grain(Ledger, ledger).add(call, amount)
                else:
                    place = await client.grain(Relay, relay).add(ledger, call, amount)
        except FarroError as failed:
            error, turn_ran = failed.code, failed.turn_ran
        except TimeoutError:
            error = "hung"
            self.history.hung.append(f"call {call} to {ledger} did not end")
        ended = loop.time()
        made = Made(
            call, ledger, amount, began, ended, CALL_LIMIT_S, place, turn_ran, error, relay is not None
        )
        self.history.made.append(made)

    async def _read(self, client: Client, ledger: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(CALL_LIMIT_S + MARGIN_S):
                length = await client.grain(Ledger, ledger).length()
        except FarroError:
            return
        except TimeoutError:
            self.history.hung.append(f"a read of {ledger} did not end")
            return
        self.history.reads.append(Read(ledger, began, loop.time(), length))

    # ---- reminders

    async def _ring(self) -> None:
        """Start generation after generation of chimes, each when the one before it must be over."""
        chance = Random(f"{self._seed}/chimes")
        generation = 0
        async with _patient_client(self._addresses, chance) as client:
            while not self._stopping.is_set():
                async with asyncio.TaskGroup() as tasks:
                    for number in range(self._load.chimes):
                        tasks.create_task(self._start(client, f"c{generation}-{number}", number))
                generation += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._load.ticks_each * PERIOD_S):
                        await self._stopping.wait()

    async def _start(self, client: Client, key: str, number: int) -> None:
        action = ACTIONS[number % len(ACTIONS)]
        started = Started(key, action, int(PERIOD_S * 1e6), self._load.ticks_each)
        try:
            async with asyncio.timeout(START_TRIES_S):
                await _until_answered(
                    lambda: client.grain(Chime, key).start(PERIOD_S, self._load.ticks_each, action)
                )
        except TimeoutError:
            self.not_started.append(key)
            return
        self.chimes.append(started)


async def _until_answered(call: Callable[[], Awaitable[object]]) -> None:
    """Try again and again what a fault may have failed; the caller bounds it."""
    while True:
        try:
            await call()
        except (GrainCallFailed, InvalidPayload):
            raise
        except FarroError:
            await asyncio.sleep(AGAIN_S)
        else:
            return


def _patient_client(addresses: Sequence[str], chance: Random) -> Client:
    return Client(*addresses, timeout=CALL_LIMIT_S, connect_timeout=1.0, heartbeat=2.0, chance=chance)


async def silent_grains(addresses: Sequence[str], workload: Workload, limit_s: float) -> list[str]:
    """Asks every grain of the run; those that did not answer within ``limit_s``, all being well again."""
    silent: list[str] = []
    places = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            async with places, asyncio.timeout_at(until):
                await _until_answered(call)
        except TimeoutError:
            silent.append(name)

    until = asyncio.get_running_loop().time() + limit_s
    async with _patient_client(addresses, Random(0)) as client:
        await asyncio.gather(
            *(ask(f"ledgers/{key}", client.grain(Ledger, key).length) for key in workload.ledgers),
            *(ask(f"chimes/{each.key}", client.grain(Chime, each.key).rung) for each in workload.chimes),
        )
    return silent
