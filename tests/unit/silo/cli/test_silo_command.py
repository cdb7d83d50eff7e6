"""What ``farro silo`` says when it cannot start."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import click
import pytest

from farro.client.clock import ScaledClock, SystemClock
from farro.silo.cli.silo import Serving, _started, _time
from farro.silo.cli.supervising.signs import Signs
from farro.silo.options import SiloOptions
from tests.acceptance.served_grains import Counter


def serving(store: str, listen: str = "127.0.0.1:0") -> Serving:
    return Serving([Counter], store, listen, "default", SiloOptions(), SystemClock(), False, Signs(None))


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("nonsense", 2, "is not a store URL"),
        ("sqlite:///", 2, "names no file"),
        ("mongo://me:SECRET@h/db", 2, "no store is called"),
        ("sqlite:////nowhere/at/all.db", 1, "there is no folder"),
        ("sqlite:///.", 1, "is a directory"),
    ],
)
async def test_a_store_that_cannot_be_opened_is_one_clear_error(url: str, code: int, says: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        await _started(serving(url))
    assert raised.value.exit_code == code
    assert raised.value.message.startswith("--store: ") and says in raised.value.message
    assert "SECRET" not in raised.value.message and "\n" not in raised.value.message


async def test_a_file_that_is_no_store_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "diary.db"
    path.write_text("dear diary, " * 200)
    with pytest.raises(click.ClickException, match="not a database"):
        await _started(serving(f"sqlite:///{path}"))
    assert path.read_text() == "dear diary, " * 200


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
async def test_an_address_that_cannot_be_read_is_bad_usage(listen: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        await _started(serving("memory://", listen))
    assert raised.value.exit_code == 2 and listen in raised.value.message


async def test_where_it_can_be_reached_is_what_it_advertises() -> None:
    asked = replace(serving("memory://"), advertise="127.0.0.1:7")
    silo = await _started(asked)
    try:
        (row,) = await silo.provider.silos()
        assert row.address == "127.0.0.1:7"
    finally:
        await silo.stop()


async def test_an_advertised_address_that_cannot_be_read_is_bad_usage() -> None:
    with pytest.raises(click.ClickException) as raised:
        await _started(replace(serving("memory://"), advertise="here"))
    assert raised.value.exit_code == 2 and "here" in raised.value.message


async def test_an_address_beyond_loopback_needs_the_option() -> None:
    with pytest.raises(click.ClickException, match="--allow-insecure-bind"):
        await _started(serving("memory://", "0.0.0.0:0"))


def test_a_demo_clock_makes_the_look_ahead_as_long_as_it_is_fast() -> None:
    clock, reminders = _time("2026-03-01T00:00:00Z:3600")
    assert isinstance(clock, ScaledClock)
    assert reminders.look_ahead_window == timedelta(hours=5)
    reminders.validate()
    with pytest.raises(click.ClickException, match="write it like"):
        _time("yesterday:fast")
