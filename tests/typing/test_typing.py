"""Type checkers accept the documented usage and refuse a user's mistakes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="the type checker is in the lint group: make lint installs it")

ROOT = Path(__file__).resolve().parents[2]
MYPY = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]

MISTAKES = {
    "an argument of the wrong type": ("await shipment.dispatch(7)", 'has incompatible type "int"'),
    "an argument of the wrong type, to a method with a mark": (
        "await client.grain(Parcel, 'p').weigh('heavy')",
        'has incompatible type "str"',
    ),
    "an affinity that is no function": (
        "class Odd(Shipment, affinity=7): ...",
        'has incompatible type "int"',
    ),
    "a bound that is no number": (
        "stateless_worker(max_local='4')",
        "No overload variant",
    ),
    "a missing argument": ("await shipment.dispatch()", 'Missing positional argument "carrier_id"'),
    "an unknown method": ("await shipment.dispach('c')", 'has no attribute "dispach"'),
    "a result of the wrong type": ("n: int = await shipment.status()", 'variable has type "int"'),
    "a state field that is not there": ("shipment.state.colour", 'has no attribute "colour"'),
    "a duration that is a number": (
        "shipment.schedule(shipment.chase_carrier, 'c', after=60)",
        'has incompatible type "int"',
    ),
}

HEAD = """
from datetime import timedelta
from farro.client import Client
from farro.silo import stateless_worker
from tests.typing.usage import Parcel, Shipment

async def use(client: Client) -> None:
    shipment = client.grain(Shipment, "s-42")
    {mistake}
"""


def mypy(file: Path) -> str:
    done = subprocess.run([*MYPY, str(file)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_the_documented_usage_is_accepted_and_mistakes_are_refused_where_they_stand(tmp_path: Path) -> None:
    assert "Success" in mypy(ROOT / "tests" / "typing" / "usage.py")
    file = tmp_path / "mistakes.py"
    body = [textwrap.dedent(HEAD.split("    {mistake}")[0])]
    lines: dict[int, str] = {}
    for name, (code, _) in MISTAKES.items():
        body.append(f"    {code}\n")
        lines["".join(body).count("\n")] = name
    file.write_text("".join(body))
    said = mypy(file)
    for line, name in lines.items():
        expected = MISTAKES[name][1]
        found = [each for each in said.splitlines() if f"mistakes.py:{line}: error:" in each]
        assert any(expected in each for each in found), f"{name}: {found or said}"
