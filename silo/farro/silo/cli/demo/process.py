"""A silo in a process of its own, as a person would start it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from farro.silo.cli.failing import Failed

READY_WITHIN_S = 20.0
END_WITHIN_S = 15.0
ERROR_LINES = 5

_READY = re.compile(r"ready at (?P<url>http://\S+), ")
_CLOCK = re.compile(r"demo clock (?P<instant>\S+)")


class SiloProcess:
    """``farro silo`` with a demo clock, run by this very Python.  It ends when this process ends."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, clock_at: datetime) -> None:
        self._process = process
        self.url = url
        self.clock_at = clock_at  # its schedule time when it said so

    @classmethod
    async def start(
        cls, module: str, store: str, clock: str, *, errors: Path, environment: Mapping[str, str]
    ) -> SiloProcess:
        """Start it and wait until it is ready.  Raises :class:`Failed` with its own words."""
        argv = (sys.executable, "-m", "farro.silo.cli.main", "silo", module, "--store", store)
        with errors.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *argv,
                *("--listen", "127.0.0.1:0", "--demo-clock", clock, "--end-with-stdin"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the demo, which ends its silo itself
            )
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                url = await _said(process, _READY, errors)
                instant = await _said(process, _CLOCK, errors)
        except BaseException as error:
            await _end(process, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise Failed(f"the silo was not ready within {READY_WITHIN_S:g} s: {_last(errors)}") from None
            raise
        return cls(process, url, datetime.fromisoformat(instant))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def kill(self) -> None:
        """SIGKILL: no good-bye, no drain, nothing."""
        await _end(self._process, signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM; the exit code.  Raises :class:`Failed` when it does not end."""
        try:
            async with asyncio.timeout(END_WITHIN_S):
                return await _end(self._process, signal.SIGTERM)
        except TimeoutError:
            await self.kill()
            raise Failed(f"the silo did not end within {END_WITHIN_S:g} s of SIGTERM") from None

    async def close(self) -> None:
        """Make sure that it is gone.  Repeatable."""
        await _end(self._process, signal.SIGKILL)


async def _said(process: asyncio.subprocess.Process, wanted: re.Pattern[str], errors: Path) -> str:
    """What the process says next on stdout that matches."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if found := wanted.search(line.decode()):
            return found[1]
    raise Failed(f"the silo ended before it was ready: {_last(errors)}")


async def _end(process: asyncio.subprocess.Process, number: signal.Signals) -> int:
    if process.returncode is None:
        process.send_signal(number)
    # communicate: reads what it still says and closes the pipes
    await process.communicate()
    assert process.returncode is not None
    return process.returncode


def _last(errors: Path) -> str:
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " / ".join(lines[-ERROR_LINES:]) or "it said nothing"
