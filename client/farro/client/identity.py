"""Grain ids: a registered type name and a key, and the partition they hash to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

from farro.client.errors import InvalidGrainId

Key = str | int | UUID
Affinity = Callable[[str], Key]

TYPE_BYTES_MAX = 256
KEY_BYTES_MAX = 512


def _checked(what: str, text: str, bytes_max: int) -> str:
    if not text:
        raise InvalidGrainId(f"{what} must not be empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidGrainId(f"{what} {text!r} is not valid Unicode text") from error
    if size > bytes_max:
        raise InvalidGrainId(f"{what} is {size} bytes long; at most {bytes_max} are allowed")
    if "\x00" in text:
        raise InvalidGrainId(f"{what} {text!r} contains a NUL character")
    return text


def canonical_key(key: Key, what: str = "grain key") -> str:
    """The one way a key is written: text as it is, ``int`` in decimal, ``UUID`` in its canonical form.

    Raises :class:`InvalidGrainId` for other types (``bool`` included), empty text, NUL, and more than
    512 bytes of UTF-8.  Source: design/turns.md.
    """
    if isinstance(key, str):
        return _checked(what, str(key), KEY_BYTES_MAX)
    if isinstance(key, UUID) or (isinstance(key, int) and not isinstance(key, bool)):
        return _checked(what, str(key), KEY_BYTES_MAX)
    raise InvalidGrainId(f"{what} must be str, int or UUID, not {type(key).__name__}")


@dataclass(frozen=True, slots=True)
class GrainId:
    """``type/key``.  The type has no slash; the key may have any character but NUL."""

    type: str
    key: str

    def __post_init__(self) -> None:
        _checked("grain type", self.type, TYPE_BYTES_MAX)
        if "/" in self.type:
            raise InvalidGrainId(f"grain type {self.type!r} must not contain '/'")
        _checked("grain key", self.key, KEY_BYTES_MAX)

    def __str__(self) -> str:
        return f"{self.type}/{self.key}"

    @classmethod
    def parse(cls, text: str) -> GrainId:
        """The inverse of ``str``: everything before the first slash is the type."""
        type_name, slash, key = text.partition("/")
        if not slash:
            raise InvalidGrainId(f"{text!r} is not a grain id; write TYPE/KEY")
        return cls(type_name, key)


def partition_of(grain_type: str, grain_key: str, partitions: int, affinity: Affinity | None = None) -> int:
    """The fixed hash class of a grain id: blake2b of type, 0x00, key, modulo ``partitions``.

    With the class's ``affinity``, of 0x00 and the affinity of the key: no type is empty, so no plain grain
    shares that hash but by chance.  Never ``hash()``: the answer is the same in every process, on every
    machine, in every release.  Raises :class:`InvalidGrainId` as :func:`affinity_of` does.
    """
    if affinity is not None:
        grain_type, grain_key = "", affinity_of(grain_type, grain_key, affinity)
    digest = blake2b(grain_type.encode() + b"\x00" + grain_key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


def affinity_of(grain_type: str, grain_key: str, affinity: Affinity) -> str:
    """The affinity of a grain as text, held to the rules of a key.

    Raises :class:`InvalidGrainId`, naming the grain, when the function raises or answers with what is no key.
    """
    try:
        return canonical_key(affinity(grain_key), "affinity")
    except Exception as error:
        raise InvalidGrainId(
            f"the affinity of {grain_type}/{grain_key[:80]} cannot be told: "
            f"{type(error).__name__}: {str(error)[:200]}; affinity= must answer any key of its class, "
            "with a text, an int or a UUID"
        ) from error
