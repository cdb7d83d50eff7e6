"""A short chaos run on each store, and the proof that what it found would have been found missing.

``make chaos MINUTES=…`` runs longer ones; see ``tests/cluster/chaos.py``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.chaos import Setting, episode
from tests.cluster.checker import check
from tests.cluster.faults import Kind
from tests.cluster.history import History
from tests.cluster.workload import MARGIN_S, Load

SMALL = Load(callers=8, think_s=0.1, chimes=40, ticks_each=40)
# Linux alone lets a running process's files be limited, which is the full disk
KINDS = frozenset(Kind) if sys.platform == "linux" else frozenset(Kind) - {Kind.FILL_DISK}

pytestmark = [pytest.mark.serial, pytest.mark.service, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("store", "seed", "seconds"),
    [pytest.param("postgres", 11, 40.0, id="postgres"), pytest.param("sqlite", 11, 25.0, id="sqlite")],
)
async def test_nothing_is_lost_doubled_or_stale_while_everything_goes_wrong(
    tmp_path: Path, store: str, seed: int, seconds: float
) -> None:
    report = await episode(Setting(seed, seconds, places=3, store=store, load=SMALL, kinds=KINDS), tmp_path)
    assert report.proven, str(report)
    assert report.faults.total() >= seconds / 4, "the plan was carried out"
    assert sum(each.ok for each in report.history.made) > 100 and report.ticks > 100, str(report)
    assert report.stored is not None
    ok = next(each for each in report.history.made if each.ok and not each.relayed)
    told_more = History([*report.history.made, replace(ok, call=-1), replace(ok, place=None, turn_ran=False)])
    worse = check(told_more, report.stored, margin_s=MARGIN_S)
    assert (len(worse.lost), len(worse.ran_after_all)) == (1, 1), "the evidence was read"
    if store == "postgres":
        assert report.stored.commits is not None
        assert len({commit.by for commit in report.stored.commits}) >= 3, "several processes have committed"
