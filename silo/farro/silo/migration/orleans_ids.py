"""Orleans' grain ids, as its reminder table has them.  Pure.

Since Orleans 7 an id is ``type/key``: a text key as it is, an ``int`` key in hexadecimal, a ``Guid`` key as
32 hexadecimal digits, either with ``+extension`` behind it where the grain has a compound key.  The text does
not say which of these it is, so that has to be told (:class:`KeyForm`).

Before, it was ``GrainReference=`` and three 64-bit numbers in hexadecimal: two of the key and one of category
and type code, again with ``+extension``.  A type code names no type; here it reads ``code-1A2B3C4D``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from farro.client.identity import GrainId

OLD_PREFIX = "GrainReference="
_OLD = re.compile(r"([0-9a-fA-F]{16})([0-9a-fA-F]{16})([0-9a-fA-F]{16})(?:\+(.*))?", re.DOTALL)
_GRAIN_CATEGORIES = (3, 6)  # a grain, a grain with a key extension; the others are clients and system targets
_OLD_SUFFIX = " GenericArguments="


class KeyForm(Enum):
    """What the key of a grain type is in Orleans."""

    TEXT = "text"
    INT = "int"
    UUID = "uuid"


class UnreadableId(ValueError):
    """The text is no grain id, or its key has another form than was told."""


@dataclass(frozen=True, slots=True)
class OrleansGrain:
    """A grain of Orleans: its type there, and its key as farro writes it."""

    type: str
    key: str


@dataclass(frozen=True, slots=True)
class Naming:
    """How Orleans' names become farro's.  ``types``: Orleans type to farro type, others keep their name."""

    types: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, KeyForm] = field(default_factory=dict)

    def grain(self, text: str) -> tuple[str, GrainId]:
        """Orleans' type and farro's grain of a stored id.  UnreadableId, or InvalidGrainId, says why not."""
        found = _old(text) if text.startswith(OLD_PREFIX) else _new(text, self.keys)
        return found.type, GrainId(self.types.get(found.type, found.type), found.key)


def _new(text: str, forms: Mapping[str, KeyForm]) -> OrleansGrain:
    type_name, slash, key = text.partition("/")
    if not slash or not type_name or not key:
        raise UnreadableId(f"the grain id is not TYPE/KEY and not {OLD_PREFIX}…")
    form = forms.get(type_name, KeyForm.TEXT)
    if form is KeyForm.TEXT:
        return OrleansGrain(type_name, key)
    digits, plus, extension = key.partition("+")
    wanted = r"[0-9a-fA-F]{1,16}" if form is KeyForm.INT else r"[0-9a-fA-F]{32}"
    if not re.fullmatch(wanted, digits):
        raise UnreadableId(f"the key is no {form.value} as Orleans writes it, in hexadecimal")
    number = str(_signed(int(digits, 16))) if form is KeyForm.INT else str(UUID(digits))
    return OrleansGrain(type_name, f"{number}{plus}{extension}")


def _old(text: str) -> OrleansGrain:
    found = _OLD.fullmatch(text.removeprefix(OLD_PREFIX).partition(_OLD_SUFFIX)[0])
    if found is None:
        raise UnreadableId(f"the grain id is not {OLD_PREFIX} and 48 hexadecimal digits")
    first, second, kind = (int(digits, 16) for digits in found.groups()[:3])
    if kind >> 56 not in _GRAIN_CATEGORIES:
        raise UnreadableId("the id is not of a grain but of a client or of a part of Orleans")
    extension: str | None = found[4]
    code = f"code-{kind & 0xFFFFFFFF:08X}"
    if extension is not None and first == second == 0:
        return OrleansGrain(code, extension)
    if first == 0:
        number = str(_signed(second))
    else:
        number = str(UUID(bytes_le=first.to_bytes(8, "little") + second.to_bytes(8, "little")))
    return OrleansGrain(code, number if extension is None else f"{number}+{extension}")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
