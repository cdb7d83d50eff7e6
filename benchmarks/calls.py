"""P2: calls from a client to a silo in another process, against the coalesced WebSocket echo.

Throughput with 64 calls in flight, and the round trip with one.

    python -m benchmarks.calls [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

from benchmarks import measuring
from benchmarks.echo_probe import echo_rate
from benchmarks.grains import Echo
from benchmarks.measuring import Goal, Plan, Result, hammer, in_turns
from benchmarks.serving import serving
from farro.client import Client

IN_FLIGHT = 64
GRAINS = 1_000
SECOND_MS = 1_000.0


async def run(plan: Plan) -> Result:
    """Calls of a grain without state, typed reference, all features on."""
    async with serving("memory://") as silo, Client(silo.address) as client:
        grains = [client.grain(Echo, f"e-{number}") for number in range(GRAINS)]

        async def call(caller: int, made: int) -> None:
            answer = await grains[(caller + made * IN_FLIGHT) % GRAINS].echo(made)
            assert answer == made

        async def calls() -> float:
            return await hammer(call, IN_FLIGHT, plan.seconds)

        async def echoes() -> float:
            return await echo_rate(plan.seconds, IN_FLIGHT)

        async def call_ms() -> float:
            return SECOND_MS / await hammer(call, 1, plan.seconds)

        async def echo_ms() -> float:
            return SECOND_MS / await echo_rate(plan.seconds, 1)

        await hammer(call, IN_FLIGHT, plan.seconds)  # everybody is awake
        many = await in_turns(plan, calls, echoes, part=(0, 0.5))
        one = await in_turns(plan, call_ms, echo_ms, part=(0.5, 1))
    return Result(
        "calls",
        "client → silo calls, two processes",
        (
            many.measure("64 in flight", "calls/s", "WebSocket echo", Goal(0.35, later=0.5)),
            one.measure("one in flight", "ms", "WebSocket echo"),
        ),
    )


if __name__ == "__main__":
    measuring.main(run, __doc__)
