"""One reminder that always fails, or cannot be read, and the others: each fires at the very same instant.

Every world runs twice on virtual time, without the bad neighbour and with it; the fire instants of everybody
else must be identical.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from farro.client.codec import Codec
from farro.providers.rows import ReminderRow
from farro.silo.testing.virtual_time import VirtualClock, run_virtual
from tests.unit.silo.kit import ONE_PERMIT, Bell, World, bell_row, reminder_options, s

MINUTE = timedelta(minutes=1)
GOOD = 40

BAD: dict[str, dict[str, Any]] = {
    "its grain always raises": {},
    "its arguments fit no parameter": {"args": Codec(None).pack_wire([[1, 2, 3], {"nobody": 1}])},
    "its arguments are no bytes of ours": {"args": b"\xc1\xff"},
    "its arguments are cut off": {"args": b"\xdd\xff\xff\xff\xff"},
    "its arguments are something else": {"args": b"\x2a"},
    "its cron text is garbage": {"cron": "garbage", "period_us": None},
    "its cron never fires": {"cron": "0 0 0 30 2 *", "period_us": None},
    "its zone is unknown": {"cron": "0 * * * * *", "timezone": "Mars/X", "period_us": None},
    "its day_match is unknown": {"cron": "0 * * * * *", "day_match": "xor", "period_us": None},
    "its period is zero": {"period_us": 0},
    "its period is negative": {"period_us": -60_000_000},
    "its priority is unknown": {"priority": 99},
    "its priority is negative": {"priority": -1},
    "its action is unknown": {"action": 42},
    "its type is unknown": {"grain_type": "removed"},
    "its operation is unknown": {"operation": "renamed"},
    "its name is hostile": {"name": "ring:x\nERROR fake line\x1b[31m", "action": 42},
    "it owes nothing": {"next_due_at": None, "wake_at": None},
    "it owes nothing and is polled": {"next_due_at": None},
    "its instants are far away": {"next_due_at": -(1 << 62), "start_at": -(1 << 62)},
    "its counters are full": {"missed_count": (1 << 63) - 1, "occurrence": (1 << 63) - 1},
    "its jitter is negative": {"jitter_us": -5},
    "it never ran and has no tries left": {"attempts": 1 << 40},
}


def bad_row(what: str, due_at: datetime, number: int = 0) -> ReminderRow:
    fields: dict[str, Any] = {"period_us": 60_000_000, **BAD[what]}
    return bell_row(f"bad{number}", due_at, **fields)


async def world_with(clock: VirtualClock, bad: ReminderRow | None) -> dict[str, list[float]]:
    """The fire instants of the good ones over ten minutes, in seconds since the start."""

    def handle(bell: Bell) -> None:
        if bell.key.startswith("bad"):
            raise OSError("always")

    start = clock.at()
    world = World(clock, handler=handle, options=reminder_options(base_bucket_size=64))
    async with world.up() as silo:
        rows = [
            bell_row(f"k{n}", start + s(40 + n % 7), period=s(20 + n), priority=n % 3, action=n % 4)
            for n in range(GOOD)
        ]
        await world.write(*([bad] if bad is not None else []), *rows)
        assert silo.rooms.reminders is not None
        silo.rooms.reminders.poll_soon()
        await asyncio.sleep(600)
    fired: dict[str, list[float]] = {}
    for rung in world.rungs:
        if rung.key.startswith("k"):
            fired.setdefault(rung.key, []).append((rung.fired_at - start).total_seconds())
    return fired


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[float]]:
    return run_virtual(lambda clock: world_with(clock, None))


def test_the_undisturbed_world_rings_every_bell(undisturbed: dict[str, list[float]]) -> None:
    assert len(undisturbed) == GOOD
    assert sum(map(len, undisturbed.values())) > 500


@pytest.mark.parametrize("what", BAD)
def test_no_other_reminder_is_later_because(what: str, undisturbed: dict[str, list[float]]) -> None:
    async def disturbed(clock: VirtualClock) -> dict[str, list[float]]:
        bad = bad_row(what, clock.at() + s(41))
        return await world_with(clock, bad)

    assert run_virtual(disturbed) == undisturbed


@pytest.mark.parametrize(
    "what", ["its grain always raises", "its arguments are no bytes of ours", "its type is unknown"]
)
def test_a_crowd_of_bad_neighbours_costs_one_permit_and_no_more(what: str) -> None:
    """A hundred of them due at the same time, and a single permit."""

    async def crowded(clock: VirtualClock) -> list[float]:
        def handle(bell: Bell) -> None:
            if bell.key.startswith("bad"):
                raise OSError("always")

        start = clock.at()
        world = World(clock, handler=handle, options=reminder_options(**ONE_PERMIT, base_bucket_size=16))
        async with world.up():
            await world.write(*(bad_row(what, start + s(40), n) for n in range(100)))
            await world.write(*(bell_row(f"k{n}", start + s(40), period=MINUTE) for n in range(20)))
            await asyncio.sleep(110)
        return [(rung.fired_at - rung.due_at).total_seconds() for rung in world.rungs if rung.key[0] == "k"]

    late = run_virtual(crowded)
    assert len(late) == 20 + 20
    assert max(late) < 1.0
