"""Commands that ask a silo, or read its file: what they print, and how they fail."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farro.client import (
    Client,
)
from tests.acceptance.processes import SiloProcess, farro_here
from tests.acceptance.served_grains import Bell


async def test_farro_call_takes_json_and_prints_json(shared: SiloProcess) -> None:
    silo = shared
    environment = {"FARRO_SILO": silo.url}

    def call(*arguments: str) -> object:
        done = farro_here("call", *arguments, environment=environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    assert await asyncio.to_thread(call, "counters", "minus", "add", "-5") == -5
    assert await asyncio.to_thread(call, "values", "a", "echo", '{"a": [1, null, "ü"]}') == {
        "a": [1, None, "ü"]
    }
    assert await asyncio.to_thread(call, "values", "a", "mixed") == {
        "decimal": "1.50",
        "duration": 90.0,
        "bytes": "AP8=",
        "tuple": [1, 2],
        "nan": "nan",
    }


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("counters", "a", "add", "five"), 2, "is not JSON; if it is a text, write '\"five\"'"),
        (("counters", "a", "add", "NaN"), 2, "not a JSON value"),
        (("counters", "a", "add", '"five"'), 1, "amount"),
        (("counters", "a", "fail"), 1, "on purpose\\nERROR forged line \\x1b[31m"),
        (("nobody", "a", "add"), 1, "no grain type 'nobody'"),
        (("counters", "a", "add", "--silo", "ftp://x"), 2, "is not the address of a gateway"),
        (("counters", "a", "add", "--silo", "http://127.0.0.1:1"), 1, "http://127.0.0.1:1"),
        (("counters", "a", "add", "--nope"), 2, "no such option"),
    ],
)
def test_farro_call_fails_in_one_line(
    shared: SiloProcess, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = farro_here("call", *arguments, environment={"FARRO_SILO": shared.url})
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("Error: ") and says in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_reminders_are_listed_by_the_silo_and_from_the_file_alike(shared: SiloProcess) -> None:
    silo = shared
    forged = "x\nERROR fake line \x1b[31m"
    async with Client(silo.url) as client:
        await client.grain(Bell, "listed").ring_later(["a", forged], 3600)
        await client.grain(Bell, "listed").ring_every(60)
    store = f"sqlite:///{shared.folder / 'farro.db'}"
    listing = ("reminders", "list", "bells", "listed")
    by_silo = await asyncio.to_thread(farro_here, *listing, "--silo", silo.url, "--json")
    by_file = await asyncio.to_thread(farro_here, *listing, "--store", store, "--json")
    assert by_silo.stderr == by_file.stderr == ""
    assert json.loads(by_silo.stdout) == json.loads(by_file.stdout)
    listed = json.loads(by_file.stdout)
    assert [each["name"] for each in listed] == ["ring", "ring:a", f"ring:{forged}"]
    assert (listed[0]["interval_seconds"], listed[0]["action"]) == (60, "FIRE_ALL")
    due = datetime.fromisoformat(listed[1]["next_run_at"])
    assert timedelta(minutes=59) < due - datetime.now(UTC) < timedelta(minutes=61)
    table = await asyncio.to_thread(farro_here, *listing, "--store", store)
    assert len(table.stdout.splitlines()) == 4, "SEC-010: a name with a line break stays in its line"
    assert "\x1b" not in table.stdout and "ring:x\\nERROR fake line \\x1b[31m" in table.stdout


async def test_CLI_006_a_reader_that_goes_away_ends_the_listing_in_silence(shared: SiloProcess) -> None:
    silo = shared
    async with Client(silo.url) as client:
        await client.grain(Bell, "tower").ring_later([f"{'n' * 200}{place}" for place in range(990)], 3600)
    command = (
        f"'{sys.executable}' -m farro.silo.cli.main reminders list bells tower --store sqlite:///farro.db"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        cwd=shared.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    head, status = done.stdout.splitlines()
    assert head.split()[:2] == ["name", "next"]
    assert (int(status), done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("option", "target", "code"),
    [
        ("--store", "sqlite:///nope/x.db", 1),
        ("--store", "sqlite:///x.db", 1),
        ("--store", "memory://x", 1),
        ("--silo", "http://localhost:1", 1),
        ("--silo", "nowhere", 2),
    ],
)
def test_CLI_007_a_target_that_is_not_there_is_named_and_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, target: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    done = farro_here("reminders", "list", "bells", "x", option, target)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)
    assert target.rpartition("///")[2] in done.stderr
    assert list(tmp_path.iterdir()) == []
