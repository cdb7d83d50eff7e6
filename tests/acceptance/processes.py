"""Real silo processes for tests: started as a person starts them, waited for by what they say."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from farro.silo.cli.main import farro as farro_group

FARRO = (sys.executable, "-m", "farro.silo.cli.main")
HOME = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))  # finds tests.*
READY_WITHIN_S = 30.0
END_WITHIN_S = 20.0
GRAINS = "tests.acceptance.served_grains"

_READY = re.compile(r"farro silo (\d+) ready at (http://\S+), store")


class NotReady(Exception):
    """The process ended instead; ``str`` is everything it said."""


class SiloProcess:
    """One ``farro silo``.  It ends with the test process, also when that is killed."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        file_bytes_max: int | None = None,
    ) -> None:
        def limited() -> None:
            assert file_bytes_max is not None
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # beyond the limit writing fails, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))

        self.folder = folder
        self.errors_path = folder / "silo-errors.txt"
        with self.errors_path.open("ab") as errors:
            self.process = subprocess.Popen(
                [*FARRO, "silo", *arguments, "--listen", "127.0.0.1:0", "--end-with-stdin"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=None if file_bytes_max is None else limited,
            )
        self.lines: list[str] = []
        self.url = ""
        self.number = 0

    def wait_ready(self) -> SiloProcess:
        """Read stdout until the ready line.  Raises :class:`NotReady`."""
        with self._killed_after(READY_WITHIN_S):
            found = self.wait_line(_READY)
        self.number, self.url = int(found[1]), found[2]
        return self

    @contextmanager
    def _killed_after(self, limit_s: float) -> Generator[None]:
        """A bound for waiting on its pipe: beyond it the process is killed, and the pipe ends."""
        watchdog = threading.Timer(limit_s, self.process.kill)
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
            watchdog.join()

    def wait_line(self, wanted: re.Pattern[str]) -> re.Match[str]:
        """The first coming line of stdout that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := wanted.search(line):
                return found
        raise NotReady("\n".join(self.lines) + self.errors)

    @property
    def errors(self) -> str:
        """What it said on stderr so far."""
        return self.errors_path.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_end(self, within_s: float = END_WITHIN_S) -> int:
        """The exit code; what it still says lands in ``lines``."""
        assert self.process.stdout is not None
        with self._killed_after(within_s):
            self.lines += self.process.stdout.read().splitlines()
            return self.process.wait()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.wait_end()

    def close(self) -> None:
        """Whatever state it is in.  Repeatable."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


Serve = Callable[..., SiloProcess]


@contextmanager
def silos(folder: Path) -> Generator[Serve]:
    """A function that starts silos in ``folder`` and waits until they are ready; all are gone afterwards."""
    started: list[SiloProcess] = []

    def serve(
        *arguments: str,
        ready: bool = True,
        environment: Mapping[str, str] | None = None,
        file_bytes_max: int | None = None,
    ) -> SiloProcess:
        silo = SiloProcess(
            *(arguments or (GRAINS, "--store", "sqlite:///farro.db")),
            folder=folder,
            environment=environment,
            file_bytes_max=file_bytes_max,
        )
        started.append(silo)
        return silo.wait_ready() if ready else silo

    try:
        yield serve
    finally:
        for silo in started:
            silo.close()


def farro(
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one ``farro`` command to its end; ``before`` runs in the child ahead of it."""
    return subprocess.run(
        [*FARRO, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **(environment or {})},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def obey_permissions() -> None:
    """For a child of root: give up the right to read what its mode forbids."""
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
                raise OSError(ctypes.get_errno(), "prctl")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def farro_here(*arguments: str, environment: Mapping[str, str] | None = None) -> Outcome:
    """Run one ``farro`` command in this process: the same command, without Python's start."""
    result = CliRunner().invoke(farro_group, arguments, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)
