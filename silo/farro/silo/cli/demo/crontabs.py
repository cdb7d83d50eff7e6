"""Lines of real crontabs and workflow files, with the next instants that two other libraries agree on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files

FILE = "crontabs.jsonl"


@dataclass(frozen=True, slots=True)
class CrontabLine:
    """``expression`` as found in ``source``; ``recorded`` are its first instants after ``recorded_after``."""

    key: str
    expression: str
    source: str
    recorded_after: datetime
    recorded: tuple[datetime, ...]


def crontab_lines() -> list[CrontabLine]:
    """Every line of the data file, with a grain key for each."""
    text = files("farro.silo.cli.demo").joinpath(FILE).read_text(encoding="utf-8")
    return [_line(place, json.loads(row)) for place, row in enumerate(text.splitlines(), 1)]


def _line(place: int, row: dict[str, object]) -> CrontabLine:
    recorded = row["next"]
    assert isinstance(recorded, list)
    return CrontabLine(
        key=f"line-{place:03}",
        expression=str(row["expr"]),
        source=str(row["source"]),
        recorded_after=datetime.fromisoformat(str(row["start"])),
        recorded=tuple(datetime.fromisoformat(each) for each in recorded),
    )
