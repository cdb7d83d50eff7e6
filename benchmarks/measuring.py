"""What every benchmark shares: a plan that comes in, measures that go out, and the order of the slices.

Absolute figures move by a factor of two from hour to hour, so a figure is a ratio taken in one run: the thing
and its limit probe take turns (A B B A …), each round gives one ratio, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter, process_time
from typing import Any

Slice = Callable[[], Awaitable[float]]
Run = Callable[["Plan"], Coroutine[Any, Any, "Result"]]

SMOKE_SECONDS = 0.1
SECONDS = 1.0
ROUNDS = 5


def nobody(done: float) -> None:
    """Hears nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how big.  ``seconds``: of one slice; ``report`` hears how much is done, from 0 to 1.

    ``smoke`` shrinks everything to a proof that it runs and counts right; its figures mean nothing.
    """

    seconds: float = SECONDS
    rounds: int = ROUNDS
    smoke: bool = False
    report: Callable[[float], None] = nobody

    def size(self, full: int, smoke: int) -> int:
        return smoke if self.smoke else full


def smoke_plan(report: Callable[[float], None] = nobody) -> Plan:
    return Plan(seconds=SMOKE_SECONDS, rounds=1, smoke=True, report=report)


@dataclass(frozen=True, slots=True)
class Goal:
    """What to reach.  ``of_value``: the bound is on the value, not on its ratio to the probe."""

    bound: float
    at_most: bool = False
    of_value: bool = False
    later: float | None = None  # a bound that is aimed at, and not claimed yet

    def met_by(self, figure: float) -> bool:
        return figure <= self.bound if self.at_most else figure >= self.bound

    def text(self, unit: str) -> str:
        sign = "≤" if self.at_most else "≥"
        after = f" {unit}" if self.of_value else ""
        later = f" (later {self.later:g})" if self.later is not None else ""
        return f"{sign} {self.bound:g}{after}{later}"


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table.  ``ratio`` is value to probe; ``spread`` its lowest and highest round."""

    name: str
    value: float
    unit: str
    probe: float | None = None
    probe_name: str = ""
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        """None: there is no goal."""
        if self.goal is None:
            return None
        figure = self.value if self.goal.of_value or self.ratio is None else self.ratio
        return self.goal.met_by(figure)


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark found.  ``facts`` are counts that show what was done."""

    name: str
    title: str
    measures: tuple[Measure, ...]
    facts: dict[str, float] = field(default_factory=dict)

    def as_object(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = asdict(self)
        for each, measure in zip(plain["measures"], self.measures, strict=True):
            each["met"] = measure.met
            each["goal"] = measure.goal.text(measure.unit) if measure.goal is not None else None
        return plain


@dataclass(frozen=True, slots=True)
class Rounds:
    """The figures of a thing and of its probe, round by round."""

    things: tuple[float, ...]
    probes: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(
            thing / probe if probe else float("inf")
            for thing, probe in zip(self.things, self.probes, strict=True)
        )

    def measure(self, name: str, unit: str, probe_name: str, goal: Goal | None = None) -> Measure:
        ratios = self.ratios
        return Measure(
            name=name,
            value=median(self.things),
            unit=unit,
            probe=median(self.probes),
            probe_name=probe_name,
            ratio=median(ratios),
            spread=(min(ratios), max(ratios)) if len(ratios) > 1 else None,
            goal=goal,
        )


async def in_turns(plan: Plan, thing: Slice, probe: Slice, *, part: tuple[float, float] = (0, 1)) -> Rounds:
    """Run ``thing`` and ``probe`` by turns, ``plan.rounds`` times each; every other round the probe begins.

    ``part``: which stretch of the benchmark's progress this is.
    """
    begin, end = part
    things: list[float] = []
    probes: list[float] = []
    for number in range(plan.rounds):
        order = [(thing, things), (probe, probes)]
        for half, (run, figures) in enumerate(order if number % 2 == 0 else reversed(order), 1):
            figures.append(await run())
            plan.report(begin + (end - begin) * (number + half / 2) / plan.rounds)
    return Rounds(tuple(things), tuple(probes))


async def hammer(call: Callable[[int, int], Awaitable[Any]], in_flight: int, seconds: float) -> float:
    """Calls per second with that many callers, each waiting for its answer before it calls again.

    ``call`` gets the number of its caller and how many calls that caller has made.  What it raises ends all.
    """
    begun = perf_counter()
    until = begun + seconds

    async def caller(number: int) -> int:
        made = 0
        while perf_counter() < until:
            await call(number, made)
            made += 1
        return made

    counts = await asyncio.gather(*(caller(number) for number in range(in_flight)))
    return sum(counts) / (perf_counter() - begun)


def with_cpu(run: Slice, costs: list[float]) -> Slice:
    """``run``, a rate, and in ``costs`` the CPU microseconds of this process (all threads) per unit.

    On a crowded machine that says more than the rate: who waits for a core pays nothing meanwhile.
    """

    async def measured() -> float:
        begun, cpu = perf_counter(), process_time()
        rate = await run()
        units = rate * (perf_counter() - begun)
        costs.append((process_time() - cpu) * 1e6 / max(1.0, units))
        return rate

    return measured


def percentile(figures: list[float], share: float) -> float:
    """The nearest-rank percentile; ``share`` from 0 to 1."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---- one benchmark from the command line


def number_text(figure: float) -> str:
    """Three digits that mean something."""
    if abs(figure) >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.3g}"


def ratio_text(measure: Measure) -> str:
    """The ratio, and how far the rounds lie apart; empty when nothing was compared."""
    if measure.ratio is None:
        return ""
    text = f"{measure.ratio:.2f}"
    return text if measure.spread is None else f"{text} ({measure.spread[0]:.2f} to {measure.spread[1]:.2f})"


def lines_of(result: Result, *, smoke: bool = False) -> list[str]:
    """The result as plain text."""
    lines = [result.title]
    for each in result.measures:
        parts = [f"  {each.name}: {number_text(each.value)} {each.unit}"]
        if each.probe is not None:
            parts.append(f"{each.probe_name} {number_text(each.probe)}")
        if each.ratio is not None:
            parts.append(f"ratio {ratio_text(each)}")
        if each.goal is not None:
            verdict = "" if smoke else (" met" if each.met else " not met")
            parts.append(f"goal {each.goal.text(each.unit)}{verdict}")
        lines.append(" · ".join(parts))
    if result.facts:
        lines.append("  " + ", ".join(f"{name} {number_text(value)}" for name, value in result.facts.items()))
    return lines


def main(run: Run, description: str | None) -> None:
    """``python -m benchmarks.NAME``."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one slice, default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--smoke", action="store_true", help="only prove that it runs")
    options = parser.parse_args()
    plan = smoke_plan() if options.smoke else Plan(options.seconds, options.rounds)
    result = asyncio.run(run(plan))
    sys.stdout.write("\n".join(lines_of(result, smoke=options.smoke)) + "\n")
