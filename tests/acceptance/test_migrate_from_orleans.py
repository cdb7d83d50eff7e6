"""A person brings the reminders of Orleans from a real PostgreSQL, and they fire on their grid."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from farro.providers.opening import open_provider
from farro.silo import Grain, Silo, TickStatus
from farro.silo.testing.virtual_time import VirtualClock, hold_time, run_virtual
from tests.acceptance.processes import Outcome, Serve, farro_here, silos
from tests.support.orleans import TABLE_BEFORE_3_6, TABLE_QUOTED, Orleans, orleans_database
from tests.support.servers import Server

pytestmark = pytest.mark.service

GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ODD_NAME = "tägliche 'Erinnerung' \"x\" \\ %s 💡 \t\x1b[31m"
STORE = "sqlite:///farro.db"


@pytest.fixture
def orleans(postgres_server: Server) -> Generator[Orleans]:
    made = orleans_database(postgres_server)
    yield made
    made.drop()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def serve(tmp_path: Path) -> Generator[Serve]:
    with silos(tmp_path) as start:
        yield start


def bring(orleans: Orleans, *arguments: str) -> Outcome:
    done = farro_here("migrate", "--store", STORE, "--from-orleans", orleans.url, *arguments)
    assert "secret-word" not in done.stdout + done.stderr
    return done


def listed(grain_type: str, key: str) -> list[dict[str, Any]]:
    done = farro_here("reminders", "list", grain_type, key, "--store", STORE, "--json")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def now() -> datetime:
    return datetime.now(UTC)


def whole(instant: datetime) -> datetime:
    """To the millisecond, as Orleans' column keeps it."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def test_rows_are_imported_on_their_grid_and_a_second_run_moves_none(orleans: Orleans) -> None:
    start = whole(now() - timedelta(days=40, milliseconds=123))
    orleans.put(
        ("cart/c-1", "remind", start, timedelta(seconds=30)),
        ("cart/c-1", ODD_NAME, start, timedelta(days=50)),
        ("cart/a/b c", "remind", now() + timedelta(days=900), timedelta(minutes=1)),
        ("counter/2A", "count", start, timedelta(hours=1)),
        (f"session/{GUID.replace('-', '')}+eu", "end", start, timedelta(hours=1)),
        zone="America/New_York",
    )
    arguments = ("--map", "counter=counters", "--keys", "counter=int", "--keys", "session=uuid")
    done = bring(orleans, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("5 read: 5 imported, 0 kept as farro has them, 0 left behind\n")
    odd, remind = sorted(listed("cart", "c-1"), key=lambda row: str(row["name"] != ODD_NAME))
    assert odd["name"] == ODD_NAME and odd["interval_seconds"] == 50 * 86400
    assert datetime.fromisoformat(odd["next_run_at"]) == start + timedelta(days=50)
    assert (datetime.fromisoformat(remind["next_run_at"]) - start) % timedelta(seconds=30) == timedelta(0)
    assert (remind["action"], remind["priority"], remind["operation"]) == (
        "SKIP",
        "NORMAL",
        "receive_reminder",
    )
    assert listed("counters", "42") and listed("session", f"{GUID}+eu") and listed("cart", "a/b c")
    again = bring(orleans, *arguments)
    assert again.stdout.endswith("5 read: 0 imported, 5 kept as farro has them, 0 left behind\n")
    assert listed("cart", "c-1") == [odd, remind] or listed("cart", "c-1") == [remind, odd]


def test_a_store_with_a_silo_on_it_is_left_alone(orleans: Orleans, serve: Serve) -> None:
    orleans.put(("cart/1", "remind", now(), timedelta(minutes=1)))
    serve()
    done = bring(orleans)
    assert done.returncode == 1 and "stop the silo before migrating" in done.stderr
    assert "cron" not in orleans.columns()


def test_the_columns_and_the_index_are_added_once_and_orleans_goes_on(orleans: Orleans) -> None:
    row = ("cart/1", "remind", now(), timedelta(minutes=1))
    orleans.put(row)
    before = orleans.columns()
    dry = bring(orleans, "--dry-run")
    assert dry.returncode == 0 and dry.stdout.count("would run on Orleans' database: ") == 2
    assert "1 read: 1 would be imported" in dry.stdout
    assert orleans.columns() == before and not Path("farro.db").exists()
    assert bring(orleans, "--read-only").returncode == 0
    assert orleans.columns() == before
    assert bring(orleans).stdout.count("ran on Orleans' database: ") == 2
    added = ["action", "cron", "lastfireutc", "nextdueutc", "priority"]
    assert sorted(set(orleans.columns()) - set(before)) == added
    indexed = "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%(nextdueutc, priority)'"
    assert orleans.run(lambda each: each.fetchval(indexed)) == 1
    orleans.put(row, ("cart/2", "remind", now(), timedelta(minutes=1)))
    assert "ran on" not in bring(orleans).stdout


def test_filled_columns_of_the_proposal_are_kept(orleans: Orleans) -> None:
    orleans.put(("report/1", "weekly", now(), timedelta(0)), ("report/1", "owed", now(), timedelta(days=1)))
    assert bring(orleans).stdout.endswith("1 left behind\n")
    orleans.execute(
        "UPDATE OrleansRemindersTable SET Cron = '0 0 9 * * MON', Priority = 0 WHERE ReminderName = 'weekly'",
        "UPDATE OrleansRemindersTable SET NextDueUtc = '2031-05-06 07:08:09.123Z', LastFireUtc = StartTime,"
        " Priority = 2, Action = 0 WHERE ReminderName = 'owed'",
    )
    assert "2 imported" in bring(orleans, "--replace").stdout
    owed, weekly = listed("report", "1")
    assert (owed["next_run_at"], owed["priority"], owed["action"]) == (
        "2031-05-06T07:08:09.123000Z",
        "BACKGROUND",
        "FIRE_IMMEDIATELY",
    )
    assert owed["last_fired_at"] is not None
    assert (weekly["cron"], weekly["interval_seconds"], weekly["priority"]) == (
        "0 0 9 * * MON",
        None,
        "CRITICAL",
    )


def test_rows_that_cannot_be_read_are_listed_and_the_rest_is_imported(orleans: Orleans) -> None:
    orleans.put(
        ("cart/good", "remind", now(), timedelta(minutes=1)),
        ("cart/zero", "remind", now(), timedelta(0)),
        ("cart/minus", "remind", now(), timedelta(milliseconds=-1)),
        ("cart/unset", "remind", datetime(1, 1, 1, tzinfo=UTC), timedelta(minutes=1)),
        ("no-slash", "forged\nline", now(), timedelta(minutes=1)),
    )
    orleans.execute(
        *(
            "INSERT INTO OrleansRemindersTable VALUES"
            f" ('shop', 'cart/{number}', 'remind', '{start}', 60000, 0, 0)"
            for number, start in enumerate(("infinity", "0001-01-01Z", "4713-01-01 BC", "20000-01-01"))
        )
    )
    done = bring(orleans)
    assert done.returncode == 0
    assert done.stdout.endswith("9 read: 1 imported, 0 kept as farro has them, 8 left behind\n")
    behind = [line for line in done.stdout.splitlines() if line.startswith("left behind: ")]
    assert len(behind) == 8
    assert sum("StartTime" in line for line in behind) == 5
    assert any("no-slash" in line and "TYPE/KEY" in line for line in behind)


def test_a_table_of_before_orleans_3_6_is_read_in_utc(orleans: Orleans) -> None:
    orleans.execute("DROP TABLE OrleansRemindersTable", TABLE_BEFORE_3_6)
    old_id = f"GrainReference={0:016x}{42:016x}030000001a2b3c4d"
    orleans.execute(
        f"SET TIME ZONE 'Asia/Tokyo'; INSERT INTO OrleansRemindersTable"
        f" VALUES ('shop', '{old_id}', 'remind', '2031-01-01 00:00:00.5', 60000, 0, 0)"
    )
    assert bring(orleans, "--map", "code-1A2B3C4D=carts").returncode == 0
    assert listed("carts", "42")[0]["next_run_at"] == "2031-01-01T00:00:00.500000Z"


def test_a_table_with_quoted_names_in_another_schema_is_found(orleans: Orleans) -> None:
    orleans.execute("DROP TABLE OrleansRemindersTable", "CREATE SCHEMA app")
    orleans.execute(
        TABLE_QUOTED,
        'INSERT INTO app."OrleansRemindersTable"'
        " VALUES ('shop', 'cart/1', 'remind', '2031-01-01Z', 60000, 0, 0)",
    )
    assert "1 imported" in bring(orleans).stdout
    assert "0 imported, 1 kept" in bring(orleans, "--orleans-schema", "app").stdout
    missing = bring(orleans, "--orleans-schema", "public")
    assert missing.returncode == 1 and "no table OrleansRemindersTable" in missing.stderr


def test_one_service_of_several_has_to_be_named(orleans: Orleans) -> None:
    row = ("cart/1", "remind", now(), timedelta(minutes=1))
    orleans.put(row, service="shop")
    orleans.put(row, ("cart/2", "remind", now(), timedelta(minutes=1)), service="bank")
    unnamed = bring(orleans)
    assert unnamed.returncode == 1 and "'bank' (2), 'shop' (1)" in unnamed.stderr
    unknown = bring(orleans, "--orleans-service-id", "shup")
    assert unknown.returncode == 1 and "no reminders of 'shup'" in unknown.stderr
    assert "2 read: 2 imported" in bring(orleans, "--orleans-service-id", "bank").stdout


def test_any_batch_size_brings_the_same(orleans: Orleans) -> None:
    orleans.put(*((f"cart/{n}", "remind", now(), timedelta(minutes=1)) for n in range(7)))
    assert "7 read: 7 imported" in bring(orleans, "--batch", "1").stdout
    assert "7 read: 0 imported, 7 kept" in bring(orleans, "--batch", "3").stdout
    assert "7 read: 7 imported" in bring(orleans, "--batch", "3", "--replace", "--service-id", "two").stdout


def test_without_the_driver_the_extra_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "farro.silo.migration.orleans_table", raising=False)
    done = farro_here("migrate", "--store", STORE, "--from-orleans", "postgresql://h/d")
    assert done.returncode == 1 and "pip install 'farro[postgres]'" in done.stderr


