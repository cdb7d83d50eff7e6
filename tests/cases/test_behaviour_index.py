"""Every public behaviour case is tested here, or said to be at home elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent

ELSEWHERE = {
    # reminders: management, declared reminders and measuring the machine have rooms and tests of their own
    "REM-032": "declared reminders",
    "REM-069": "management",
    "REM-070": "management",
    "REM-072": "management",
    "CLU-013": "machine load",
    # activations
    "ACT-005": "streams: delivery is not awaited",
    "ACT-013": "grain timers",
    "ACT-015": "tests/unit/silo/activations/test_stopping.py",
    "ACT-016": "tests/unit/silo/activations/test_stopping.py",
    # stores
    "STO-001": "the SQLite provider",
    "STO-004": "the SQLite provider",
    "STO-006": "the PostgreSQL provider",
    "STO-008": "the PostgreSQL provider",
    "STO-010": "the PostgreSQL provider",
    "STO-011": "conformance: versions, not etags",
    "STO-015": "the PostgreSQL provider",
    "STO-017": "conformance and the query plans of each provider",
    "STO-019": "the Redis provider",
    "STO-020": "the Redis provider",
    "SEC-003": "the gateway, and tests/unit/silo/activations/test_calls.py",
}
OTHER_ROOMS = re.compile(r"(TRA|SER|CLU|SEC|CLI)-\d{3}")  # client, gateway, cluster, command line
TESTED_THERE = {"TRA-008", "TRA-009", "TRA-010", "SER-007", "SER-008", "SEC-010"}


def test_every_case_has_a_test_or_a_home() -> None:
    cases = [
        json.loads(line)["id"] for line in (HERE / "data/behaviour.jsonl").read_text("utf-8").splitlines()
    ]
    text = "".join(
        path.read_text("utf-8")
        for path in HERE.glob("test_behaviour_*.py")
        if path.name != Path(__file__).name
    )
    tested = {f"{area}-{number}" for area, number in re.findall(r"\b(?:test_)?([A-Z]{3})[_-](\d{3})", text)}
    open_cases = [
        each
        for each in cases
        if each not in tested
        and each not in ELSEWHERE
        and (not OTHER_ROOMS.fullmatch(each) or each in TESTED_THERE)
    ]
    assert open_cases == []
    assert len(cases) == len(set(cases)) == 117
