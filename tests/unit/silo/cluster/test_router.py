"""The router: forwarded, held, routed anew, refused; over pipes and on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from farro.client.errors import (
    CallCancelled,
    CallCycle,
    CallTimeout,
    GrainCallFailed,
    NotMine,
    Overloaded,
    SiloStopping,
    SiloUnavailable,
)
from farro.silo.placement import OnSilo
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.cluster.routing import cluster, key_in, rounds_until, silos, until

ALL = list(range(8))
EVEN, ODD = [0, 2, 4, 6], [1, 3, 5, 7]


async def test_a_call_goes_to_the_owner_and_its_answer_comes_back_as_it_was(virtual: VirtualClock) -> None:
    async with silos(EVEN, ODD) as (one, two):
        assert await one.ask(key_in(1), "echo", {"a": [1, None]}) == {"a": [1, None]}
        assert await two.ask(key_in(2), "echo", "x") == "x"
        assert await one.ask(key_in(2), "echo", "here") == "here"
        assert (one.router.figures().forwarded, two.router.figures().forwarded) == (1, 1)
        assert two.seen[0].forwarded and not two.seen[0].external


async def test_errors_come_back_with_class_and_flags(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, _):
        with pytest.raises(GrainCallFailed) as failed:
            await one.ask("x", "fail")
        assert (failed.value.remote_type, failed.value.turn_ran) == ("ValueError", False)


async def test_what_is_forwarded_is_the_time_that_remains_and_the_chain(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, two):
        chain = (("echo", "0", "m", True), ("echo", "1", "n", False))
        asked = one.ask("x", "hold", timeout=3.0, chain=chain)
        await until(lambda: two.held)
        (call,) = two.seen
        assert call.chain == chain
        loop = asyncio.get_running_loop()
        assert 2.9 < call.deadline - loop.time() <= 3.0
        with pytest.raises(CallTimeout) as late:
            await asked
        assert late.value.turn_ran is None


async def test_a_call_without_an_owner_waits_for_the_map_that_names_one(virtual: VirtualClock) -> None:
    async with silos([], []) as (one, two):
        asked = one.ask(key_in(3), "echo", "x")
        assert not asked.done
        assert one.router.held == 1
        assert one.router.held_partitions() == {3}
        two.own(*ALL)
        for silo in (one, two):
            silo.update(cluster(2, [2] * 8, 1, 2))
        assert await asked == "x"
        assert one.router.held == 0


async def test_a_call_waits_until_its_partition_is_taken_here(virtual: VirtualClock) -> None:
    async with silos([], []) as (one, _):
        asked = one.ask(key_in(3), "echo", "x")
        other = one.ask(key_in(4), "echo", "y")
        one.own(3)
        assert await asked == "x"
        assert not other.done
        assert one.router.held_partitions() == {4}


async def test_what_closes_is_held_and_goes_on_here_or_at_the_next_owner(virtual: VirtualClock) -> None:
    async with silos(ALL, []) as (one, two):
        one.ownership.close([3, 5])
        stays, moves = one.ask(key_in(3), "echo", "stays"), one.ask(key_in(5), "echo", "moves")
        assert not stays.done and not moves.done
        one.ownership.drop([3, 5])
        two.own(5)
        one.own(3)
        assert await stays == "stays"
        one.update(cluster(2, [1, 1, 1, 1, 1, 2, 1, 1]))
        assert await moves == "moves"
        assert [call.args for call in two.seen] == [["moves"]]


async def test_a_call_that_gets_no_owner_before_its_deadline_never_ran(virtual: VirtualClock) -> None:
    async with silos([], []) as (one, _):
        loop = asyncio.get_running_loop()
        began = loop.time()
        later = one.ask(key_in(1), timeout=3.0)
        asked = one.ask(key_in(1), timeout=1.0)
        with pytest.raises(CallTimeout) as late:
            await asked
        assert (late.value.turn_ran, late.value.retry_safe) == (False, True)
        assert loop.time() - began == pytest.approx(1.0, abs=0.01)
        assert not later.done
        with pytest.raises(CallTimeout):
            await later
        assert loop.time() - began == pytest.approx(3.0, abs=0.01)
        with pytest.raises(CallTimeout):
            await one.ask(key_in(1), timeout=-1.0)


async def test_more_than_the_bound_is_overloaded_at_once(virtual: VirtualClock) -> None:
    async with silos([], [], held_max=2) as (one, _):
        kept = [one.ask(key_in(partition)) for partition in (1, 2)]
        with pytest.raises(Overloaded) as refused:
            await one.ask(key_in(3))
        assert refused.value.retry_after > 0 and refused.value.retry_safe
        one.own(1, 2)
        assert [await each for each in kept] == [None, None]
        assert one.router.figures().refused == 1


async def test_a_peers_call_is_never_sent_on(virtual: VirtualClock) -> None:
    async with silos([], [], ALL) as (one, two, three):
        two.update(cluster(7, [3] * 8, 1, 2, 3))
        one.router.update(cluster(2, [2] * 8, 1, 2, 3))  # wrong: silo 2 owns nothing
        asked = one.ask("x", "echo", "found")
        await until(lambda: one.stale)
        assert one.stale[0] == 7, "the answer says which view it was judged by"
        assert not asked.done
        assert two.router.figures().forwarded == 0
        one.router.update(cluster(7, [3] * 8, 1, 2, 3))
        assert await asked == "found"
        assert len(three.seen) == 1


async def test_two_silos_that_point_at_each_other_try_now_and_then_and_end_at_the_deadline(
    virtual: VirtualClock,
) -> None:
    async with silos([], []) as (one, two):
        one.router.update(cluster(2, [2] * 8, 1, 2))
        two.router.update(cluster(2, [1] * 8, 1, 2))
        with pytest.raises(CallTimeout) as late:
            await one.ask("x", timeout=2.0)
        assert late.value.turn_ran is False
        assert 10 < one.router.figures().forwarded < 400, "5 to 100 ms apart"


async def test_an_owner_that_is_behind_is_told_that_there_is_news(virtual: VirtualClock) -> None:
    async with silos([], []) as (one, two):
        one.router.update(cluster(9, [2] * 8, 1, 2))
        asked = one.ask("x", "echo", 1)
        await until(lambda: 9 in two.news)
        two.own(*ALL)
        assert await asked == 1


async def test_a_broken_link_fails_what_was_sent_and_keeps_what_was_not(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, two):
        sent = one.ask("x", "hold")
        await until(lambda: two.held)
        one.pipe_to(2).cut()
        unsent = one.ask("y", "echo", "kept")  # in the outbox, in this very tick
        with pytest.raises(SiloUnavailable) as lost:
            await sent
        assert lost.value.turn_ran is None
        assert await unsent == "kept"
        assert [call.method for call in two.seen] == ["hold", "echo"]


async def test_while_the_link_is_down_calls_wait_for_it(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, two):
        one.network.refuses = lambda dialler, address: True
        one.pipe_to(2).cut()
        await until(lambda: one.links.connected == 0)
        asked = one.ask("x", "echo", "patient")
        assert one.router.held == 1
        one.network.refuses = lambda dialler, address: False
        assert await asked == "patient"
        assert len(two.seen) == 1


async def test_what_is_out_at_a_silo_that_is_no_member_any_more_fails_at_once(virtual: VirtualClock) -> None:
    """A frozen silo does not break its link; the map says that it counts as dead."""
    async with silos([], ALL, []) as (one, two, three):
        one.pipe_to(2).far.silent = True
        sent = one.ask("x", "hold")
        await until(lambda: two.held)
        three.own(*ALL)
        one.update(cluster(2, [3] * 8, 1, 3))
        with pytest.raises(SiloUnavailable, match="no longer a member") as lost:
            await sent
        assert lost.value.turn_ran is None
        assert await one.ask("x", "echo", "alive") == "alive"


async def test_a_cancel_travels_to_the_owner(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, two):
        asked = one.ask("x", "hold")
        await until(lambda: two.held)
        asked.call.cancel()
        with pytest.raises(CallCancelled):
            await asked
        assert two.held == []


async def test_a_call_that_waits_for_an_owner_can_be_cancelled(virtual: VirtualClock) -> None:
    async with silos([], []) as (one, _):
        asked, other = one.ask(key_in(1)), one.ask(key_in(1))
        asked.call.cancel()
        with pytest.raises(CallCancelled):
            await asked
        assert one.router.held == 1
        one.own(1)
        await other


async def test_a_silo_that_stops_is_left_for_the_next_owner(virtual: VirtualClock) -> None:
    async with silos([], ALL, []) as (one, two, three):
        held = one.ask("x", "hold")
        await until(lambda: two.held)
        stopping = asyncio.create_task(two.gateway.stop(30))
        await until(lambda: one.links.to(2) is None)
        asked = one.ask("y", "echo", "elsewhere")
        assert one.router.held == 1
        three.own(*ALL)
        one.update(cluster(2, [3] * 8, 1, 2, 3))
        assert await asked == "elsewhere"
        two.release()
        assert await held == "held"
        await stopping


async def test_a_call_for_one_silo_goes_there_or_says_that_it_is_gone(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, two):
        there, asked = one.a_call("x", "echo", 1)
        one.router.submit(there, OnSilo(2))
        assert await asked == 1
        gone, asked = one.a_call("x")
        one.router.submit(gone, OnSilo(9))
        with pytest.raises(SiloUnavailable, match="no member") as lost:
            await asked
        assert lost.value.turn_ran is False
        astray, asked = two.a_call("x")
        astray.forwarded = True
        two.router.submit(astray, OnSilo(1))
        with pytest.raises(NotMine):
            await asked


async def test_an_endless_chain_is_refused_before_it_breaks_the_wire(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, _):
        with pytest.raises(CallCycle, match="256"):
            await one.ask("x", chain=(("echo", "x", "m", False),) * 257)
        assert await one.ask("x", "echo", "the link lives") == "the link lives"


async def test_too_many_calls_on_one_link_are_overloaded_early(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, two):
        link = one.links.to(2)
        assert link is not None
        calls = [one.ask("x", "hold", timeout=60) for _ in range(8_000)]
        assert link.full
        with pytest.raises(Overloaded):
            await one.ask("x")
        await until(lambda: len(two.held) == 8_000)
        two.release()
        assert {await each for each in calls} == {"held"}


async def test_news_and_cancels_overtake_a_flood_of_calls(virtual: VirtualClock) -> None:
    async with silos([], ALL) as (one, two):
        first = one.ask("x", "hold")
        await until(lambda: two.held)
        seen_by_then: list[int] = []
        two.gateway.on_news(lambda view: seen_by_then.append(len(two.seen)))
        flood = [one.ask("x", "echo", bytes(4_000)) for _ in range(4_000)]
        await rounds_until(lambda: len(two.seen) >= 100)
        one.links.tell_news(42)
        first.call.cancel()
        await rounds_until(lambda: first.done)
        unread = 1 << 20  # what the pipe holds was on its way before
        assert seen_by_then[0] < 100 + 2 * unread // 4_000
        assert sum(each.done for each in flood) < 100 + 3 * unread // 4_000
        for each in flood:
            await each


async def test_a_closed_router_answers_everybody(virtual: VirtualClock) -> None:
    async with silos([], []) as (one, _):
        asked = one.ask("x")
        one.router.close("the silo stopped")
        for each in (asked, one.ask("x")):
            with pytest.raises(SiloStopping, match="stopped"):
                await each
