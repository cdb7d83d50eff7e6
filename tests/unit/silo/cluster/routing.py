"""Silos reduced to what routing needs, connected by pipes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.connection import Connection
from farro.client.errors import CallCancelled, FarroError, GrainCallFailed
from farro.client.identity import partition_of
from farro.silo.activations.invocation import Invocation
from farro.silo.cluster.links import Links
from farro.silo.cluster.router import Router
from farro.silo.ownership import Owned, Ownership
from farro.silo.testing.pipes import Pipe, PipeGateway, PipeNetwork

PARTITIONS = 8
SERVICE = "test"
FACT_S = 60.0


def address(number: int) -> str:
    return f"http://silo-{number}:1"


def key_in(partition: int, after: int = 0) -> str:
    """A key of the type ``echo`` that lives in that partition; another one for another ``after``."""
    number = after * 1_000
    while partition_of("echo", str(number), PARTITIONS) != partition:
        number += 1
    return str(number)


def cluster(view: int, owners: list[int] | tuple[int, ...], *members: int) -> ClusterMap:
    """A map; without ``members``, its silos are the owners."""
    numbers = members or tuple(sorted(set(owners) - {0}))
    return ClusterMap(view, PARTITIONS, {number: address(number) for number in numbers}, tuple(owners))


async def until(fact: Callable[[], object]) -> None:
    """Wait, on virtual time, until it is so."""
    async with asyncio.timeout(FACT_S):
        while not fact():  # noqa: ASYNC110 - a fact has no event of its own
            await asyncio.sleep(0.001)


async def rounds_until(fact: Callable[[], object]) -> None:
    """Wait until it is so, in rounds of the loop: between two of them no virtual time need pass."""
    while not fact():  # noqa: ASYNC110
        await asyncio.sleep(0)


class SmallSilo:
    """Serves calls for what it owns, gives the others to its router.

    ``echo`` answers at once, ``fail`` fails, ``hold`` waits for :meth:`release`.
    """

    def __init__(self, network: PipeNetwork, number: int, owns: list[int] = [], held_max: int = 100) -> None:  # noqa: B006
        self.number = number
        self.network = network
        self.codec = Codec()
        self.ownership = Ownership(PARTITIONS)
        self.downs: list[tuple[int, str]] = []
        self.news: list[int] = []
        self.stale: list[int] = []
        self.seen: list[Invocation] = []
        self.held: list[Invocation] = []
        self.own(*owns)
        self.links = Links(
            number,
            SERVICE,
            self.codec,
            Random(number),
            on_down=lambda silo, reason: self.downs.append((silo, reason)),
            on_news=self.news.append,
            dial=self._dial,
        )
        self.router = Router(number, self.ownership, self, self.links, Random(number), held_max=held_max)
        self.router.on_stale = self.stale.append
        self.gateway = PipeGateway(
            network, f"silo-{number}:1", self, self.codec, facts={"service": SERVICE, "silo": number}
        )
        self.gateway.on_news(self.news.append)

    async def _dial(self, address: str, info: dict[str, Any]) -> Connection:
        return await self.network.dial(f"silo-{self.number}", address, self.codec, info)

    def own(self, *partitions: int) -> None:
        self.ownership.take_all({each: Owned(1, 0, None) for each in partitions})

    def update(self, map_: ClusterMap) -> None:
        self.links.update(map_)
        self.router.update(map_)
        self.gateway.publish(map_)

    # ---- calls

    def submit(self, call: Invocation) -> None:
        partition = self.ownership.partition_of(call.grain_type, call.grain_key)
        if not self.ownership.serves(partition):
            self.router.submit(call, partition)
            return
        self.seen.append(call)
        if call.method == "hold":
            self.held.append(call)
            call.cancel_running = lambda: self._cancelled(call)
        elif call.method == "fail":
            call.respond(None, GrainCallFailed("no luck", remote_type="ValueError"))
        else:
            call.respond(call.args[0] if call.args else None, None)

    submit_again = submit

    def _cancelled(self, call: Invocation) -> None:
        self.held.remove(call)
        call.respond(None, CallCancelled("cancelled"))

    def release(self, error: FarroError | None = None) -> None:
        held, self.held = self.held, []
        for call in held:
            call.respond(None if error else "held", error)

    # ---- what tests do

    def ask(self, key: str, method: str = "echo", *args: Any, timeout: float = 10.0, **change: Any) -> Asked:
        """Call as one of the silo's own grains would."""
        call, asked = self.a_call(key, method, *args, timeout=timeout, **change)
        self.submit(call)
        return asked

    def a_call(
        self, key: str, method: str = "echo", *args: Any, timeout: float = 10.0, **change: Any
    ) -> tuple[Invocation, Asked]:
        """A call that nobody has been given yet."""
        asked = Asked()
        loop = asyncio.get_running_loop()
        call = Invocation(
            "echo", key, method, list(args), None, loop.time() + timeout, change.get("chain", ()), asked
        )
        asked.call = call
        return call, asked

    def pipe_to(self, number: int) -> Pipe:
        """The pipe of its newest link to that silo."""
        found = [pipe for who, where, pipe in self.network.pipes if (who, where) == self.way_to(number)]
        return found[-1]

    def way_to(self, number: int) -> tuple[str, str]:
        return f"silo-{self.number}", address(number)

    async def close(self) -> None:
        self.router.close("closed")
        await self.links.close()
        await self.gateway.stop(0)


class Asked:
    """The answer of one call, counted."""

    call: Invocation

    def __init__(self) -> None:
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.times = 0

    def __call__(self, answer: Any, error: FarroError | None) -> None:
        self.times += 1
        assert self.times == 1, "a call is answered exactly once"
        if error is None:
            self._future.set_result(answer)
        else:
            self._future.set_exception(error)
            self._future.exception()

    @property
    def done(self) -> bool:
        return self._future.done()

    def __await__(self) -> Any:
        return self._future.__await__()


@asynccontextmanager
async def silos(
    *owns: list[int], network: PipeNetwork | None = None, linked: bool = True, **options: Any
) -> AsyncIterator[list[SmallSilo]]:
    """Silos 1, 2, … that own those partitions and know of each other by view 1."""
    network = network or PipeNetwork()
    made = [SmallSilo(network, number, own, **options) for number, own in enumerate(owns, 1)]
    owners = [0] * PARTITIONS
    for silo, own in zip(made, owns, strict=True):
        await silo.gateway.start()
        for partition in own:
            owners[partition] = silo.number
    try:
        for silo in made:
            silo.update(cluster(1, owners, *(each.number for each in made)))
        if linked:
            await until(lambda: all(silo.links.connected == len(made) - 1 for silo in made))
        yield made
    finally:
        for silo in made:
            silo.release()
            await silo.close()
