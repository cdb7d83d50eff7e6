"""Real silos in simulated processes: one virtual time, one store, one network, and whatever may go wrong.

A silo here is the whole runtime.  Only what lies outside its process is simulated: time, the way to the
store, the network.  Its process can be killed (no good-bye), frozen and thawed in the middle of anything, cut
off, or have its clock set.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any

from farro.client.clock import Clock
from farro.client.codec import Codec
from farro.client.errors import CallTimeout, FarroError, SiloUnavailable, from_wire, to_wire
from farro.silo.gateway.session import CallTarget
from farro.silo.grains.grain import Grain
from farro.silo.host import Silo
from farro.silo.membership import Network
from farro.silo.options import SiloOptions
from farro.silo.reminders.machine_load import MachineLoad
from farro.silo.store_clock import StoreClock
from farro.silo.testing.simulated_network import CLOSED, End, Host, SimulatedNetwork
from farro.silo.testing.simulated_provider import SimulatedProvider
from farro.silo.testing.simulated_sockets import SimulatedGateway, WayOut
from farro.silo.testing.simulated_store import SimulatedStore
from farro.silo.testing.simulated_time import SimulatedClock, SimulatedLoop, Simulation

MACHINE = MachineLoad(cpus=2.0, memory_load=0.5)
LOST_TO_DRIFT_US = 20_000  # of a clock that follows the store's, while it cannot ask for a minute and a half
DOOR = "/calls"
"""Where simulated clients come in.  Their calls skip the gateway's frames, which the links between silos
have."""

CALM = SiloOptions(switch_interval=None, garbage_put_off=None, allow_insecure_bind=True)
"""Options that leave alone what belongs to the whole Python process."""


class _FollowingClock(StoreClock):
    """Notes how far it is behind: an answer may take seconds."""

    def __init__(self, cluster: SimulatedCluster, machine: Clock) -> None:
        super().__init__(machine)
        self._cluster = cluster

    def heard(self, store_us: int, asked_at: int) -> None:
        super().heard(store_us, asked_at)
        self._cluster.note_skew(self._cluster.simulation.wall_us - self.now() + LOST_TO_DRIFT_US)


class SimulatedSilo:
    """One machine that runs a silo, or did: after a crash :meth:`start` begins another life."""

    def __init__(self, cluster: SimulatedCluster, index: int) -> None:
        self.cluster = cluster
        self.index = index
        self.address = f"10.0.0.{index + 1}:11111"
        self.life = 0
        self.skew_us = 0
        self.silo: Silo | None = None
        self.loop: SimulatedLoop | None = None
        self.state = "down"  # starting, up, frozen, stopping

    @property
    def name(self) -> str:
        return f"silo-{self.index}.{self.life}"

    @property
    def number(self) -> int:
        """The number under which the silo lives in the store; 0 while it has none."""
        silo = self.silo
        return 0 if silo is None or self.state in ("down", "starting") else silo.number

    # ---- life

    def start(self) -> None:
        """A new process begins and starts its silo; one that fails is down again."""
        if self.state != "down":
            raise RuntimeError(f"{self.name} is {self.state}")
        self.life += 1
        self.state = "starting"
        cluster, loop = self.cluster, self.cluster.simulation.loop(self.name)
        self.loop = loop
        self.machine_clock = SimulatedClock(cluster.simulation, self.skew_us, cluster.simulation.now_us)
        self.clock: Clock = self.machine_clock
        if cluster.store.has_clock:
            self.clock = _FollowingClock(cluster, self.machine_clock)
        else:
            cluster.note_skew(self.skew_us)
        self.provider = SimulatedProvider(cluster.store, loop)
        self.host = Host(self.address, loop)
        self.door = Host(self.address + DOOR, loop, self._accept)
        self.failure: str | None = None
        loop.call_soon(lambda: self._keep(loop.create_task(self._run(loop), name="silo")))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def _run(self, loop: SimulatedLoop) -> None:
        cluster = self.cluster
        self.silo = silo = cluster.make(self)
        try:
            await silo.start()
        except Exception as error:  # as a process that exits with a message
            cluster.tell(f"{self.name} did not start: {type(error).__name__}: {error}")
            cluster.simulation.after(0, self.crash)
            return
        silo.on_failure(partial(self._failed, loop))
        self.state = "up"
        cluster.network.listen(self.door)
        cluster.tell(f"{self.name} is up as silo {self.number}")

    def _failed(self, loop: SimulatedLoop, reason: str) -> None:
        """Whoever hosts a silo that can commit nothing any more ends it, as ``farro silo`` does."""
        if loop is self.loop and self.failure is None:
            self.failure = reason
            self.cluster.tell(f"{self.name} gives up: {reason}")
            self.cluster.simulation.after(1_000_000, partial(self._end_failed, loop))

    def _end_failed(self, loop: SimulatedLoop) -> None:
        if loop is self.loop and self.state in ("up", "frozen"):
            self.crash()

    def crash(self) -> None:
        """The process ends at once, wherever it is.  What it has sent is on its way all the same."""
        if self.loop is None or self.loop.dead:
            return
        self.cluster.tell(f"{self.name} is no more")
        self._note_end()
        self.loop.kill()
        self.cluster.network.died(self.host)
        self.cluster.network.died(self.door)
        for number in self.provider.joined:
            self.cluster.ended.setdefault(number, self.cluster.simulation.wall_us)
        self.provider.forget_locks()
        self.state = "down"

    def _note_end(self) -> None:
        if self.silo is not None and _has_joined(self.silo):
            self.cluster.ended.setdefault(self.silo.number, self.cluster.simulation.wall_us)

    def freeze(self) -> None:
        """Not one more line of it runs until :meth:`thaw`."""
        if self.state == "up" and self.loop is not None:
            self._frozen_at = self.cluster.simulation.wall_us
            self.cluster.tell(f"{self.name} freezes")
            self.state = "frozen"
            self.loop.freeze()

    def thaw(self) -> None:
        if self.state == "frozen" and self.loop is not None:
            self.cluster.tell(f"{self.name} thaws")
            self.cluster.frozen.append((self.number, self._frozen_at, self.cluster.simulation.wall_us))
            self.state = "up"
            self.loop.thaw()

    def stop(self) -> None:
        """Ask the silo to drain and leave."""
        if self.state == "up" and self.loop is not None and self.silo is not None:
            self.cluster.tell(f"{self.name} is asked to stop")
            self._note_end()
            self.state = "stopping"
            loop, silo = self.loop, self.silo
            loop.call_soon(lambda: self._keep(loop.create_task(self._drain(loop, silo), name="stop")))

    async def _drain(self, loop: SimulatedLoop, silo: Silo) -> None:
        self.cluster.network.close(self.door)
        await silo.stop()
        self.cluster.simulation.after(0, self.crash)

    def set_clock(self, by_us: int) -> None:
        """Somebody sets the machine's clock, forward or back."""
        self.skew_us += by_us
        if not self.cluster.store.has_clock:
            self.cluster.clocks_were_set = True
            self.cluster.note_skew(self.skew_us)
        if self.loop is not None and not self.loop.dead:
            self.machine_clock.jump(by_us)
        self.cluster.tell(f"the clock of {self.name} is set by {by_us / 1e6:+g} s")

    # ---- calls from outside

    def _accept(self, end: End[Any]) -> None:
        end.receive(partial(self._take, end))

    def _take(self, end: End[Any], message: Any) -> None:
        if message is CLOSED:
            return
        assert self.loop is not None
        task = self.loop.create_task(self._answer(end, *message), name="call")
        self.cluster.running[task] = None
        task.add_done_callback(lambda done: self.cluster.running.pop(done, None))

    async def _answer(
        self, end: End[Any], call_id: int, cls: type[Any], key: str, method: str, args: Sequence[Any]
    ) -> None:
        assert self.silo is not None
        try:
            result = await getattr(self.silo.grain(cls, key), method)(*args)
        except FarroError as error:
            end.send((call_id, None, to_wire(error)))
        else:
            end.send((call_id, result, None))


