"""Every public behaviour case is a test: by its id, or named here; what is not built is named too."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent

UNDER_ANOTHER_NAME = {
    "ACT-015": [
        "unit/silo/activations/test_stopping.py::test_no_loop_of_the_runtime_is_lost_to_the_garbage_collector"
    ],
    "ACT-016": [
        "unit/silo/activations/test_stopping.py::test_stop_ends_within_its_limit_with_500_calls_inside_their_timeouts"
    ],
    "STO-006": ["unit/providers/test_postgres_fence.py::test_edge_instants_survive_in_any_session_time_zone"],
    "STO-017": [
        "unit/providers/test_postgres_plans.py::test_a_poll_is_one_index_range_in_its_order",
        "unit/providers/sqlite/test_queries.py::test_a_poll_is_one_range_of_its_index",
    ],
}
"""Tests that have a better name where they live."""

NOT_BUILT = {
    "ACT-013": "grain timers: this version has reminders only, and no start_timer",
    "TRA-011": "calls from grains to clients: clients read streams instead",
}
"""Cases about what this version does not have.  It must not have a word for it either: see below."""


@cache
def functions(path: Path) -> dict[str, str]:
    """The tests of a file, each with the source of its marks."""
    text = path.read_text("utf-8")
    return {
        node.name: " ".join(ast.get_source_segment(text, mark) or "" for mark in node.decorator_list)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    }


def ids_of_tests() -> set[str]:
    """The ids in the names of tests, and in their parameters."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for name, marks in functions(path).items():
            found |= {each.upper().replace("_", "-") for each in re.findall(r"[A-Za-z]{3}_\d{3}(?!\d)", name)}
            found |= set(re.findall(r"\b[A-Z]{3}-\d{3}\b", marks))
    return found


def cases() -> list[str]:
    return [
        json.loads(line)["id"] for line in (HERE / "data/behaviour.jsonl").read_text("utf-8").splitlines()
    ]


def test_every_case_has_a_test() -> None:
    known = ids_of_tests() | UNDER_ANOTHER_NAME.keys()
    assert set(cases()) - known == set(NOT_BUILT)
    assert len(cases()) == len(set(cases())) == 117


def test_the_tests_that_are_named_here_exist() -> None:
    for names in UNDER_ANOTHER_NAME.values():
        for name in names:
            path, _, function = name.partition("::")
            assert function in functions(TESTS / path), name


def test_what_is_said_not_to_be_built_is_not_there() -> None:
    from farro.silo.grains.grain import Grain

    assert not [name for name in dir(Grain) if "timer" in name or "observ" in name], "make its cases tests"
