"""Programs that tests start, listen to and end: stdout and stderr are one stream of lines."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.processes import PYTHONPATH

WITHIN_S = 40.0


class Program:
    """Started in a session of its own, in ``folder``."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        self.lines: list[str] = []

    def wait_line(self, wanted: str, within_s: float = WITHIN_S) -> re.Match[str]:
        """The next line that the pattern ``wanted`` is found in."""
        assert self.process.stdout is not None
        with self._killed_after(within_s):
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))
                if found := re.search(wanted, line):
                    return found
        raise AssertionError(f"it never said {wanted!r}, but:\n" + "\n".join(self.lines))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_end(self, within_s: float = WITHIN_S) -> int:
        """The exit code; what it still says lands in ``lines``."""
        assert self.process.stdout is not None
        with self._killed_after(within_s):
            self.lines += self.process.stdout.read().splitlines()
            return self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_end()

    def said(self, wanted: str) -> list[str]:
        """The lines so far that the pattern is found in."""
        return [line for line in self.lines if re.search(wanted, line)]

    @contextmanager
    def _killed_after(self, limit_s: float) -> Generator[None]:
        watchdog = threading.Timer(limit_s, self.process.kill)
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
            watchdog.join()

    def close(self) -> None:
        """Whatever state it is in.  Repeatable."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def has_ended(pid: int) -> bool:
    """Is the process gone, or dead and not buried by its parent yet?"""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
