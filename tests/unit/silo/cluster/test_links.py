"""Links: kept up to every other silo of the map, over pipes with faults and once over sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.errors import SiloUnavailable
from farro.silo.cluster.links import Links
from farro.silo.testing.pipes import PipeNetwork
from farro.silo.testing.virtual_time import VirtualClock
from tests.unit.silo.cluster.routing import SmallSilo, address, cluster, silos, until
from tests.unit.silo.gateway.serving import Target, serving


async def test_every_other_silo_of_the_map_is_linked_before_anybody_calls(virtual: VirtualClock) -> None:
    async with silos([], [], []) as made:
        assert [silo.links.connected for silo in made] == [2, 2, 2]
        assert [silo.gateway.connections for silo in made] == [2, 2, 2]


async def test_a_broken_link_is_told_at_once_and_made_anew(virtual: VirtualClock) -> None:
    async with silos([], []) as (one, two):
        loop = asyncio.get_running_loop()
        cut_at = loop.time()
        one.pipe_to(2).cut()
        await until(lambda: one.downs)
        assert loop.time() - cut_at < 0.01
        assert one.downs[0][0] == 2
        await until(lambda: one.links.connected == 1)
        assert two.links.connected == 1, "the other direction has a link of its own"


async def test_a_silo_that_nobody_answers_for_is_told_and_tried_again_with_pauses(
    virtual: VirtualClock,
) -> None:
    network = PipeNetwork()
    one, two = SmallSilo(network, 1), SmallSilo(network, 2)
    one.update(cluster(1, [2] * 8, 1, 2))
    loop = asyncio.get_running_loop()
    await until(lambda: loop.time() > 10)
    assert 15 < len(one.downs) < 60, "half a second apart on average"
    await two.gateway.start()
    await until(lambda: one.links.connected == 1)
    await one.close()
    await two.close()


async def test_a_silo_that_left_the_map_is_dialled_no_more(virtual: VirtualClock) -> None:
    async with silos([], [], []) as (one, _, three):
        one.update(cluster(2, [0] * 8, 1, 3))
        await until(lambda: one.links.connected == 1)
        assert one.links.to(2) is None and one.links.to(3) is not None
        dialled = len(one.network.pipes)
        loop = asyncio.get_running_loop()
        await until(lambda: loop.time() > 5)
        assert len(one.network.pipes) == dialled
        assert three.links.connected == 2


async def test_a_dead_silo_that_had_ones_own_address_is_not_dialled(virtual: VirtualClock) -> None:
    network = PipeNetwork()
    one = SmallSilo(network, 1)
    await one.gateway.start()
    map_ = cluster(1, [2] * 8, 1)
    one.update(replace(map_, addresses={**map_.addresses, 2: map_.addresses[1]}))
    loop = asyncio.get_running_loop()
    await until(lambda: loop.time() > 5)
    assert (network.pipes, one.downs) == ([], [])
    await one.close()


async def test_a_link_reaches_the_silo_and_the_service_it_means_or_none(virtual: VirtualClock) -> None:
    network = PipeNetwork()
    one, two = SmallSilo(network, 1), SmallSilo(network, 2)
    await two.gateway.start()
    network.gateways[address(3)] = two.gateway  # the address of silo 3 was given to silo 2
    one.update(cluster(1, [3] * 8, 1, 3))
    await until(lambda: one.downs)
    assert "answers silo 2" in one.downs[0][1] and "not silo 3" in one.downs[0][1]
    assert one.links.connected == 0
    await one.close()

    stranger = SmallSilo(network, 4)
    stranger.links._service = "another"
    stranger.update(cluster(1, [2] * 8, 2, 4))
    await until(lambda: stranger.downs)
    assert "'another' called service 'test'" in stranger.downs[0][1]
    await stranger.close()
    await two.close()


async def test_news_goes_to_every_peer_and_a_gateway_tells_its_peers_too(virtual: VirtualClock) -> None:
    async with silos([], [], []) as (one, two, three):
        one.links.tell_news(5)
        await until(lambda: two.news == [5] and three.news == [5])
        one.gateway.publish(cluster(6, [0] * 8, 1, 2, 3))
        await until(lambda: two.news == [5, 6] and three.news == [5, 6])
        assert one.news == []


async def test_a_delayed_link_keeps_the_order(virtual: VirtualClock) -> None:
    chance = Random(3)
    network = PipeNetwork(lambda dialler, address: lambda: chance.uniform(0, 0.2))
    async with silos([], list(range(8)), network=network) as (one, two):
        asked = []
        for number in range(50):
            asked.append(one.ask("x", "echo", number))
            await asyncio.sleep(0.01)
        assert [await each for each in asked] == list(range(50))
        assert [call.args[0] for call in two.seen] == list(range(50))


async def test_links_over_real_sockets_see_a_gateway_go_and_come_back() -> None:
    downs: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    ups: asyncio.Queue[int] = asyncio.Queue()
    target = Target()
    async with serving(target, facts={"silo": 2, "service": "test"}) as (gateway, _):
        links = Links(
            1,
            "test",
            Codec(),
            Random(1),
            on_down=lambda silo, reason: downs.put_nowait((silo, reason)),
            on_news=lambda view: None,
        )
        links.on_up = ups.put_nowait
        where = gateway.address
        links.update(ClusterMap(1, 1, {1: "http://127.0.0.1:1", 2: f"http://{where}"}, (2,)))
        assert await ups.get() == 2
        link = links.to(2)
        assert link is not None
        loop = asyncio.get_running_loop()
        _, answer = link.send_call("echo", "k", "echo", ["x"], None, 5.0, loop.time() + 5, False)
        assert answer is not None and await answer == "x"
        assert target.seen[0].forwarded
        _, held = link.send_call("echo", "k", "hold", [], None, 5.0, loop.time() + 5, False)
        await target.until(1)
        await gateway.stop(0)
        assert (await downs.get())[0] == 2
        assert held is not None
        lost = held.exception()
        assert isinstance(lost, SiloUnavailable) and lost.turn_ran is None
        target.release()
        async with serving(listen=where, facts={"silo": 2, "service": "test"}):
            assert await ups.get() == 2
        await links.close()