def test_an_empty_table_is_no_failure(orleans: Orleans) -> None:
    done = bring(orleans)
    assert done.returncode == 0 and "0 read: 0 imported" in done.stdout


def test_a_login_that_may_only_read_is_told_of_read_only(orleans: Orleans) -> None:
    orleans.put(("cart/1", "remind", now(), timedelta(minutes=1)))
    role = f"reader_{orleans.database}"
    orleans.execute(f"CREATE ROLE {role} LOGIN", f"GRANT SELECT ON OrleansRemindersTable TO {role}")
    reader = orleans.url.replace("farro:", f"{role}:")
    refused = farro_here("migrate", "--store", STORE, "--from-orleans", reader)
    assert refused.returncode == 1 and "--read-only" in refused.stderr
    done = farro_here("migrate", "--store", STORE, "--from-orleans", reader, "--read-only")
    assert done.returncode == 0 and "1 imported" in done.stdout


def test_a_database_that_does_not_answer_is_one_line_and_makes_no_store(here: Path) -> None:
    url = "postgresql://u:secret-word@127.0.0.1:1/x"
    done = farro_here("migrate", "--store", STORE, "--from-orleans", url)
    assert done.returncode == 1 and done.stderr.startswith("Error: postgresql://u@127.0.0.1:1/x: ")
    assert list(here.iterdir()) == []


