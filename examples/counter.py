"""The smallest grain: it counts, and never forgets.

Serve it:   farro silo examples.counter
Ask it:     farro call counters visitors add 5
Or run this file while the silo runs:   python examples/counter.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from farro.client import Client
from farro.silo import Grain, readonly


@dataclass
class Count:
    value: int = 0


class Counter(Grain[Count], name="counters"):
    """A number with a name.  Each change is durable before the caller hears of it."""

    async def add(self, amount: int = 1) -> int:
        self.state.value += amount
        return self.state.value

    async def reset(self) -> None:
        self.destroy()

    @readonly
    async def value(self) -> int:
        return self.state.value


async def count_visitors(client: Client) -> int:
    """Ten visitors come at once; none is counted twice and none forgotten."""
    visitors = client.grain(Counter, "visitors")
    await asyncio.gather(*(visitors.add() for _ in range(10)))
    return await visitors.value()


async def main() -> None:
    async with Client("http://127.0.0.1:11111") as client:
        print(await count_visitors(client), "visitors so far")


if __name__ == "__main__":
    asyncio.run(main())
