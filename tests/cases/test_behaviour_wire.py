"""Public cases about the wire, its values and its secrets, with a real silo behind a real socket.

Ids and facts: tests/cases/data/behaviour.jsonl.  Garbage on the wire has its tests beside the gateway and the
codec.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from farro.client.client import Client
from farro.client.errors import GrainCallFailed, InvalidPayload, NoSuchMethod
from farro.silo import Grain, Silo
from tests.acceptance.processes import farro_here
from tests.support.tcp_proxy import Line, tcp_proxy
from tests.unit.silo.gateway.serving import Target, serving


@dataclass
class Heard:
    values: int = 0


class TwoArguments(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one, two)


class WithLock(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Mirror(Grain[Heard], name="mirror"):
    async def echo(self, value: Any) -> Any:
        self.state.values += 1
        return value

    async def through(self, value: Any) -> Any:
        return await self.grain(Mirror, "other").echo(value)

    async def fail(self, kind: str) -> None:
        if kind == "group":
            raise ExceptionGroup("both", [ValueError("left"), KeyError("right")])
        if kind == "cause":
            raise RuntimeError("the outer one") from OSError("the inner one")
        raise {"two": TwoArguments("a", "b"), "lock": WithLock()}[kind]

    async def fail_inside(self) -> None:
        await self.grain(Mirror, "other").fail("cause")

    async def on_activate(self) -> None: ...

    async def _helper(self) -> str:
        return "private"


@asynccontextmanager
async def served() -> AsyncIterator[Client]:
    async with (
        Silo([Mirror], "memory://", "127.0.0.1:0") as silo,
        Client(silo.address or "", timeout=20) as client,
    ):
        yield client


# ---- TRA-003, TRA-007: large and many


@pytest.mark.parametrize("way", ["up", "down"])
async def test_TRA_003_bytes_that_arrive_count_as_life(way: str) -> None:
    """Whoever receives is the one with the short heartbeat.  The frame limit of the design is 1 MiB."""
    short, long = 0.3, 10.0
    slow = Line(bytes_per_s=600_000)
    async with (
        serving(heartbeat_s=short if way == "up" else long) as (gateway, _),
        tcp_proxy(("127.0.0.1", int(str(gateway.address).rpartition(":")[2]))) as proxy,
        Client(proxy.address, heartbeat=short if way == "down" else long) as client,
    ):
        proxy.become(**{way: slow})
        value = b"x" * 900_000
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await client.call("echo", "a", "echo", value) == value
        assert loop.time() - began > 2 * 1.5 * short, "a silence as long as that is the end of a connection"
        assert proxy.connections_made == 1, "it never had to connect again"


async def test_TRA_007_frames_of_many_tasks_are_whole_and_in_order() -> None:
    class Recorder(Target):
        def submit(self, call: Any) -> None:
            sender, number, _ = call.args[0]
            order.setdefault(sender, []).append(number)
            super().submit(call)

    order: dict[int, list[int]] = {}
    async with serving(Recorder()) as (gateway, _), Client(str(gateway.address), timeout=60) as client:

        async def send(sender: int) -> None:
            calls = []
            for number in range(4):
                value = (sender, number, bytes([sender % 256]) * (64 * 1024))
                calls.append((value, asyncio.ensure_future(client.call("echo", "a", "echo", value))))
            for value, call in calls:
                assert await call == value

        async with asyncio.TaskGroup() as group:
            for sender in range(100):
                group.create_task(send(sender))
    assert order == {sender: [0, 1, 2, 3] for sender in range(100)}


# ---- SER-001, SER-002: numbers and instants, through a client and between grains

INTEGERS = [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40)]
FOLD = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
INSTANTS = [
    datetime(2100, 1, 1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    FOLD,
]


async def test_SER_001_integers_of_any_size_come_back_equal() -> None:
    async with served() as client:
        for method in ("echo", "through"):
            for value in (*INTEGERS, INTEGERS, {2**70: [2**65]}):
                assert await client.call("mirror", "a", method, value) == value


async def test_SER_002_aware_instants_come_back_the_same_and_naive_ones_are_refused() -> None:
    async with served() as client:
        for method in ("echo", "through"):
            for instant in INSTANTS:
                back = await client.call("mirror", "a", method, instant)
                assert back == instant.astimezone(UTC) and back.utcoffset() == instant.utcoffset()
            with pytest.raises(InvalidPayload, match="time zone"):
                await client.call("mirror", "a", method, datetime(2026, 1, 1))
        assert FOLD.utcoffset() == timedelta(hours=1)


# ---- SER-011, SEC-007: errors of grains


@pytest.mark.parametrize(
    ("kind", "says", "remote"),
    [
        ("two", r"TwoArguments: \('a', 'b'\)", "TwoArguments"),
        ("lock", "WithLock: locked", "WithLock"),
        ("group", r"ValueError: left; KeyError: 'right'", "ExceptionGroup"),
        ("cause", r"RuntimeError: the outer one \(caused by OSError: the inner one\)", "RuntimeError"),
    ],
)
async def test_SER_011_an_error_of_any_class_arrives_at_once_with_class_and_text(
    kind: str, says: str, remote: str
) -> None:
    async with served() as client:
        async with asyncio.timeout(5):
            with pytest.raises(GrainCallFailed, match=says) as failed:
                await client.call("mirror", "a", "fail", kind)
        assert str(failed.value.remote_type).endswith(remote)
        assert await client.call("mirror", "a", "echo", 1) == 1


async def test_SEC_007_no_path_and_no_traceback_leaves_the_silo_and_the_log_has_both(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as client:
        with caplog.at_level(logging.WARNING), pytest.raises(GrainCallFailed) as failed:
            await client.call("mirror", "a", "fail_inside")
    error = failed.value
    told = f"{error} {error!r} {vars(error)}"
    for secret in ("Traceback", 'File "', Path(__file__).name, str(Path(__file__).parent)):
        assert secret not in told
    assert "the outer one" in str(error) and error.correlation_id
    (record,) = [each for each in caplog.records if error.correlation_id in each.getMessage()]
    assert record.exc_info is not None and record.exc_info[2] is not None


# ---- SEC-003: what is no method


async def test_SEC_003_whatever_is_no_grain_method_gets_one_and_the_same_text() -> None:
    names = [
        *("__class__", "__init__", "__getattribute__", "_helper", "_farro_runtime", "on_activate"),
        *("on_deactivate", "receive_reminder", "state", "key", "deactivate", "destroy", "deactivate_on_idle"),
        *("publish", "schedule", "migrate", "run_blocking", "grain", "with_options", "echo.__call__", "Echo"),
    ]
    texts = set()
    async with served() as client:
        for name in names:
            with pytest.raises(NoSuchMethod) as refused:
                await client.call("mirror", "a", name)
            texts.add(str(refused.value).replace(repr(name), "NAME"))
        assert len(texts) == 1, texts
        assert await client.call("mirror", "a", "echo", 1) == 1


# ---- SEC-006: passwords


UNOPENED = [  # a store that cannot be opened, and what every command says of it
    ("postgresql://u:S3CRET@127.0.0.1:1/db", "127.0.0.1:1"),
    ("postgresql://u:S3CRET@no-such-host.invalid/db", "no-such-host.invalid"),
    ("postgresql://u@127.0.0.1:1/db?password=S3CRET", "has password as an option"),
    ("postgresql://u:S3CRET@127.0.0.1:x/db", "not host or host:port"),
    ("postgresql://u:S3CRET@127.0.0.1:1/db?no_such_option=1", "no_such_option"),
    ("postgresq://u:S3CRET@127.0.0.1:1/db", "no store is called 'postgresq'"),
    ("redis://:S3CRET@127.0.0.1:1/0", "Redis is not in this version"),
]


@pytest.mark.parametrize(("url", "says"), UNOPENED, ids=[says for _, says in UNOPENED])
@pytest.mark.parametrize(
    "command",
    [
        ("silo", "tests.acceptance.served_grains", "--listen", "127.0.0.1:0", "--log-level", "debug"),
        ("reminders", "list"),
        ("cluster", "status"),
        ("migrate",),
    ],
    ids=lambda command: command[0],
)
def test_SEC_006_no_command_prints_the_password_of_a_store_it_cannot_open(
    command: tuple[str, ...], url: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        done = farro_here(*command, "--store", url)
    assert done.returncode != 0
    assert says in done.stderr
    assert "S3CRET" not in done.stdout + done.stderr
    assert "S3CRET" not in "".join(f"{each.getMessage()} {each.exc_info}" for each in caplog.records)
