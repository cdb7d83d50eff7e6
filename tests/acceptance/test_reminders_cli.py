"""``farro reminders``: every verb against a running silo, and what can be read from its file alone."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farro.client.client import Client
from farro.client.clock import to_us
from farro.providers.opening import open_provider
from farro.providers.rows import Commit, Outcome, PutReminder
from tests.acceptance.processes import Outcome as Done
from tests.acceptance.processes import SiloProcess, farro_here, silos
from tests.acceptance.served_grains import Bell
from tests.unit.silo.kit import bell_row

FORGED = "x\nERROR fake line \x1b[31m"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[SiloProcess]:
    with silos(tmp_path_factory.mktemp("operated")) as serve:
        yield serve()


def ask(silo: SiloProcess, *arguments: str) -> Done:
    return farro_here("reminders", *arguments, environment={"FARRO_SILO": silo.url})


def told(silo: SiloProcess, *arguments: str) -> object:
    done = ask(silo, *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


async def bells(silo: SiloProcess, key: str, *names: str) -> None:
    async with Client(silo.url) as client:
        await client.grain(Bell, key).ring_later(list(names), 1800)


def shown(silo: SiloProcess, key: str, name: str) -> dict[str, object]:
    found = told(silo, "show", "bells", key, name)
    assert isinstance(found, dict)
    return found


def test_one_reminder_goes_through_every_verb(served: SiloProcess) -> None:
    asyncio.run(bells(served, "one", "a"))
    one = ("bells", "one", "ring:a")
    assert shown(served, "one", "ring:a")["status"] == "scheduled"
    for arguments, says in (
        (("set-priority", *one, "critical"), "priority CRITICAL: bells/one ring:a"),
        (("set-action", *one, "NOTIFY"), "action NOTIFY: bells/one ring:a"),
        (("repair", *one), "repaired: bells/one ring:a"),
        (("pause", *one, "--note", "cleaning"), "paused: bells/one ring:a"),
    ):
        done = ask(served, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, says + "\n", "")
    stands = shown(served, "one", "ring:a")
    assert [stands[field] for field in ("priority", "action", "status", "note", "next_run_at")] == [
        "CRITICAL",
        "NOTIFY",
        "paused",
        "cleaning",
        None,
    ]
    refused = ask(served, "trigger-now", *one)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "Error: reminder 'ring:a' of bells/one is paused; resume it first\n"
    assert ask(served, "resume", *one).stdout == "resumed: bells/one ring:a\n"
    assert ask(served, "trigger-now", *one).stdout == "triggered: bells/one ring:a\n"
    while not (history := told(served, "history", *one)):
        pass  # each round is a call to the silo
    assert isinstance(history, list)
    assert [(tick["name"], tick["outcome"]) for tick in history] == [("ring:a", "delivered")]
    table = ask(served, "history", "bells", "one").stdout.splitlines()
    assert table[0].split() == [
        "fired",
        "late",
        "grain",
        "name",
        "occurrence",
        "attempt",
        "outcome",
        "detail",
    ]
    assert "bells/one" in table[1]
    gone = ask(served, "show", *one)
    assert (gone.returncode, gone.stderr) == (1, "Error: bells/one has no reminder ring:a\n")


def test_what_is_not_there_is_one_line_and_exit_code_1_and_no_matter_to_delete(served: SiloProcess) -> None:
    for arguments in (
        ("set-priority", "bells", "nobody", "ring", "critical"),
        ("set-action", "bells", "nobody", "ring", "skip"),
        ("repair", "bells", "nobody", "ring"),
        ("pause", "bells", "nobody", "ring"),
        ("resume", "bells", "nobody", "ring"),
        ("trigger-now", "bells", "nobody", "ring"),
    ):
        done = ask(served, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "Error: bells/nobody has no reminder 'ring'\n"
    done = ask(served, "delete", "bells", "nobody", "ring")
    assert (done.returncode, done.stdout) == (0, "was not there: bells/nobody ring\n")


def test_a_bulk_change_says_how_many_and_does_it_only_with_yes(served: SiloProcess) -> None:
    asyncio.run(bells(served, "bulk", "a", "b", "c"))
    bulk = ("bells", "bulk")
    asked = ask(served, "pause", *bulk)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr == "Error: 3 reminders would be paused; add --yes to do it\n"
    assert shown(served, "bulk", "ring:a")["status"] == "scheduled"
    assert ask(served, "pause", *bulk, "ring:b").returncode == 0
    assert ask(served, "pause", *bulk, "--yes", "--note", "storm").stdout == "paused: 2 reminders\n"
    assert "3 reminders would be resumed" in ask(served, "resume", *bulk, "--status", "paused").stderr
    assert ask(served, "resume", *bulk, "--due-before", "1m", "--yes").stdout == "resumed: 0 reminders\n"
    assert ask(served, "resume", *bulk, "--due-before", "1h", "--yes").stdout == "resumed: 3 reminders\n"
    assert "3 reminders would be deleted" in ask(served, "delete", *bulk).stderr
    assert ask(served, "delete", *bulk, "--operation", "ring", "--yes").stdout == "deleted: 3 reminders\n"
    assert told(served, "list", *bulk) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pause",), "name a reminder (TYPE KEY NAME), or say which ones"),
        (("delete", "--yes"), "name a reminder (TYPE KEY NAME), or say which ones"),
        (("pause", "bells", "--all"), "--all takes no filter"),
        (("pause", "bells", "x", "ring", "--priority", "normal"), "filters and --all are for many"),
        (("pause", "bells", "x", ""), "reminder name must not be empty"),
        (("repair", "bells/x", "y", "ring"), "must not contain '/'"),
        (("list", "bells", ""), "grain key must not be empty"),
        (("list", "--due-before", "soon"), "neither an ISO date and time"),
        (("list", "--due-before", "999999999999w"), "neither an ISO date and time"),
        (("list", "--limit", "0"), "0 is not in the range"),
        (("upcoming", "--within", "1"), "is no length of time"),
        (("upcoming", "--within", "1e9d"), "is no length of time"),
        (("set-priority", "bells", "x", "ring", "urgent"), "'urgent' is not one of"),
        (("history", "bells"), "a grain is named by TYPE and KEY"),
        (("list", "--silo", "nowhere"), "--silo: "),
    ],
)
def test_bad_usage_is_exit_code_2_and_says_the_rule(arguments: tuple[str, ...], says: str) -> None:
    done = farro_here("reminders", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_the_silo_and_its_file_tell_the_same(served: SiloProcess) -> None:
    asyncio.run(bells(served, "same", "a", "b", FORGED))
    ask(served, "set-priority", "bells", "same", "ring:b", "background")
    ask(served, "pause", "bells", "same", "ring:a")
    store = f"sqlite:///{served.folder / 'farro.db'}"
    for arguments in (
        ("list", "bells", "same"),
        ("list", "bells", "same", "--priority", "background"),
        ("list", "--status", "paused"),
        ("count", "bells", "same"),
        ("show", "bells", "same", "ring:b"),
        ("upcoming", "--within", "1h"),
        ("upcoming", "--within", "1s"),
    ):
        by_file = farro_here("reminders", *arguments, "--store", store, "--json")
        assert (by_file.returncode, by_file.stderr) == (0, "")
        assert json.loads(by_file.stdout) == told(served, *arguments)
    counts = told(served, "count", "bells", "same")
    assert counts == {
        "total": 3,
        "groups": [
            {"priority": "NORMAL", "status": "paused", "count": 1},
            {"priority": "NORMAL", "status": "scheduled", "count": 1},
            {"priority": "BACKGROUND", "status": "scheduled", "count": 1},
        ],
    }
    table = ask(served, "count", "bells", "same").stdout.splitlines()
    assert [line.split() for line in table][-1] == ["all", "3"]


def test_no_name_of_somebody_forges_a_line(served: SiloProcess) -> None:
    asyncio.run(bells(served, FORGED, FORGED))
    for arguments in (
        ("list",),
        ("upcoming",),
        ("show", "bells", FORGED, f"ring:{FORGED}"),
        ("pause", "bells", FORGED, f"ring:{FORGED}", "--note", FORGED),
        ("list", "bells", FORGED),
        ("delete", "bells", FORGED, f"ring:{FORGED}"),
        ("show", "bells", FORGED, f"ring:{FORGED}"),
    ):
        done = ask(served, *arguments)
        said = done.stdout + done.stderr
        assert "\x1b" not in said and "\nERROR" not in said
        assert "x\\nERROR fake line \\x1b[31m" in said


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with very many reminders."""
    folder = tmp_path_factory.mktemp("crowd")
    url = f"sqlite:///{folder / 'crowd.db'}"

    async def fill() -> None:
        provider = open_provider(f"{url}?synchronous=normal")
        start = datetime.now(UTC) + timedelta(minutes=30)
        await provider.open(to_us(start))
        try:
            silo = await provider.join("filler", to_us(start))
            taken = await provider.take(silo.number, range(64), to_us(start))
            epochs = {each.partition: each.epoch for each in taken}
            for first in range(0, CROWD, 2_000):
                rows = [
                    bell_row(f"k{number:06}", start, registration=number)
                    for number in range(first, first + 2_000)
                ]
                batch = [
                    Commit(
                        row.partition,
                        epochs[row.partition],
                        "bell",
                        row.grain_key,
                        reminders=(PutReminder(row),),
                    )
                    for row in rows
                ]
                verdicts = await provider.commit(batch, silo.number, to_us(start))
                assert {verdict.outcome for verdict in verdicts} == {Outcome.COMMITTED}
        finally:
            await provider.close()

    asyncio.run(fill())
    return url


