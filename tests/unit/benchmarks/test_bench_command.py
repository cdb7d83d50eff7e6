"""``farro bench``: chooses, shows and writes what the benchmarks of the current checkout find."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from farro.silo.cli.bench import bench

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

SUITE = """
from benchmarks.real_suite import *
NAMES = ("good", "bad")
"""
GOOD = """
from benchmarks.measuring import Goal, Measure, Result

async def run(plan):
    plan.report(0.5)
    measure = Measure("turns", 5.0, "turns/s", 10.0, "raw", 0.5, None, Goal(0.4))
    return Result("good", "good turns", (measure,))
"""
BAD = """
async def run(plan):
    raise AssertionError("3 turns were answered and 2 are in the store")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two benchmarks: one works, one counts wrong."""
    (tmp_path / "pyproject.toml").touch()
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "measuring.py").write_text((BENCHMARKS / "measuring.py").read_text())
    (folder / "real_suite.py").write_text((BENCHMARKS / "suite.py").read_text())
    for name, code in {"suite": SUITE, "good": GOOD, "bad": BAD}.items():
        (folder / f"{name}.py").write_text(code)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``farro bench`` in a folder; what is imported from there must not meet this process's modules."""
    code = "import sys; from farro.silo.cli.bench import bench; sys.exit(bench())"
    argv = [sys.executable, "-c", code, *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def test_outside_a_checkout_it_says_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(bench, ["--smoke"])
    assert result.exit_code == 1
    assert "there are no benchmarks in" in result.stderr
    assert "root of a source checkout" in result.stderr


def test_an_unknown_name_is_bad_usage_and_lists_the_known_ones(checkout: Path) -> None:
    done = run(checkout, "good", "best")
    assert done.returncode == 2
    assert "there is no benchmark 'best'; there are: good, bad" in done.stderr


def test_the_table_names_value_probe_ratio_goal_and_whether_it_was_met(checkout: Path) -> None:
    done = run(checkout, "good")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "turns/s" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["turns", "5 turns/s", "raw 10", "0.50", "≥ 0.4", "yes"]


def test_a_smoke_run_judges_no_timing(checkout: Path) -> None:
    done = run(checkout, "good", "--smoke")
    assert "the figures mean nothing" in done.stdout
    assert "yes" not in done.stdout


def test_a_benchmark_that_counts_wrong_fails_the_run_and_stops_no_other(checkout: Path) -> None:
    done = run(checkout, "--json", "found.json")
    assert done.returncode == 1
    assert "the benchmark bad failed: AssertionError: 3 turns were answered and 2" in done.stderr
    document = json.loads((checkout / "found.json").read_text())
    assert [each["name"] for each in document["results"]] == ["good"]
    drawn = find_spec("matplotlib") is not None
    assert ("no chart: matplotlib is not installed" in done.stdout) is not drawn


@pytest.mark.parametrize("bad", [("--seconds", "0"), ("--seconds", "nan"), ("--rounds", "0")])
def test_lengths_that_measure_nothing_are_bad_usage(bad: tuple[str, str]) -> None:
    assert CliRunner().invoke(bench, bad).exit_code == 2
