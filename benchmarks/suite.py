"""All benchmarks by name, and what a run leaves behind: JSON, and a chart where matplotlib is installed."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from benchmarks.measuring import Measure, Plan, Result, Run, number_text, ratio_text, smoke_plan
from farro.client.clock import SystemClock, from_us

NAMES = (
    "local_calls",
    "calls",
    "durable_turns",
    "ticks",
    "lateness",
    "start",
    "poll",
    "priority",
    "backlog",
    "bucket",
    "idle",
)

__all__ = [
    "NAMES",
    "Plan",
    "Result",
    "environment",
    "load",
    "number_text",
    "ratio_text",
    "smoke_plan",
    "write_chart",
    "write_json",
]


def load(name: str) -> Run:
    """The ``run`` of one benchmark."""
    return cast(Run, import_module(f"benchmarks.{name}").run)


def environment() -> dict[str, Any]:
    """What figures depend on."""
    return {
        "farro": version("farro"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "sqlite": sqlite3.sqlite_version,
        "load": os.getloadavg()[0] if sys.platform != "win32" else None,
        "at": from_us(SystemClock().now()).isoformat(timespec="seconds"),
    }


def write_json(path: Path, results: list[Result], plan: Plan, before: dict[str, Any]) -> None:
    """One object: environment (taken before the run), plan, and every result with its measures.

    What a smoke run measured meets no goal and misses none.
    """
    plain = [result.as_object() for result in results]
    if plan.smoke:
        for measure in (measure for result in plain for measure in result["measures"]):
            measure["met"] = None
    document = {
        **before,
        "smoke": plan.smoke,
        "seconds": plan.seconds,
        "rounds": plan.rounds,
        "results": plain,
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def write_chart(path: Path, results: list[Result]) -> bool:
    """An SVG of every ratio that has a goal, as a share of the goal.  False: matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    import_module("matplotlib").use("Agg")
    plot = import_module("matplotlib.pyplot")
    bars = [
        (f"{result.name}: {measure.name}", share)
        for result in reversed(results)
        for measure in reversed(result.measures)
        if (share := share_of_goal(measure)) is not None
    ]
    figure, axes = plot.subplots(figsize=(9, 1 + 0.35 * len(bars)))
    colours = ["tab:green" if share >= 1 else "tab:orange" for _, share in bars]
    axes.barh([name for name, _ in bars], [min(share, 3) for _, share in bars], color=colours)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("share of the goal reached (1 = met, cut off at 3)")
    figure.tight_layout()
    figure.savefig(path, format="svg")
    plot.close(figure)
    return True


def share_of_goal(measure: Measure) -> float | None:
    """1 is just met, 2 is twice as good; None without a goal."""
    if measure.goal is None:
        return None
    figure = measure.value if measure.goal.of_value or measure.ratio is None else measure.ratio
    if not measure.goal.at_most:
        return figure / measure.goal.bound
    return measure.goal.bound / figure if figure > 0 else 3.0
