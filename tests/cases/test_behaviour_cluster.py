"""Public cases about clusters: who rings, who may commit, who is taken for dead.

Real silos in simulated processes, on one virtual time; a freeze is a SIGSTOP or a blocked loop, a crash a
SIGKILL.  Ids and facts: tests/cases/data/behaviour.jsonl.  The cases speak of etags and claims; the design's
fence is the partition's epoch, and a tick is consumed by the commit of its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from farro.client.errors import CallCycle, FarroError, GrainCallFailed
from farro.providers.members import SiloStatus
from tests.cases.simulated_scene import Chime, Hot, Run, Scene, scene

KEYS = [f"k{number}" for number in range(100)]
HOT = [f"h{number}" for number in range(100)]


def rung(made: Scene, times: int) -> Callable[[], bool]:
    """Have all chimes together been rung so often?"""
    return lambda: len(made.consumed()) >= times * len(KEYS)


def assert_each_took_effect_once(made: Scene) -> None:
    """Each occurrence from the first on was consumed by one commit, and counted once; none was left out."""
    consumed = made.consumed()
    assert set(consumed.values()) == {1}
    for key in KEYS:
        occurrences = sorted(occurrence for where, _, occurrence in consumed if where == key)
        assert occurrences == list(range(1, len(occurrences) + 1)), f"{key} missed one"
        assert made.count(Chime, key) == len(occurrences)


def repeated(made: Scene) -> list[Run]:
    """The runs of ticks whose code had begun before: each under the id that it had then."""
    seen: set[tuple[str, str]] = set()
    again = []
    for run in made.runs:
        if (run.key, run.what) in seen:
            again.append(run)
        seen.add((run.key, run.what))
    return again


# ---- CLU-002: nobody fails


def test_CLU_002_two_silos_deliver_each_tick_once_for_ten_minutes() -> None:
    with scene(2) as made:
        made.ring_all(KEYS, first_s=60, period_s=60)
        made.until(rung(made, 10), "ten ticks each", limit_s=700)
        assert set(made.ticks().values()) == {1}, "no code ran twice"
        assert sum(made.ticks().values()) == 10 * len(KEYS)
        assert_each_took_effect_once(made)
        shares = [sum(run.silo == silo.number for run in made.runs) for silo in made.silos]
        assert min(shares) > 2 * len(KEYS), "both of them do their part"
        assert made.deaths() == []


# ---- CLU-003: the membership changes while ticks are due


def joins(made: Scene) -> None:
    made.silos[2].start()


def joins_and_leaves(made: Scene) -> None:
    made.start(made.silos[2])
    made.silos[0].stop()


def crashes(made: Scene) -> None:
    made.silos[1].crash()


def freezes(made: Scene) -> None:
    made.silos[1].freeze()
    made.go_on(8)
    made.silos[1].thaw()


@pytest.mark.parametrize("change", [joins, joins_and_leaves, crashes, freezes])
def test_CLU_003_a_change_of_members_loses_no_tick_and_repeats_only_what_was_in_flight(
    change: Callable[[Scene], None],
) -> None:
    with scene(2, spare=1) as made:
        made.ring_all(KEYS, first_s=1, period_s=1, turn_s=0.2)
        made.until(rung(made, 2), "they ring")
        made.until(lambda: made.in_flight() > 10, "some are in flight")
        in_flight = made.in_flight()
        owners = [made.owned(silo) for silo in made.silos[:2]]
        change(made)
        made.until(lambda: made.settled(), "it has settled")
        made.go_on(20)
        assert [made.owned(silo) for silo in made.silos[:2] if silo.state == "up"] != owners
        assert_each_took_effect_once(made)
        again = repeated(made)
        assert len(again) <= in_flight
        if change in (joins, joins_and_leaves):
            assert again == [], "a planned move waits for the turns that run"


# ---- CLU-004: all were killed


@pytest.mark.parametrize("pause_s", [0.0, 0.5, 5.0, 600.0])
@pytest.mark.parametrize("place", [0, 3], ids=["same address", "new address"])
def test_CLU_004_after_a_kill_of_all_one_starts_soon_and_serves_everything(
    pause_s: float, place: int
) -> None:
    with scene(3, spare=1) as made:
        made.ring_all(KEYS[:10], first_s=1, period_s=1)
        ghosts = [silo.number for silo in made.silos[:3]]
        for silo in made.silos[:3]:
            silo.crash()
        made.go_on(pause_s)
        one = made.silos[place]
        assert made.start(one) < 15
        assert len(made.owned(one)) == 64
        assert one.number not in ghosts
        assert {made.status_of(ghost) for ghost in ghosts} == {SiloStatus.DEAD}
        before = len(made.runs)
        made.go_on(3)
        assert len({run.key for run in made.runs[before:]}) == 10, "all ring again"


def test_CLU_004_silos_that_hang_and_hold_their_locks_do_not_stop_a_start_either() -> None:
    with scene(3, spare=1) as made:
        for silo in made.silos[:3]:
            silo.freeze()
        one = made.silos[3]
        took_s = made.start(one)
        assert took_s + made.until(lambda: len(made.owned(one)) == 64, "it has taken over") < 15


# ---- CLU-006: who stood still is no witness


@pytest.mark.parametrize("frozen", [(0,), (0, 1), (0, 1, 2)], ids=["one", "two", "all"])
@pytest.mark.parametrize("stall_s", [5.0, 9.9, 15.0, 100.0])
def test_CLU_006_who_stood_still_evicts_nobody(frozen: tuple[int, ...], stall_s: float) -> None:
    with scene(3, lease_s=10) as made:
        numbers = [silo.number for silo in made.silos]
        for index in frozen:
            made.silos[index].freeze()
        made.go_on(stall_s)
        evicted_meanwhile = made.deaths()
        for index in frozen:
            made.silos[index].thaw()
        made.go_on(30)
        assert made.deaths() == evicted_meanwhile, "after the stall nobody was evicted"
        awake = {number for index, number in enumerate(numbers) if index not in frozen}
        assert not awake & set(evicted_meanwhile)
        if stall_s > 12 and awake:
            assert set(evicted_meanwhile) == set(numbers) - awake, "the others do evict who stands still"
        made.balanced()


def test_CLU_006_a_store_that_was_away_for_a_minute_costs_no_member() -> None:
    with scene(3) as made:
        made.cluster.store.stop()
        made.go_on(60)
        made.cluster.store.restart()
        made.go_on(30)
        assert made.deaths() == []
        made.balanced()


# ---- CLU-007: evicted, and awake again


@pytest.mark.parametrize("turn_s", [0.0, 0.3], ids=["between turns", "within turns"])
def test_CLU_007_an_evicted_silo_that_wakes_up_delivers_nothing_stale_and_joins_anew(turn_s: float) -> None:
    with scene(2) as made:
        sleeper, other = made.silos
        made.ring_all(KEYS, first_s=1, period_s=2, turn_s=turn_s)
        made.until(rung(made, 2), "they ring")
        if turn_s:
            made.until(lambda: made.in_flight() > 0, "turns are running")
        old = sleeper.number
        sleeper.freeze()
        made.until(lambda: len(made.owned(other)) == 64, "its reminders moved")
        made.until(rung(made, 6), "the other rings for it")
        assert made.status_of(old) is SiloStatus.DEAD
        runs = len(made.runs)
        sleeper.thaw()
        made.until(lambda: sleeper.number != old, "it has a new number")
        made.balanced()
        made.go_on(10)
        assert [run for run in made.runs[runs:] if run.silo == old] == [], "no code ran under the old number"
        assert any(run.silo == sleeper.number for run in made.runs[runs:]), "it does its part again"
        assert_each_took_effect_once(made)


def test_CLU_007_a_call_that_wakes_up_with_it_does_not_commit_over_the_new_owner() -> None:
    with scene(2) as made:
        sleeper, other = made.silos
        key = next(key for key in HOT if made.lives_on(sleeper, key))

        async def call(silo: int, turn_s: float) -> int | str:
            try:
                return int(await made.call(made.silos[silo], Hot, key, "add", turn_s))
            except FarroError as error:
                return error.code

        assert made.ask(call(1, 0.0)) == 1
        late = made.client.loop.create_task(call(0, 1.0))
        made.until(lambda: len(made.runs) == 2, "the turn has begun")
        sleeper.freeze()
        made.until(lambda: len(made.owned(other)) == 64, "all is the other's")
        assert made.ask(call(1, 0.0)) == 2, "what had not committed does not exist"
        sleeper.thaw()
        made.until(late.done, "the sleeper's turn has ended")
        assert late.result() != 2, "two turns cannot have been the second"
        made.balanced()
        assert made.ask(call(0, 0.0)) == made.ask(call(1, 0.0)) - 1 >= 3
        assert made.count(Hot, key) == sum(run.what == "add" for run in made.runs) - (
            0 if isinstance(late.result(), int) else 1
        )


# ---- CLU-008: a silo joins under load


def test_CLU_008_a_silo_joins_under_load_and_no_grain_is_awake_twice() -> None:
    with scene(2, spare=1) as made:
        done = False
        answers: dict[str, list[int]] = {key: [] for key in HOT}

        async def call_on(key: str) -> None:
            silos = made.silos[:2]
            while not done:
                where = silos[len(answers[key]) % 2]
                answers[key].append(await made.call(where, Hot, key, "add", 0.01))
                await asyncio.sleep(0.2)

        tasks = [made.client.loop.create_task(call_on(key)) for key in HOT]
        made.until(lambda: all(answers.values()), "all are hot")
        made.start(made.silos[2])
        while not made.settled():  # partitions move
            made.go_on(0.01)
            assert all(len(made.awake(key)) <= 1 for key in HOT)
        for _ in range(50):
            made.go_on(0.05)
            assert all(len(made.awake(key)) <= 1 for key in HOT)
        assert any(run.silo == made.silos[2].number for run in made.runs), "the new one serves"
        done = True
        made.until(lambda: all(task.done() for task in tasks), "all callers end")
        assert [task.exception() for task in tasks] == [None] * len(tasks), "no call failed"
        for key in HOT:
            assert answers[key] == list(range(1, len(answers[key]) + 1)), "each call counted, in order"
            assert made.count(Hot, key) == len(answers[key])


# ---- activations in a cluster


def test_ACT_008_on_activate_runs_once_for_fifty_first_calls_by_two_silos() -> None:
    with scene(2) as made:

        async def all_at_once(key: str) -> list[int]:
            calls = (made.call(made.silos[number % 2], Hot, key, "instance") for number in range(50))
            return list(await asyncio.gather(*calls))

        for key in HOT[:10]:
            assert len(set(made.ask(all_at_once(key)))) == 1
        assert sorted(Hot.woken) == sorted(HOT[:10])


def test_ACT_009_a_failing_on_activate_on_another_silo_says_why_and_leaves_no_zombie() -> None:
    with scene(2) as made:
        first, second = made.silos
        key = next(key for key in HOT if made.lives_on(second, key))
        Hot.failures_left = 2
        for left in (1, 0):
            with pytest.raises(GrainCallFailed, match=f"OSError: not yet, {left} more"):
                made.ask(made.call(first, Hot, key, "add"))
            assert made.awake(key) == []
        assert made.ask(made.call(first, Hot, key, "add")) == 1
        assert made.awake(key) == [second.number]


def test_ACT_001_a_cycle_across_silos_prints_its_chain_at_once() -> None:
    with scene(2) as made:
        here, there = (next(key for key in HOT if made.lives_on(silo, key)) for silo in made.silos)
        began = made.now_s
        chain = rf"hot/{here}\.pass_on -> hot/{there}\.pass_on -> hot/{here}\.pass_on"
        with pytest.raises(CallCycle, match=chain):
            made.ask(made.call(made.silos[0], Hot, here, "pass_on", [there, here]))
        assert made.now_s - began < 1


def test_ACT_014_no_message_is_lost_while_a_grain_falls_asleep_and_its_silo_changes() -> None:
    with scene(2, spare=1) as made:
        results: list[int] = []

        async def call_on(number: int) -> None:
            for turn in range(100):
                silo = made.silos[(number + turn) % 2]
                results.append(await made.call(silo, Hot, HOT[0], "add_and_sleep"))
                await asyncio.sleep(0.05 * number)

        tasks = [made.client.loop.create_task(call_on(number)) for number in range(1, 6)]
        made.until(lambda: len(results) > 50, "they are called")
        made.start(made.silos[2])
        made.until(lambda: all(task.done() for task in tasks), "all have been answered", limit_s=200)
        assert [task.exception() for task in tasks] == [None] * len(tasks)
        assert sorted(results) == list(range(1, 501))
        moved = [run.silo for run in made.runs]
        assert len(Hot.woken) > 10
        assert sum(one != two for one, two in pairwise(moved)) <= 1, "never here and there in turns"
