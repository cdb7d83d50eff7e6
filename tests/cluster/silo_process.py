"""One ``farro silo`` process that a test starts, freezes, kills and starts anew; never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.acceptance.processes import FARRO, PYTHONPATH, NotReady

PR_SET_PDEATHSIG = 1
READY_MAX_S = 40.0
END_MAX_S = 20.0

_READY = re.compile(r"farro silo (\d+) ready at http://([^:\s]+):(\d+)")


def _die_with_parent() -> Callable[[], None] | None:
    """A frozen process does not see its stdin end, so the kernel is asked (Linux only)."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class SiloProcess:
    """Made by :meth:`start`; :meth:`end` must be called."""

    def __init__(self, process: asyncio.subprocess.Process, errors_path: Path) -> None:
        self._process = process
        self.errors_path = errors_path
        self.lines: list[str] = []
        self.number = 0
        self.listens: tuple[str, int] | None = None
        self.asked_to_end = False  # by us: whatever else ends it is worth a word
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name=f"output of silo process {process.pid}")

    @classmethod
    async def start(cls, arguments: Sequence[str], folder: Path, name: str) -> SiloProcess:
        """``farro silo`` with these arguments; what it says on stderr lands in ``folder``."""
        errors_path = folder / f"{name}.log"
        with errors_path.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(*FARRO, "silo", *arguments, "--end-with-stdin"),
                cwd=folder,
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                preexec_fn=_die_with_parent(),
            )
        return cls(process, errors_path)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    @property
    def errors(self) -> str:
        return self.errors_path.read_text(errors="replace")

    async def wait_ready(self, limit_s: float = READY_MAX_S) -> tuple[str, int]:
        """Where it listens.  Raises :class:`NotReady` with everything it said when it ends instead."""
        try:
            async with asyncio.timeout(limit_s):
                await self._ready.wait()
        except TimeoutError:
            raise NotReady(f"not ready after {limit_s:g} s\n" + "\n".join(self.lines) + self.errors) from None
        if self.listens is None:
            raise NotReady("\n".join(self.lines) + self.errors)
        return self.listens

    def signal(self, number: signal.Signals) -> None:
        """Nothing where it has ended already."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)  # send_signal() would poll, and so take the exit code from asyncio

    async def wait(self) -> int:
        """Its exit code, once it and its output have ended."""
        await asyncio.wait({self._reading})  # who waits may be cancelled, the reading not
        return await self._process.wait()

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.asked_to_end = True
        self.signal(signal.SIGKILL)
        await self.wait()

    async def stop(self, limit_s: float = END_MAX_S) -> int:
        """SIGTERM, and SIGKILL after ``limit_s``; the exit code."""
        self.asked_to_end = True
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(limit_s):
                return await self.wait()
        except TimeoutError:
            await self.kill()
            return await self.wait()

    async def end(self) -> None:
        """Whatever state it is in.  Repeatable."""
        await self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            self.lines.append(text)
            if found := _READY.search(text):
                self.number, self.listens = int(found[1]), (found[2], int(found[3]))
                self._ready.set()
        self._ready.set()  # it will never be
