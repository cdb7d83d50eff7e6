"""``python -m tests.simulation SEED``: replays one seed of the simulation and tells its story.

``--planted NAME`` switches a planted bug on.  ``--digest`` prints nothing but the digest of the commit log.
``--seeds N`` runs N seeds from SEED on and tells of those that fail; ``--search`` looks, from SEED on and at
most N seeds far, for the first seed that finds each planted bug.  Status 1: an invariant does not hold, or a
planted bug was not found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from farro.silo.cli.failing import end_by_sigpipe
from tests.simulation.planted import planted
from tests.simulation.planting import PLANTED
from tests.simulation.running import Bug, Verdict, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--planted", choices=sorted(PLANTED), metavar="NAME", default=None)
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--search", action="store_true")
    given = parser.parse_args(arguments)
    if given.digest:
        print(run(given.seed, digest=True).digest)
        return 0
    if given.search:
        return _search(given.seed, given.seeds)
    if given.seeds > 1:
        return _many(range(given.seed, given.seed + given.seeds), given.planted)
    verdict = run(given.seed, _bug(given.planted), listener=_tell, digest=True)
    print(f"{verdict.figures} {verdict.digest}")
    return _told(verdict, given.planted)


def _tell(line: str) -> None:
    """A line of the story; told from inside of what is simulated, where an error would be a finding."""
    try:
        print(line)
    except BrokenPipeError:
        end_by_sigpipe()


def _bug(name: str | None) -> Bug | None:
    return None if name is None else planted(name)


def _told(verdict: Verdict, bug: str | None) -> int:
    if not verdict.findings:
        return 0
    print(f"seed {verdict.seed}:", *verdict.findings, replay_line(verdict.seed, bug), sep="\n  ", flush=True)
    return 1


def replay_line(seed: int, bug: str | None = None) -> str:
    """The one command that shows it again."""
    return f"python -m tests.simulation {seed}" + (f" --planted {bug}" if bug else "")


def _one(seed: int, bug: str | None) -> Verdict:
    return run(seed, _bug(bug))


def _many(seeds: range, bug: str | None) -> int:
    began, status = time.perf_counter(), 0
    ticks = commits = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(partial(_one, bug=bug), seeds, chunksize=4):
            status |= _told(verdict, bug)
            ticks += verdict.figures["ticks"]
            commits += verdict.figures["log"]
    took_s = time.perf_counter() - began
    print(f"{len(seeds):,} seeds, {ticks:,} ticks, {commits:,} log entries in {took_s:.0f} s")
    return status


def _first_seed(name: str, seeds: range) -> tuple[str, int, str]:
    for seed in seeds:
        if findings := run(seed, planted(name)).findings:
            return name, seed, findings[0]
    return name, 0, f"not within {len(seeds)} seeds"


def _search(first: int, most: int) -> int:
    found: dict[str, int] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        searches = [pool.submit(_first_seed, name, range(first, first + most)) for name in PLANTED]
        for search in as_completed(searches):
            name, seed, finding = search.result()
            print(f"{seed:5d}  {name}: {finding}", flush=True)
            found[name] = seed
    return int(0 in found.values())


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        end_by_sigpipe()
    sys.exit(code)