def _has_joined(silo: Silo) -> bool:
    return silo._membership is not None and silo._membership._cluster is not None


class SimulatedClient:
    """A process that calls grains, with one wire to each silo it has called."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.loop = cluster.simulation.loop(name)
        self.host = Host(name, self.loop)
        self.began = self.loop.time()
        self._ends: dict[str, End[Any]] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._pending: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._last_id = 0

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin a task of this process."""
        self._tasks.append(self.loop.create_task(work, name=self.name))

    async def call(
        self,
        address: str,
        cls: type[Grain[Any]],
        key: str,
        method: str,
        *args: Any,
        timeout_s: float = 10.0,
    ) -> Any:
        """Call a grain by way of the silo at ``address``.  Raises a :class:`FarroError`, as a client does."""
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                end = self._ends.get(address)
                if end is None or end.closed:
                    end = await self._connect(address)
                self._last_id += 1
                call_id = self._last_id
                future: asyncio.Future[Any] = self.loop.create_future()
                self._pending[call_id] = (address, future)
                sent = True
                end.send((call_id, cls, key, method, args))
                return await future
        except TimeoutError as error:
            if isinstance(error, FarroError):
                raise
            self._ends.pop(address, None)  # a wire that does not answer is given up
            raise CallTimeout("no answer in time", turn_ran=None if sent else False) from None

    async def _connect(self, address: str) -> End[Any]:
        opened: asyncio.Future[End[Any] | None] = self.loop.create_future()

        def done(end: End[Any] | None) -> None:
            if not opened.done():
                opened.set_result(end)

        self.cluster.network.connect(self.host, address + DOOR, done)
        end = await opened
        if end is None:
            raise SiloUnavailable(f"nobody listens at {address}", turn_ran=False)
        self._ends[address] = end
        end.receive(partial(self._take, address, end))
        return end

    def _take(self, address: str, end: End[Any], message: Any) -> None:
        if message is CLOSED:
            if self._ends.get(address) is end:
                del self._ends[address]
            for call_id in [each for each, (where, _) in self._pending.items() if where == address]:
                _, future = self._pending.pop(call_id)
                if not future.done():
                    future.set_exception(SiloUnavailable(f"{address} closed the connection"))
            return
        call_id, result, error = message
        found = self._pending.pop(call_id, None)
        if found is None or found[1].done():
            return
        future = found[1]
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(from_wire(*error))


