"""What a command says of a silo or a service that is not there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.silo.host import Silo
from tests.acceptance.processes import farro_here

ASK_A_SILO = ("cluster status", "cluster drain 1", "reminders list", "call a b c")


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, while the test runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("command", ASK_A_SILO)
def test_where_nobody_listens_the_address_the_rule_and_the_way_out_are_named(
    command: str, scheme: str, nobody: str
) -> None:
    done = farro_here(*command.split(), "--silo", f"{scheme}://{nobody}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert f"no silo at {scheme}://{nobody}: Connection refused" in done.stderr
    assert "--silo names a silo that runs: start one with farro silo" in done.stderr


async def test_https_to_a_silo_is_told_that_it_speaks_http() -> None:
    async with Silo([], "memory://", "127.0.0.1:0") as silo:
        url = f"https://{silo.address}"
        done = await asyncio.to_thread(farro_here, "cluster", "status", "--connect", url)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"no silo at {url}: no TLS is spoken there" in done.stderr
    assert "http://HOST:PORT" in done.stderr


@pytest.mark.parametrize("command", ["cluster status", "cluster status --json --all", "cluster drain 1"])
async def test_a_service_that_no_silo_ever_served_is_one_clear_error(command: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'farro.db'}"
    async with Silo([], store, service_id="orders"):
        pass
    told = [*command.split(), "--store", store, "--service-id"]
    unknown = await asyncio.to_thread(farro_here, *told, "unknown")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == (
        "Error: --service-id: no silo has ever served 'unknown' on this store; give the name that its silos "
        "were started with\n"
    )
    known = await asyncio.to_thread(farro_here, *told, "orders")
    assert "no silo has ever served" not in known.stderr
