"""The floors in pyproject.toml stand, and each of them breaks when somebody imports upwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parents[2]
ROOTS = ("client", "providers", "silo")

UPWARD_IMPORTS = [
    ("farro.client.planted", "farro.providers.planted"),
    ("farro.providers.planted", "farro.client.errors.planted"),
    ("farro.client.codec.planted", "farro.silo.tasks.planted"),
    ("farro.providers.rows.planted", "farro.providers.contracts.planted"),
    ("farro.providers.contracts.planted", "farro.providers.conformance.planted"),
    ("farro.silo.schedules.planted", "farro.silo.grains.planted"),
    ("farro.silo.grains.planted", "farro.silo.activations.planted"),
    ("farro.silo.activations.planted", "farro.silo.reminders.planted"),
    ("farro.silo.reminders.planted", "farro.silo.streams.planted"),
    ("farro.silo.streams.planted", "farro.silo.cluster.planted"),
    ("farro.silo.cluster.planted", "farro.silo.gateway.planted"),
    ("farro.silo.gateway.planted", "farro.silo.host.planted"),
    ("farro.silo.host.planted", "farro.silo.cli.planted"),
    ("farro.silo.cli.planted", "farro.silo.testing.planted"),
    ("farro.silo.dashboard.planted", "farro.providers.conformance.planted"),
]


def a_room(at: Path, module: str, line: str = "") -> None:
    """Build the room of ``module`` below its root, and the module with one line of code."""
    parts = module.split(".")
    root = at / parts[1] / "farro" / parts[1]
    room = root.joinpath(*parts[2:-1])
    room.mkdir(parents=True, exist_ok=True)
    for sign in (root, room):
        (sign / "__init__.py").touch()
    (room / f"{parts[-1]}.py").write_text(line)


def a_house(at: Path) -> None:
    """A house with rooms of the design on every floor, empty, under the contracts of the real one."""
    shutil.copy(HOME / "pyproject.toml", at)
    for module in {module for pair in UPWARD_IMPORTS for module in pair}:
        a_room(at, module)
    for module in ("farro.providers.errors.planted", "farro.silo.tasks.planted"):
        a_room(at, module)


def lint_imports(at: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(at / root) for root in ROOTS)
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--no-logo"],
        cwd=at,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_floors_of_the_house_stand() -> None:
    done = lint_imports(HOME)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_empty_house_keeps_every_contract(tmp_path: Path) -> None:
    a_house(tmp_path)
    done = lint_imports(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_import_upwards_breaks_a_contract(tmp_path: Path) -> None:
    a_house(tmp_path)
    for importer, imported in UPWARD_IMPORTS:
        a_room(tmp_path, importer, f"import {imported}")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    missed = [pair for pair in UPWARD_IMPORTS if f"{pair[0]} -> {pair[1]}" not in done.stdout]
    assert missed == [], done.stdout + done.stderr


def test_a_room_that_stands_on_no_floor_breaks_a_contract(tmp_path: Path) -> None:
    a_house(tmp_path)
    a_room(tmp_path, "farro.silo.attic.planted")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert "- farro.silo.attic" in done.stdout, done.stdout + done.stderr
