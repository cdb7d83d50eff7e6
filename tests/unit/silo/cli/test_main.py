"""The command as a whole: help without a silo, defaults shown, the reference true."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from farro.silo.cli.main import COMMANDS, farro
from farro.silo.cli.reminders_show import interval_words
from farro.silo.host import Silo
from tests.acceptance.processes import farro_here
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


TAKE_A_SERVICE = sorted(
    path for path, command in ALL.items() if any("--service-id" in each.opts for each in command.params)
)


@pytest.mark.parametrize("path", TAKE_A_SERVICE)
def test_a_service_without_a_name_is_bad_usage(path: str) -> None:
    arguments = ["1" for each in ALL[path].params if isinstance(each, click.Argument)]
    done = farro_here(*path.split()[1:], "--service-id", " ", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(
        "Error: --service-id: the name of a service must not be empty"
    )


def test_a_service_id_from_the_environment_that_is_empty_counts_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FARRO_SERVICE_ID", "")
    command = ALL["farro silo"]
    assert command.make_context("silo", ["app"]).params["service_id"] == "default"


PRINTS = (
    "--help",
    "silo --help",
    "cron next '0 * * * * *' --count 1000",
    "cron explain '*/5 * * * *'",
    "cluster status --partitions --store {store}",
    "cluster status --json --store {store}",
)


@pytest.mark.parametrize("command", PRINTS)
async def test_CLI_006_a_reader_that_goes_away_ends_any_command_in_silence(
    command: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'farro.db'}"
    async with Silo([], store):
        pass
    reading, writing = os.pipe()
    os.close(reading)  # gone before a word is written: nothing is left to how much a pipe takes
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "farro.silo.cli.main", *shlex.split(command.format(store=store))],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (2_592_000.0, "30 d"),
        (5_400.0, "1 h 30 min"),
        (90.5, "1 min 30.5 s"),
        (1.0, "1 s"),
        (0.000_001, "1e-06 s"),
        (90_061.0, "1 d 1 h 1 min 1 s"),
    ],
)
def test_intervals_are_shown_in_words(seconds: float, words: str) -> None:
    assert interval_words(seconds) == words
