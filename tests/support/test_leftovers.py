"""The checks of ``tests/conftest.py``: what a test leaves behind makes it fail, and says what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]

UNTIDY = """
import asyncio, gc, threading
import pytest

@pytest.fixture
async def slow_to_stop():
    task = asyncio.create_task(asyncio.Event().wait(), name="kept by a fixture")
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

async def test_leaves_a_task():
    asyncio.get_running_loop().kept = asyncio.create_task(asyncio.Event().wait(), name="left alone")

async def test_leaves_a_thread():
    gate = threading.Event()
    threading.Thread(target=gate.wait, args=(0.3,), name="left running").start()

async def test_lets_a_task_die_unseen():
    async def fails():
        raise LookupError("nobody looked")
    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    del task
    gc.collect()

async def test_waits_for_ever(virtual):
    await asyncio.Event().wait()

async def test_is_tidy(slow_to_stop):
    assert await asyncio.to_thread(int, "7") == 7

@pytest.mark.virtual
@pytest.mark.parametrize("days", [1, 30])
async def test_is_tidy_on_virtual_time(slow_to_stop, days):
    await asyncio.sleep(days * 86400)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says about the untidy tests under this repository's settings."""
    folder = tmp_path_factory.mktemp("untidy")
    (folder / "conftest.py").write_text(
        "from tests.conftest import *\nimport tests.conftest as c\nc.THREAD_END_MAX_S = 0.01\n"
    )
    (folder / "test_untidy.py").write_text(UNTIDY)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", "--tb=short"]
    argv += ["-c", str(HOME / "pyproject.toml"), "--rootdir", str(HOME), str(folder)]
    done = subprocess.run(argv, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("test", "finding"),
    [
        ("test_leaves_a_task", "tasks are left over: left alone"),
        ("test_leaves_a_thread", "threads are left over: left running"),
        ("test_lets_a_task_die_unseen", "Task exception was never retrieved"),
        ("test_waits_for_ever", "deadlock: nothing is ready"),
    ],
)
def test_what_a_test_leaves_behind_makes_it_fail(report: str, test: str, finding: str) -> None:
    failed = [line for line in report.splitlines() if line.startswith(("ERROR ", "FAILED ")) and test in line]
    assert failed, report
    assert finding in report


@pytest.mark.parametrize("test", ["test_is_tidy", "test_is_tidy_on_virtual_time[30]"])
def test_a_tidy_test_passes(report: str, test: str) -> None:
    lines = [line.split(" - ")[0] for line in report.splitlines()]
    assert any(line.startswith("PASSED ") and line.endswith(f"::{test}") for line in lines), report
    assert not any(line.startswith(("ERROR ", "FAILED ")) and line.endswith(f"::{test}") for line in lines), (
        report
    )
