"""The map: owners and addresses of one view, and nothing that cannot be one."""

from __future__ import annotations

from typing import Any

import pytest

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec
from farro.client.errors import ProtocolError
from farro.client.protocol import MAP, check_map, map_message, packed_message

CODEC = Codec()


def a_map(**change: Any) -> ClusterMap:
    fields: dict[str, Any] = {
        "view": 3,
        "partitions": 4,
        "addresses": {1: "http://127.0.0.1:1", 7: "http://127.0.0.1:7"},
        "owners": (1, 7, 0, 9),
    }
    return ClusterMap(**fields | change)


def test_it_tells_the_owner_of_a_partition_and_where_it_serves() -> None:
    known = a_map()
    assert [known.owner_of(partition) for partition in range(4)] == [1, 7, 0, 9]
    assert [known.address_of(partition) for partition in range(4)] == [
        *("http://127.0.0.1:1", "http://127.0.0.1:7"),
        *(None, None),  # nobody's, and the owner's address is not known
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"view": -1},
        {"view": "3"},
        {"view": True},
        {"partitions": 0},
        {"partitions": 1 << 17},
        {"partitions": 5},
        {"owners": (1, 7, 0)},
        {"owners": (1, 7, 0, -1)},
        {"owners": (1, 7, 0, "9")},
        {"owners": (1, 7, 0, True)},
        {"addresses": {0: "http://x:1"}},
        {"addresses": {"1": "http://x:1"}},
        {"addresses": {1: ""}},
        {"addresses": {1: b"x"}},
        {"addresses": {1: "x" * 301}},
        {"addresses": {number: "http://x:1" for number in range(1, 1_002)}},
    ],
)
def test_what_cannot_be_a_map_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|owners for|at most"):
        a_map(**change)


def test_it_travels_and_a_large_one_takes_a_few_kilobytes() -> None:
    addresses = {number: f"http://10.0.0.{number}:11111" for number in range(1, 21)}
    known = ClusterMap(1_000_000, 1_024, addresses, tuple(1 + number % 20 for number in range(1_024)))
    packed = packed_message(CODEC, map_message(known))
    assert len(packed) < 2_048
    assert check_map(CODEC.unpack_wire(packed, "message")) == known


@pytest.mark.parametrize(
    "message",
    [
        [MAP],
        [MAP, 1, 1, {}],
        [MAP, 1, 1, {}, [0], 1],
        [MAP, 1, 1, [], [0]],
        [MAP, 1, 1, {}, {}],
        [MAP, 1, 1, {}, []],
        [MAP, 1, 1, {}, [None]],
        [MAP, 1, 1, {1: None}, [1]],
        [MAP, None, 1, {}, [0]],
    ],
)
def test_a_message_that_is_no_map_breaks_the_protocol(message: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        check_map(message)
