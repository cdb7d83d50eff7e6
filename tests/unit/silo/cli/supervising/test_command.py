"""From one command line to those of several processes."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import click
import pytest

from farro.silo.cli.silo import silo
from farro.silo.cli.supervising import command
from farro.silo.cli.supervising.command import FARRO, addresses, check_free, process_commands
from tests.acceptance.processes import GRAINS, farro


def commands(*arguments: str) -> list[list[str]]:
    """The processes' command lines, without Python's part."""
    made = process_commands(silo.make_context("silo", list(arguments)))
    assert all(tuple(command[: len(FARRO)]) == FARRO for command in made)
    return [command[len(FARRO) :] for command in made]


def test_a_hang_up_before_anything_runs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGHUP)

    def check(_: object) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 7

    monkeypatch.setattr(command, "_check_now", check)
    try:
        given = ["tests.acceptance.grains", "--processes", "2", "--listen", "127.0.0.1:0"]
        assert command.supervise(silo.make_context("silo", given)) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_each_process_gets_the_next_port() -> None:
    assert addresses("--listen", "127.0.0.1:11111", 3) == [
        "127.0.0.1:11111",
        "127.0.0.1:11112",
        "127.0.0.1:11113",
    ]
    assert addresses("--listen", "[::1]:80", 2) == ["[::1]:80", "[::1]:81"]


def test_with_port_0_each_process_chooses() -> None:
    assert addresses("--listen", "127.0.0.1:0", 3) == ["127.0.0.1:0"] * 3


def test_ports_beyond_the_last_are_bad_usage() -> None:
    assert addresses("--listen", "127.0.0.1:65534", 2)[-1] == "127.0.0.1:65535"
    with pytest.raises(click.ClickException, match="would need port 65536") as raised:
        addresses("--listen", "127.0.0.1:65535", 2)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("listen", ["here", "127.0.0.1", "127.0.0.1:x"])
def test_an_address_that_cannot_be_read_is_bad_usage(listen: str) -> None:
    with pytest.raises(click.ClickException, match="HOST:PORT") as raised:
        addresses("--listen", listen, 2)
    assert raised.value.exit_code == 2


def test_what_was_said_is_said_to_each_process() -> None:
    first, second = commands(
        "app.grains", "more", "--processes", "2", "--store", "sqlite:///x.db", "--stop-timeout", "3",
        "--log-level", "info", "--allow-insecure-bind",
    )  # fmt: skip
    assert first == [
        "silo", "app.grains", "more", "--store", "sqlite:///x.db", "--stop-timeout", "3.0",
        "--log-level", "info", "--allow-insecure-bind", "--listen", "127.0.0.1:11111",
    ]  # fmt: skip
    assert second == [*first[:-1], "127.0.0.1:11112"]


def test_a_password_in_the_environment_does_not_show_in_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FARRO_STORE", "postgresql://me:SECRET@localhost/db")
    monkeypatch.setenv("FARRO_LISTEN", "127.0.0.1:500")
    assert commands("app", "--processes", "2") == [
        ["silo", "app", "--listen", "127.0.0.1:500"],
        ["silo", "app", "--listen", "127.0.0.1:501"],
    ]


def test_each_process_advertises_the_next_port() -> None:
    first, second = commands("app", "--processes", "2", "--advertise", "example.org:8001")
    assert first[-2:] == ["--advertise", "example.org:8001"]
    assert second[-2:] == ["--advertise", "example.org:8002"]
    with pytest.raises(click.ClickException, match="--advertise: 2 processes"):
        commands("app", "--processes", "2", "--advertise", "example.org:65535")


def test_a_port_that_is_taken_is_named_with_all_that_are_needed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = [f"127.0.0.1:{port - 1}", f"127.0.0.1:{port}"]
        with pytest.raises(click.ClickException, match=f"127.0.0.1:{port} is already in use") as raised:
            check_free(before)
    assert raised.value.exit_code == 1
    assert raised.value.message.endswith(f"(2 processes need the ports from {before[0]} to {before[1]})")
    check_free(before[1:])


def test_ports_that_the_system_chooses_are_free() -> None:
    check_free(["127.0.0.1:0"] * 3)
    check_free(["localhost:0"] * 2)


@pytest.mark.parametrize("place", [0, 1])
def test_a_port_in_use_ends_the_supervisor_at_once_with_one_line(place: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = farro(
            "silo", GRAINS, "--store", f"sqlite:///{tmp_path / 'farro.db'}", "--processes", "2",
            "--listen", f"127.0.0.1:{port - place}", folder=tmp_path,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: 127.0.0.1:{port} is already in use by another process")
    assert len(done.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []
