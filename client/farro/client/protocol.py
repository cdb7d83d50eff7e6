"""The messages of the wire, versions 1 and 2: making them and checking them.  No I/O here.

A connection is one WebSocket at ``/farro/v1``.  Every binary frame is one msgpack array of messages, at most
1 MiB; a message is an array whose first element is its kind.  The client says *hello*, the silo *welcome*;
then calls go one way and answers the other, in any order, as many to a frame as there were at hand.

===========  =========================================================================  ==========
message      elements after the kind                                                    sent by
===========  =========================================================================  ==========
1 hello      lowest version, highest version, info map (``silo``, ``service``: a peer)  client
2 welcome    version, info map (``calls_max``: calls in flight on a connection)         silo
3 call       id, type, key, method, args, kwargs|nil, timeout ms, chain|nil             client
             of a request also, as a tenth element: [request id, again]                  client (2)
4 reply      id, result                                                                 silo
5 error      id, code, text, details map                                                silo
6 cancel     id                                                                         client
7 goaway     reason                                                                     silo
8 map        view, partitions, {silo number: address}, [owner of each partition]        silo (2)
9 news       view                                                                       peers (2)
===========  =========================================================================  ==========

A call with id 0 gets no answer.  Other ids are positive and not used again on their connection while their
call is out.  ``chain`` lists the calls that wait for this one, first caller first, each
``[type, key, method, readonly]``.  After goaway a silo takes no new calls; those it has are answered.

Version 2 knows *peers*: silos that say their number in the hello and forward calls.  A silo sends its map
after the welcome and at every change, to those who speak 2 and are no peers; peers tell each other that there
is a newer view.  With a side that speaks 1 only, neither is sent.

A *request* is a call that takes effect once, however often it is sent; ``again`` says that it may have been
sent before.  See :mod:`farro.client.requests`.

What breaks these rules is a :class:`ProtocolError`, and the connection is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from farro.client.cluster_map import ClusterMap
from farro.client.codec import Codec, array_header
from farro.client.errors import FarroError, InvalidPayload, ProtocolError, from_wire, to_wire
from farro.client.requests import Request, checked_request_id

PATH = "/farro/v1"
VERSION_MIN, VERSION_MAX = 1, 2
CLUSTER_VERSION = 2  # from here on there are peers, maps and news
REQUEST_VERSION = 2  # from here on a call may be a request

FRAME_BYTES_MAX = 1 << 20
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - 5  # the longest array header
FRAME_BYTES_TARGET = 256 * 1024  # frames are cut here so that a long batch is worked on while it arrives
TIMEOUT_MS_MAX = 7 * 86_400_000
CHAIN_LINKS_MAX = 256
ID_MAX = (1 << 63) - 1
_NAME_CHARACTERS_MAX = 512

HELLO, WELCOME, CALL, REPLY, ERROR, CANCEL, GOAWAY, MAP, NEWS = range(1, 10)

Message = list[Any]

_KIND = itemgetter(0)
_LISTS = {list}
_INTS = {int}
_CALL_BY_PLACE = [int, int, str, str, str, list, type(None), int, type(None)]


@dataclass(frozen=True, slots=True)
class Hello:
    """Who came in: the version to speak, and of a peer its silo number and service (a client: 0 and "")."""

    version: int
    silo: int = 0
    service: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Who answered: the version to speak, how many calls may be out, what the silo says of itself."""

    version: int
    calls_max: int
    facts: dict[str, Any]


# ---- making


def hello(info: dict[str, Any]) -> Message:
    return [HELLO, VERSION_MIN, VERSION_MAX, info]


def welcome(version: int, info: dict[str, Any]) -> Message:
    return [WELCOME, version, info]


def peer_info(silo: int, service: str) -> dict[str, Any]:
    """The info of the hello of a silo that calls another."""
    return {"silo": silo, "service": service}


def map_message(cluster: ClusterMap) -> Message:
    return [MAP, cluster.view, cluster.partitions, dict(cluster.addresses), list(cluster.owners)]


def error_message(call_id: int, error: FarroError) -> Message:
    return [ERROR, call_id, *to_wire(error)]


def frames(packed: list[bytes]) -> list[bytes]:
    """Packed messages as frames, in order: each as full as the target allows, none above the limit."""
    joined = b"".join(packed)
    if packed and len(joined) <= FRAME_BYTES_TARGET:
        return [array_header(len(packed)) + joined]
    made: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for message in packed:
        if batch and size + len(message) > FRAME_BYTES_TARGET:
            made.append(array_header(len(batch)) + b"".join(batch))
            batch, size = [], 0
        batch.append(message)
        size += len(message)
    if batch:
        made.append(array_header(len(batch)) + b"".join(batch))
    return made


# ---- checking


def messages_of(codec: Codec, frame: bytes) -> list[Message]:
    """The messages of a frame: each a list that begins with a kind; their fields are not checked yet.

    Raises :class:`InvalidPayload` if the bytes are no payload, :class:`ProtocolError` if it is no batch.
    """
    batch = codec.unpack_wire(frame, "frame")
    if type(batch) is not list or not batch:
        raise ProtocolError("a frame must be a non-empty array of messages")
    if (
        not all(batch)
        or set(map(type, batch)) != _LISTS
        or set(map(type, map(_KIND, batch))) != _INTS  # in C: this is half of what a small message costs
    ):
        raise ProtocolError("a message must be an array that begins with its kind")
    return batch


def check_call(message: Message) -> None:
    """Every field of a call but the values of its arguments."""
    if list(map(type, message)) != _CALL_BY_PLACE:
        _check_call_types(message)
    if not 0 <= message[1] <= ID_MAX:
        raise ProtocolError("the id of a call must be an int from 0 to 2**63 - 1")
    if not 1 <= message[7] <= TIMEOUT_MS_MAX:
        raise ProtocolError(f"the timeout of a call must be an int from 1 to {TIMEOUT_MS_MAX} ms")


def _check_call_types(message: Message) -> None:
    """What is not a plain call without keywords and chain: perhaps one that has them."""
    if len(message) == 10:
        _check_request(message[9])
    elif len(message) != 9:
        raise ProtocolError(f"a call has 9 elements, or 10 if it is a request, not {len(message)}")
    _, call_id, grain_type, key, method, args, kwargs, timeout_ms, chain = message[:9]
    if type(call_id) is not int:
        raise ProtocolError("the id of a call must be an int from 0 to 2**63 - 1")
    if not (type(grain_type) is type(key) is type(method) is str):
        raise ProtocolError("type, key and method of a call must be text")
    if type(args) is not list or (kwargs is not None and type(kwargs) is not dict):
        raise ProtocolError("the arguments of a call must be an array, and a map or nil")
    if type(timeout_ms) is not int:
        raise ProtocolError(f"the timeout of a call must be an int from 1 to {TIMEOUT_MS_MAX} ms")
    if chain is not None:
        _check_chain(chain)


def _check_request(request: Any) -> None:
    if type(request) is not list or [type(part) for part in request] != [str, bool]:
        raise ProtocolError("the tenth element of a call must be [request id, again]")
    try:
        checked_request_id(request[0])
    except InvalidPayload as error:
        raise ProtocolError(str(error)) from None


def request_of(message: Message) -> Request:
    """The request that a checked call of ten elements is, taken out of it: nine are left."""
    request_id, again = message.pop()
    return Request(request_id, again)


def _check_chain(chain: Any) -> None:
    if type(chain) is not list or len(chain) > CHAIN_LINKS_MAX:
        raise ProtocolError(f"the chain of a call must be an array of at most {CHAIN_LINKS_MAX} links")
    for link in chain:
        if type(link) is not list or [type(part) for part in link] != [str, str, str, bool]:
            raise ProtocolError("a link of the chain must be [type, key, method, readonly]")


def bad_target(grain_type: str, key: str, method: str) -> str | None:
    """Why such a call cannot be for any grain, or None.  The silo answers it; the connection stays open."""
    if (
        0 < len(grain_type) <= _NAME_CHARACTERS_MAX
        and 0 < len(key) <= _NAME_CHARACTERS_MAX
        and 0 < len(method) <= _NAME_CHARACTERS_MAX
    ):
        return None
    for what, text in (("grain type", grain_type), ("grain key", key), ("method", method)):
        if not text:
            return f"{what} must not be empty"
        if len(text) > _NAME_CHARACTERS_MAX:
            return f"{what} has {len(text)} characters; at most {_NAME_CHARACTERS_MAX} are allowed"
    return None