class SimulatedCluster:
    """Silos, clients, their network and their store, all of one seed.

    ``make`` may be replaced to build silos in another way.  ``close`` it in the end, or use it in a ``with``.
    """

    def __init__(
        self,
        grains: Iterable[type[Grain[Any]]],
        *,
        seed: int | str = 0,
        silos: int = 3,
        options: SiloOptions = CALM,
        listener: Callable[[str], None] | None = None,
    ) -> None:
        self.simulation = Simulation(seed)
        self.store = SimulatedStore(self.simulation)
        self.network = SimulatedNetwork(self.simulation)
        self.grains = list(grains)
        self.options = options
        self.story: list[tuple[int, str]] = []
        self.running: dict[asyncio.Task[Any], None] = {}
        self.clocks_were_set = False  # one that silos go by
        self.ended: dict[
            int, int
        ] = {}  # silo number: when its process ended or was asked to (true wall time)
        self.frozen: list[tuple[int, int, int]] = []  # silo number, from when, until when
        self.skew_max_us = 0  # by how much a clock has been wrong at most
        self.silos = [SimulatedSilo(self, index) for index in range(silos)]
        self._listener = listener

    def __enter__(self) -> SimulatedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.simulation.close()
        self.running.clear()

    def note_skew(self, by_us: int) -> None:
        """A clock that a silo goes by is that far from the true time."""
        self.skew_max_us = max(self.skew_max_us, abs(by_us))

    def place_of(self, loop: SimulatedLoop) -> SimulatedSilo:
        """The machine whose process runs on that loop."""
        return next(place for place in self.silos if place.loop is loop)

    def client(self, name: str) -> SimulatedClient:
        return SimulatedClient(self, name)

    def tell(self, fact: str) -> None:
        """One line of the story, with its instant."""
        self.story.append((self.simulation.now_us, fact))
        if self._listener is not None:
            self._listener(f"{self.simulation.now_us / 1e6:11.6f}  {fact}")

    def make(self, place: SimulatedSilo) -> Silo:
        """A silo for a process that has just begun; called on its loop."""
        way_out = WayOut(self.network, place.host)

        def gateway(listen: str, target: CallTarget, codec: Codec, **options: Any) -> Any:
            way_out.codec = codec
            return SimulatedGateway(self.network, place.host, target, codec, **options)

        return Silo(
            self.grains,
            place.provider,
            place.address,
            options=self.options,
            network=Network(gateway=gateway, dial=way_out.dial, refuses=way_out.refuses),
            clock=place.clock,
            random=Random(self.simulation.random.getrandbits(64)),
            machine_load=lambda: MACHINE,
        )
