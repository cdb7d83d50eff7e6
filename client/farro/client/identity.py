"""Grain ids: a registered type name and a key, and the partition they hash to."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

from farro.client.errors import InvalidGrainId

Key = str | int | UUID

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


def partition_of(grain_type: str, grain_key: str, partitions: int) -> int:
    """The fixed hash class of a grain id: blake2b of type, 0x00, key, modulo ``partitions``.

    Never ``hash()``: the answer is the same in every process, on every machine, in every release.
    """
    digest = blake2b(grain_type.encode() + b"\x00" + grain_key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions
