"""The demo proves what it says, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.processes import FARRO

WITHIN_S = 55.0


def _hear_ctrl_c() -> None:
    """A shell that starts the tests in the background has them, and their children, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def demo(tmp_path: Path) -> Generator[subprocess.Popen[str]]:
    """A running demo whose temporary folder lies in ``tmp_path``."""
    process = subprocess.Popen(
        [*FARRO, "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_hear_ctrl_c,
    )
    yield process
    process.kill()
    process.communicate()


def silo_of(demo: subprocess.Popen[str]) -> psutil.Process:
    """The silo process, once the demo has said which it is."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(r"process (\d+) serves", line):
            return psutil.Process(int(found[1]))
    raise AssertionError("the demo ended before it had a silo")


@pytest.mark.serial
@pytest.mark.timeout(90)
def test_the_demo_kills_a_silo_in_the_middle_of_ticks_and_proves_that_nothing_is_lost(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    said, _ = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 0, said
    assert "PROVEN: 0 lost, 0 twice" in said
    assert said.count("can never fire") == 2
    assert "carol: active -> cancelled" in said and "alice: trialing -> expired" in said
    due, counted = (int(re.search(rf"(\d+) +{text}", said)[1]) for text in ("ticks had to be", "ticks are"))  # type: ignore[index]
    assert due == counted > 500
    cut = re.search(r"(\d+) had begun and not committed", said)
    again = re.search(r"(\d+) +ticks began twice: the kill had cut (\d+)", said)
    assert cut is not None and again is not None
    assert int(again[1]) == int(again[2]) == int(cut[1]) > 0
    assert "$ farro silo hello" in said
    assert "\x1b" not in said, "no colours where there is no terminal"
    assert list(tmp_path.glob("farro-demo-*")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_demo_that_is_interrupted_takes_its_silo_and_its_folder_with_it(
    demo: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    silo = silo_of(demo)
    demo.send_signal(number)
    said, _ = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == code
    assert "Traceback" not in said
    assert not silo.is_running()
    assert list(tmp_path.glob("farro-demo-*")) == []


def test_the_silo_of_a_demo_that_was_killed_ends_by_itself(demo: subprocess.Popen[str]) -> None:
    silo = silo_of(demo)
    demo.kill()
    assert psutil.wait_procs([silo], timeout=WITHIN_S)[1] == []
