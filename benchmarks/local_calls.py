"""P1: calls from grain to grain in one silo, against a bare inline dispatch.

The grain has no state and takes one scalar; reference, deadline, chain, context and isolation are all on.

    python -m benchmarks.local_calls [--seconds 1] [--rounds 5] [--smoke]
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

from benchmarks import measuring
from benchmarks.grains import GRAINS, Echo
from benchmarks.measuring import Goal, Plan, Result, in_turns
from farro.silo import Silo

CALLS_A_TURN = 500
US = 1e6


class _Bare:
    """What an activation is at least: an object, a place to wait, a mark that says a turn is running."""

    __slots__ = ("busy", "mailbox", "target")

    def __init__(self, target: Any) -> None:
        self.busy = False
        self.mailbox: deque[Any] | None = None
        self.target = target


class _Target:
    async def echo(self, number: int) -> int:
        return number


async def bare_us(seconds: float) -> float:
    """Microseconds per call of: look the grain up by its id, see that it is idle, run its turn inline."""
    awake = {("bare", f"e-{number}"): _Bare(_Target()) for number in range(1_000)}

    async def dispatch(key: str, method: str, *args: Any) -> Any:
        activation = awake["bare", key]
        if activation.busy or activation.mailbox:
            raise AssertionError("nobody else calls")
        activation.busy = True
        try:
            return await getattr(activation.target, method)(*args)
        finally:
            activation.busy = False

    begun = perf_counter()
    calls = 0
    while (took := perf_counter() - begun) < seconds or not calls:
        for number in range(CALLS_A_TURN):
            await dispatch("e-7", "echo", number)
        calls += CALLS_A_TURN
    return took / calls * US


async def run(plan: Plan) -> Result:
    async with Silo(grains=GRAINS, store="memory://", listen=None) as silo:
        ringer = silo.grain(Echo, "ringer")

        async def call_us() -> float:
            begun = perf_counter()
            took, calls = 0.0, 0
            while perf_counter() - begun < plan.seconds or not calls:
                took += await ringer.ring("e-7", CALLS_A_TURN)
                calls += CALLS_A_TURN
            return took / calls * US

        await ringer.ring("e-7", 1)
        rounds = await in_turns(plan, call_us, lambda: bare_us(plan.seconds))
    goal = Goal(4, at_most=True)
    return Result(
        "local_calls",
        "grain → grain calls in one silo",
        (rounds.measure("one call after the other", "µs", "inline dispatch", goal),),
    )


if __name__ == "__main__":
    measuring.main(run, __doc__)
