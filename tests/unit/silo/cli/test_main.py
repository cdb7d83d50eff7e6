"""The command as a whole: help without a silo, defaults shown, the reference true."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import click
import pytest

from farro.silo.cli.main import COMMANDS, farro
from tests.unit.silo.cli.reference import DOCUMENT, reference


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(f"{path} {name}", inner)


ALL = dict(commands("farro", farro))


def test_every_command_that_is_listed_exists() -> None:
    assert set(farro.list_commands(click.Context(farro))) == set(COMMANDS)


@pytest.mark.parametrize("path", sorted(ALL))
def test_CLI_009_every_option_shows_its_default(path: str) -> None:
    command = ALL[path]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.is_eager:
            assert parameter.show_default, f"{path} {parameter.opts[0]}"
            assert parameter.help or isinstance(parameter.type, click.Choice), f"{path} {parameter.opts[0]}"


def test_the_reference_is_the_help_word_for_word() -> None:
    stands = DOCUMENT.read_text(encoding="utf-8")
    assert stands == reference(), "write it anew: python -m tests.unit.silo.cli.reference"


def test_help_and_version_touch_no_heavy_part() -> None:
    script = (
        "import sys\n"
        "from farro.silo.cli.main import main\n"
        "sys.argv = ['farro', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "assert 'rich' not in sys.modules\n"
        "assert 'farro.silo.cli.silo' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: farro")


def test_a_command_alone_prints_its_help_and_is_bad_usage() -> None:
    argv = [sys.executable, "-m", "farro.silo.cli.main"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


def test_version_says_the_version() -> None:
    argv = [sys.executable, "-m", "farro.silo.cli.main", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"farro {version('farro')}\n", "")