CROWD = 20_000


@pytest.mark.parametrize("command", [("list",), ("upcoming",)])
def test_very_many_are_streamed_whole(crowd: str, command: tuple[str, ...]) -> None:
    every = farro_here("reminders", *command, "--store", crowd, "--limit", str(CROWD), "--json")
    assert (every.returncode, every.stderr) == (0, "")
    assert [each["grain_key"] for each in json.loads(every.stdout)] == [f"k{n:06}" for n in range(CROWD)]
    some = farro_here("reminders", *command, "--store", crowd, "--limit", "700")
    assert some.stderr == "there are more; --limit 700 were shown\n"
    lines = some.stdout.splitlines()
    assert len(lines) == 701
    assert {line.index("once") for line in lines[1:]} == {lines[0].index("schedule")}


def test_a_reader_that_goes_away_ends_a_long_listing_in_silence(crowd: str, tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m farro.silo.cli.main reminders list --store '{crowd}' --limit 20000"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -2; echo ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    head, first, status = done.stdout.splitlines()
    assert (head.split()[0], first.split()[0]) == ("grain", "bell/k000000")
    assert (int(status), done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("command", [("list",), ("count",), ("upcoming",), ("show", "bells", "x", "ring")])
def test_reading_a_store_that_is_not_there_makes_none(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = farro_here("reminders", *command, "--store", f"sqlite:///{tmp_path / 'no.db'}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "no.db" in done.stderr
    assert list(tmp_path.iterdir()) == []
