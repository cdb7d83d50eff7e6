"""What ``pip install farro`` puts on a machine: one wheel, built by way of the source archive."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
ROOTS = ("client", "providers", "silo")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(HOME)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile, dist: Path) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_namespace_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}
    assert tops == {"farro"}
    assert "farro/__init__.py" not in wheel.namelist()


def test_every_file_of_the_package_is_in_the_wheel_queries_and_data_included(wheel: zipfile.ZipFile) -> None:
    wanted = {
        path.relative_to(HOME / root).as_posix()
        for root in ROOTS
        for path in (HOME / root / "farro").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == wanted


def test_each_root_is_marked_as_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"farro/{root}/py.typed" for root in ROOTS} <= set(wheel.namelist())


def test_the_metadata_says_what_pyproject_says(metadata: Message) -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert metadata["Name"] == "farro"
    assert metadata["Version"] == project["version"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(needed) == len(project["dependencies"])


def test_the_command_and_the_license_come_with_it(wheel: zipfile.ZipFile, dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "farro = farro.silo.cli.main:main" in archive.read(entry_points).decode()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_the_source_archive_can_be_tested_by_whoever_unpacks_it(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"} <= names
    assert {"requirements.lock", "requirements-test.lock", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "dist/"))]


def test_make_names_the_python_that_is_too_old_and_the_way_out(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    argv = ["make", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", "test"]
    done = subprocess.run(argv, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"farro needs Python 3.11 or newer; {old} is Python 3.9.2. Try: make PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()
