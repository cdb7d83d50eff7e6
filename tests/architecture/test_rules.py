"""Each rule of the house finds a planted violation and leaves its innocent neighbour alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.architecture import rules

Rule = Callable[[str], list[str]]

GUILTY: list[tuple[Rule, str]] = [
    (rules.clock_readers, "import time\nx = time.time()"),
    (rules.clock_readers, "import time as t\nx = t.monotonic_ns()"),
    (rules.clock_readers, "from time import monotonic as m\nread = m"),
    (rules.clock_readers, "from datetime import datetime, UTC\nx = datetime.now(UTC)"),
    (rules.clock_readers, "import datetime as d\nx = d.datetime.utcnow()"),
    (rules.clock_readers, "import datetime\nx = datetime.date.today()"),
    (rules.clock_readers, "def f():\n    from time import perf_counter\n    return perf_counter()"),
    (rules.task_starters, "import asyncio\nasyncio.create_task(f())"),
    (rules.task_starters, "loop.create_task(f())"),
    (rules.task_starters, "from asyncio import ensure_future\nensure_future(f())"),
    (rules.task_starters, "async def f():\n    async with asyncio.TaskGroup() as g: ..."),
    (rules.dice_throwers, "import random\nx = random.random()"),
    (rules.dice_throwers, "from random import shuffle\nshuffle([])"),
    (rules.dice_throwers, "import uuid\nx = uuid.uuid4()"),
    (rules.printers, "print('x')"),
    (rules.swallowers, "try:\n    f()\nexcept:\n    g()"),
    (rules.swallowers, "try:\n    f()\nexcept Exception:\n    pass"),
    (rules.swallowers, "try:\n    f()\nexcept (KeyError, BaseException):\n    ..."),
    (rules.swallowers, "while True:\n    try:\n        f()\n    except Exception:\n        continue"),
    (rules.swallowers, "import contextlib\nwith contextlib.suppress(Exception):\n    f()"),
    (rules.swallowers, "from contextlib import suppress\nwith suppress(KeyError, BaseException):\n    f()"),
    (rules.sign_faults, ""),
    (rules.sign_faults, "import os"),
    (rules.sign_faults, '"""A room."""\nfrom farro.silo.grains.grain import Grain'),
    (rules.missing_docstring, "x = 1"),
    (rules.front_door_faults, '"""Door."""\nfrom a import b'),
    (rules.front_door_faults, '"""Door."""\nfrom a import b\n__all__ = ["b", "c"]'),
    (rules.front_door_faults, 'from a import b\n__all__ = ["b"]'),
    (rules.relative_imports, "from . import errors"),
    (rules.query_faults, "SELECT 1;"),
    (rules.query_faults, "-- name: load\nSELECT 1;"),
    (rules.query_faults, "-- name: load\n-- One row.\n"),
    (rules.query_faults, "-- name: load\n-- One.\nSELECT 1;\n-- name: load\n-- Two.\nSELECT 2;"),
    (rules.query_faults, "-- name: Load-It\n-- One.\nSELECT 1;"),
    (rules.unfinished, "# TO" + "DO: later"),
]

INNOCENT: list[tuple[Rule, str]] = [
    (rules.clock_readers, "import asyncio\nx = asyncio.get_running_loop().time()"),
    (rules.clock_readers, "from datetime import datetime\nx = datetime.fromisoformat('2030-01-01')"),
    (rules.clock_readers, "import time\ntime.sleep(1)"),
    (rules.clock_readers, "def f(clock):\n    return clock.now(), clock.time()"),
    (rules.task_starters, "owner.start(f(), 'name')"),
    (rules.task_starters, "def create_task(): ..."),
    (
        rules.dice_throwers,
        "import random\ndef f(chance: random.Random) -> float:\n    return chance.random()",
    ),
    (rules.dice_throwers, "from uuid import UUID\nx = UUID(int=1)"),
    (rules.printers, "console.print('x')"),
    (rules.swallowers, "try:\n    f()\nexcept Exception:\n    log.exception('f failed')"),
    (rules.swallowers, "try:\n    f()\nexcept KeyError:\n    pass"),
    (rules.swallowers, "import contextlib\nwith contextlib.suppress(KeyError):\n    f()"),
    (rules.sign_faults, '"""A room, and who may enter."""\n'),
    (rules.missing_docstring, '"""Says something."""\nx = 1'),
    (rules.front_door_faults, '"""Door."""\nfrom a import b as c\nX = 1\n__all__ = ["X", "c"]'),
    (rules.relative_imports, "from farro.client import errors"),
    (rules.query_faults, "-- Queries of the store.\n\n-- name: load\n-- One row.\nSELECT 1;\n"),
    (
        rules.query_faults,
        "-- fragment: columns\n-- The fields.\na, b\n-- name: load\n-- All.\nSELECT {columns}",
    ),
    (rules.query_faults, "-- name: load  the row of one grain\nSELECT 1;"),
    (rules.unfinished, "# the method of todos"),
]


def _ids(cases: list[tuple[Rule, str]]) -> list[str]:
    return [f"{rule.__name__}-{number}" for number, (rule, _) in enumerate(cases)]


@pytest.mark.parametrize(("rule", "source"), GUILTY, ids=_ids(GUILTY))
def test_a_rule_finds_a_planted_violation_and_says_where(rule: Rule, source: str) -> None:
    findings = rule(source)
    assert findings
    assert all(finding.partition(":")[0].isdigit() for finding in findings)


@pytest.mark.parametrize(("rule", "source"), INNOCENT, ids=_ids(INNOCENT))
def test_a_rule_leaves_the_innocent_neighbour_alone(rule: Rule, source: str) -> None:
    assert rule(source) == []


def test_importing_by_the_front_door_is_found_and_importing_a_file_is_not() -> None:
    rooms = frozenset({"farro.client", "farro.client.errors", "farro.silo", "farro.silo.grains"})
    guilty = "from farro.client import Client\nimport farro.silo\n"
    assert len(rules.front_door_users(guilty, rooms)) == 2
    innocent = (
        "from farro.client import errors\nfrom farro.client.errors import Fenced\nimport farro.silo.grains"
    )
    assert rules.front_door_users(innocent, rooms) == []


def test_a_machine_is_found_by_its_paths_and_hosts_and_not_by_parts_of_words() -> None:
    words = ["/somebody/", "registry.example"]
    assert rules.machine_traces("a = '/somebody/farro'\nb = 'https://registry.example/x'", words) == [
        "1: names '/somebody/'",
        "2: names 'registry.example'",
    ]
    assert rules.machine_traces("x/somebody/y and my-registry.example", words) == []
