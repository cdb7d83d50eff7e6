"""A silo in a process of its own, for benchmarks that call it over the wire or measure it from outside.

``python -m benchmarks.serving STORE`` serves until stdin closes, so it never outlives who started it.  Its
first line on stdout is JSON: address, seconds its start took, resident bytes just after.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psutil

from benchmarks.grains import GRAINS
from farro.silo import Silo

ROOT = Path(__file__).parents[1]
END_MAX_S = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """``start_s``: from the silo's start to its open gateway, imports not included."""

    address: str
    start_s: float
    resident_bytes: int
    pid: int


@asynccontextmanager
async def serving(store: str) -> AsyncIterator[Served]:
    """A silo of all benchmark grains on ``store``, a URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.serving", store),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the silo of the benchmark did not start; it ended with {await process.wait()}"
            )
        yield Served(**json.loads(line), pid=process.pid)
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_MAX_S)
        except TimeoutError:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"the silo of the benchmark ended with {process.returncode}")


async def serve(store: str) -> None:
    begun = perf_counter()
    async with Silo(grains=GRAINS, store=store, listen="127.0.0.1:0") as silo:
        facts = {
            "address": f"http://{silo.address}",
            "start_s": perf_counter() - begun,
            "resident_bytes": psutil.Process().memory_info().rss,
        }
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
