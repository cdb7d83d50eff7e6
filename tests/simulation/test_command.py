"""``python -m tests.simulation`` as a command among others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [(), ("--digest",)])
def test_a_reader_that_goes_away_ends_a_story_in_silence(options: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # gone before a word is written: nothing is left to how much a pipe takes
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "1", *options],
            cwd=HOME,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