def test_types_nobody_serves_are_named_and_kept(orleans: Orleans, here: Path) -> None:
    (here / "shop_grains.py").write_text(
        "from farro.silo import Grain\n"
        "class Cart(Grain, name='carts'):\n"
        "    async def receive_reminder(self, name, status): ...\n"
        "class Mute(Grain, name='mute'):\n"
        "    async def hello(self) -> None: ...\n"
    )
    each = [(f"{name}/1", "remind", now(), timedelta(minutes=1)) for name in ("cart", "mute", "ghost")]
    orleans.put(*each)
    done = bring(orleans, "--grains", "shop_grains", "--map", "cart=carts", "--map", "typo=x")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert lines["cart"].split() == ["cart", "carts", "1", "0"]
    assert "no receive_reminder" in lines["mute"] and "unknown type" in lines["ghost"]
    assert "no reminder of the type typo was imported" in done.stderr
    assert listed("ghost", "1") and listed("mute", "1")


# ---------------------------------------------------------------- and then they fire


class Cart(Grain, name="cart"):
    """Writes its ticks down."""

    rung: ClassVar[dict[tuple[str, str], list[TickStatus]]] = {}

    async def receive_reminder(self, name: str, status: TickStatus) -> None:
        self.rung.setdefault((self.key, name), []).append(status)


