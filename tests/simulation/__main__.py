"""``python -m tests.simulation SEED``: replays one seed of the simulation and tells its story.

``--planted NAME`` switches one planted bug on; ``--seeds N`` runs N seeds from SEED on, in silence, until one
fails.  Status 1: an invariant does not hold.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.planted import PLANTED, planted
from tests.simulation.running import Verdict, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--planted", choices=sorted(PLANTED), default=None)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--keep-going", action="store_true")
    given = parser.parse_args(arguments)
    bug = None if given.planted is None else planted(given.planted)
    began = time.perf_counter()
    status = 0
    for seed in range(given.seed, given.seed + given.seeds):
        quiet = given.seeds > 1
        verdict = run(seed, bug, listener=None if quiet else print, digest=not quiet)
        if verdict.findings:
            status = 1
            _report(verdict, given.planted)
            if not given.keep_going:
                break
        elif not quiet:
            print(verdict.figures, verdict.digest)
    print(f"{time.perf_counter() - began:.1f} s")
    return status


def _report(verdict: Verdict, bug: str | None) -> None:
    print(f"seed {verdict.seed}: {verdict.figures}")
    for finding in verdict.findings:
        print("  " + finding)
    print(replay_line(verdict.seed, bug))


def replay_line(seed: int, bug: str | None = None) -> str:
    """The one command that shows it again."""
    return f"python -m tests.simulation {seed}" + (f" --planted {bug}" if bug else "")


if __name__ == "__main__":
    sys.exit(main())
