"""A person upgrades a store of farro's own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farro.client.clock import to_us
from farro.providers.opening import open_provider
from farro.providers.sql_files import Migration
from farro.providers.sqlite import opened
from farro.providers.sqlite.migrating import known_migrations
from tests.acceptance.processes import Serve, farro_here, silos

STORE = "sqlite:///farro.db"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def serve(tmp_path: Path) -> Generator[Serve]:
    with silos(tmp_path) as start:
        yield start


def test_a_dry_run_may_look_at_the_store_of_a_running_silo(here: Path, serve: Serve) -> None:
    serve()
    assert farro_here("migrate", "--store", STORE, "--dry-run").stdout == "up to date: nothing was changed\n"


def add_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    """This farro knows one migration more than the one that made the store."""
    added = Migration(len(known_migrations()) + 1, "notes", "CREATE TABLE notes (text TEXT) STRICT;")
    monkeypatch.setattr(opened, "known_migrations", lambda: (*known_migrations(), added))


def test_an_older_store_is_upgraded_once_and_a_dry_run_only_tells(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_made_store())
    add_migration(monkeypatch)
    before = (here / "farro.db").read_bytes()
    name = f"{len(known_migrations()) + 1:04}_notes"
    dry = farro_here("migrate", "--store", STORE, "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, f"would apply {name}\nnothing was changed\n")
    assert (here / "farro.db").read_bytes() == before
    done = farro_here("migrate", "--store", STORE)
    assert done.returncode == 0 and done.stdout.startswith(f"applied {name}\n")
    again = farro_here("migrate", "--store", STORE)
    assert again.returncode == 0 and again.stdout.startswith("up to date: ")


async def _made_store() -> None:
    provider = open_provider(STORE)
    await provider.open(to_us(datetime.now(UTC)))
    await provider.close()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_store_of_a_newer_farro_is_refused(here: Path, dry: tuple[str, ...]) -> None:
    asyncio.run(_made_store())
    with sqlite3.connect(here / "farro.db") as connection:
        connection.execute("INSERT INTO farro_migrations VALUES (99, 'future', 'x', 0)")
    connection.close()
    done = farro_here("migrate", "--store", STORE, *dry)
    assert done.returncode == 1 and "newer farro" in done.stderr and "upgrade farro" in done.stderr


def test_a_missing_store_is_not_made(here: Path) -> None:
    done = farro_here("migrate", "--store", "sqlite:///typo.db")
    assert done.returncode == 1 and "there is no store" in done.stderr
    assert list(here.iterdir()) == []


def test_a_store_with_a_silo_on_it_is_shared_with_the_command(serve: Serve) -> None:
    serve()
    done = farro_here("migrate", "--store", STORE)
    assert done.returncode == 0
    assert "up to date" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--store", "memory://"), "ends with its process"),
        (("--store", "nowhere"), "not a store URL"),
        (("--replace",), "--replace belongs to --from-orleans"),
        (("--from-orleans", "Host=db;Username=u;Password=secret-word"), "not as a connection string of .NET"),
        (("--from-orleans", "postgresql://u:secret-word@h/d?x=1"), "unknown option 'x'"),
        (("--from-orleans", "postgresql://h/d?schema=s"), "--orleans-schema"),
        (("--from-orleans", "postgresql://h/d", "--map", "cart"), "--map cart=... is not"),
        (("--from-orleans", "postgresql://h/d", "--map", "cart=a/b"), "must not contain '/'"),
        (("--from-orleans", "postgresql://h/d", "--map", "a=b", "--map", "a=c"), "mapped to two types"),
        (("--from-orleans", "postgresql://h/d", "--keys", "cart=guid"), "keys are text, int, uuid"),
    ],
)
def test_bad_usage_is_one_line_that_says_the_way_out(
    here: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = farro_here("migrate", *arguments)
    error = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert said.replace("cart=...", "'cart'") in error
    assert "secret-word" not in done.stdout + done.stderr
    assert list(here.iterdir()) == []