async def served_for(clock: VirtualClock, length: timedelta) -> None:
    """A silo on the imported store, on virtual time."""
    async with Silo([Cart], hold_time(open_provider(STORE)), clock=clock):
        await clock.sleep_until(clock.at() + length)


def test_imported_reminders_fire_on_their_grid_and_unknown_types_wait(orleans: Orleans) -> None:
    Cart.rung.clear()
    start = whole(now() - timedelta(days=1, milliseconds=777))
    periods = {"half a minute": 30.0, ODD_NAME: 90.5, "a minute": 60.0}
    orleans.put(
        *((f"cart/{n}", name, start, timedelta(seconds=s)) for n, (name, s) in enumerate(periods.items())),
        ("cart/next", "first", whole(now() + timedelta(minutes=7)), timedelta(days=1)),
        ("ghost/1", "remind", start, timedelta(seconds=30)),
        zone="Asia/Kathmandu",
    )
    assert bring(orleans).returncode == 0
    began = now()
    run_virtual(lambda clock: served_for(clock, timedelta(minutes=10)), start=began)
    for n, (name, seconds) in enumerate(periods.items()):
        ticks, period = Cart.rung[str(n), name], timedelta(seconds=seconds)
        assert [tick.first_tick_at for tick in ticks] == [start] * len(ticks)
        assert len(ticks) in (600 // seconds, 600 // seconds + 1)
        assert all((tick.current_tick_at - start) % period == timedelta(0) for tick in ticks)
        assert {later.current_tick_at - tick.current_tick_at for tick, later in pairwise(ticks)} == {period}
    assert len(Cart.rung["next", "first"]) == 1
    assert listed("ghost", "1")[0]["status"] == "scheduled"


def test_what_was_owed_before_the_import_is_treated_by_its_action(orleans: Orleans) -> None:
    Cart.rung.clear()
    start = whole(now() - timedelta(days=1))
    owed = start + timedelta(hours=21)
    orleans.put(*(("cart/1", name, start, timedelta(hours=7)) for name in ("at once", "skip")))
    assert bring(orleans, "--service-id", "not this one").returncode == 0  # it adds the columns
    orleans.execute(
        f"UPDATE OrleansRemindersTable SET NextDueUtc = '{owed.isoformat()}',"
        " Action = CASE ReminderName WHEN 'at once' THEN 0 ELSE 1 END"
    )
    assert bring(orleans).returncode == 0
    run_virtual(lambda clock: served_for(clock, timedelta(minutes=2)), start=now())
    assert {name: [tick.current_tick_at for tick in ticks] for (_, name), ticks in Cart.rung.items()} == {
        "at once": [owed]
    }
    (skipped,) = (row for row in listed("cart", "1") if row["name"] == "skip")
    assert datetime.fromisoformat(skipped["next_run_at"]) == start + timedelta(hours=28)
    assert skipped["missed_count"] == 1


def test_a_period_beyond_forty_nine_days_fires_when_it_is_due(orleans: Orleans) -> None:
    Cart.rung.clear()
    start = whole(now() - timedelta(days=2))
    orleans.put(("cart/far", "bill", start, timedelta(days=60)))
    assert bring(orleans).returncode == 0
    due = start + timedelta(days=60)
    run_virtual(lambda clock: served_for(clock, timedelta(minutes=2)), start=now())
    assert Cart.rung == {}
    run_virtual(lambda clock: served_for(clock, timedelta(minutes=2)), start=due - timedelta(minutes=1))
    assert [tick.current_tick_at for tick in Cart.rung["far", "bill"]] == [due]