def check_cancel(message: Message) -> int:
    if len(message) != 2 or type(message[1]) is not int:
        raise ProtocolError("a cancel must be [6, id]")
    return int(message[1])


def check_hello(message: Message) -> Hello:
    """Who says so, and the highest version that both sides speak."""
    if len(message) != 4 or message[0] != HELLO:
        raise ProtocolError("the first message must be hello: [1, lowest version, highest version, info]")
    _, low, high, info = message
    if type(low) is not int or type(high) is not int or not 1 <= low <= high or type(info) is not dict:
        raise ProtocolError("hello must be [1, lowest version, highest version, info]")
    if low > VERSION_MAX or high < VERSION_MIN:
        raise ProtocolError(
            f"the client speaks versions {low} to {high} of the protocol, "
            f"this silo {VERSION_MIN} to {VERSION_MAX}; upgrade the older one"
        )
    version = min(high, VERSION_MAX)
    if version < CLUSTER_VERSION or "silo" not in info:
        return Hello(version)
    silo, service = info["silo"], info.get("service")
    if type(silo) is not int or silo < 1 or type(service) is not str or not service:
        raise ProtocolError("the hello of a peer must say silo, an int above 0, and service, a text")
    return Hello(version, silo, service)


def check_welcome(message: Message) -> Welcome:
    if len(message) != 3 or message[0] != WELCOME:
        raise ProtocolError("the silo did not begin with welcome")
    _, version, info = message
    if type(version) is not int or type(info) is not dict or not VERSION_MIN <= version <= VERSION_MAX:
        raise ProtocolError("the silo chose a protocol version that this client does not speak")
    calls_max = info.get("calls_max")
    if type(calls_max) is not int or calls_max < 1:
        raise ProtocolError("the welcome must say calls_max, an int above 0")
    return Welcome(version, calls_max, info)


def check_map(message: Message) -> ClusterMap:
    if len(message) != 5:
        raise ProtocolError("a map must be [8, view, partitions, addresses, owners]")
    _, view, partitions, addresses, owners = message
    if type(addresses) is not dict or type(owners) is not list:
        raise ProtocolError("a map must be [8, view, partitions, addresses, owners]")
    try:
        return ClusterMap(view, partitions, addresses, tuple(owners))
    except ValueError as error:
        raise ProtocolError(f"a map that cannot be: {error}") from None


def check_news(message: Message) -> int:
    if len(message) != 2 or type(message[1]) is not int or message[1] < 0:
        raise ProtocolError("news must be [9, view]")
    return int(message[1])


def reply_id(message: Message) -> int:
    """The id that a reply or an error answers, its shape checked."""
    kind = message[0]
    if len(message) != (3 if kind == REPLY else 5) or type(message[1]) is not int:
        raise ProtocolError("a reply must be [4, id, result], an error [5, id, code, text, details]")
    return int(message[1])


def error_of(message: Message) -> FarroError:
    """The error that an error message carries."""
    _, _, code, text, details = message
    if type(code) is not str or type(text) is not str or type(details) is not dict:
        raise ProtocolError("an error must be [5, id, code, text, details]")
    if not all(type(name) is str for name in details):
        raise ProtocolError("the details of an error must have text as keys")
    return from_wire(code, text, details)


def goaway_reason(message: Message) -> str:
    if len(message) != 2 or type(message[1]) is not str:
        raise ProtocolError("a goaway must be [7, reason]")
    return str(message[1])


def packed_message(codec: Codec, message: Message) -> bytes:
    """One message as bytes; :class:`InvalidPayload` if it does not fit into a frame."""
    packed = codec.pack_unbounded(message, "message")
    if len(packed) > MESSAGE_BYTES_MAX:
        what = f"the call of {message[2]}.{message[4]}" if message[0] == CALL else "the result"
        raise InvalidPayload(
            f"{what} takes {len(packed):,} bytes packed; at most {MESSAGE_BYTES_MAX:,} fit into a frame. "
            "Send it in parts, or send a pointer to where it is stored"
        )
    return packed


def packed_together(codec: Codec, messages: list[Message]) -> bytes | None:
    """All the messages as one frame; None if one of them cannot be packed, or they are too much for one."""
    try:
        frame = codec.pack_unbounded(messages, "frame")
    except InvalidPayload:
        return None
    return frame if len(frame) <= FRAME_BYTES_TARGET else None
