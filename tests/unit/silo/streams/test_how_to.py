"""The code in the how-to runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from farro.silo.options import StreamOptions

PAGE = Path(__file__).parents[4] / "docs/how-to/use-streams.md"


def test_the_program_of_the_how_to_prints_what_it_is_about() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ,
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["shop/north lamp", "shop/south chair", "6800 ['lamp']"]


def test_the_how_to_lists_every_option() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [each.name for each in fields(StreamOptions) if f"`{each.name}`" not in text] == []
