"""Records: values with named fields.  On the wire, a map from field name to wire value.

A missing field takes its default; a field the class does not have is refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from farro.client.conversion import Converter, deeper, step
from farro.client.plain import Mismatch


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    converter: Converter
    required: bool = True
    in_constructor: bool = True


class RecordConverter(Converter):
    """A class whose instances are read by attribute and made by keyword: dataclasses and the like.

    ``make`` takes the decoded fields; whatever it raises as ``ValueError`` or ``TypeError`` is a misfit of
    the data.  ``extra`` lists what an instance carries beyond its fields.
    """

    __slots__ = ("_encoders", "_extra", "_fields", "_later", "_make", "_record", "_required")

    def __init__(
        self,
        record: type,
        fields: list[Field],
        make: Callable[[dict[str, Any]], Any],
        extra: Callable[[Any], list[str]] | None = None,
    ) -> None:
        super().__init__(record.__qualname__, (record,), (dict,), hashable=False)
        self._record = record
        self._make = make
        self._extra = extra
        self.fill(fields)

    def fill(self, fields: list[Field]) -> None:
        self._fields = {field.name: field.converter for field in fields}
        self._encoders = tuple((field.name, field.converter.enc) for field in fields)
        self._required = frozenset(field.name for field in fields if field.required)
        self._later = tuple(field.name for field in fields if not field.in_constructor)

    def enc(self, value: Any, depth: int) -> Any:
        if type(value) is not self._record:
            raise self.expected(value)
        depth = deeper(depth)
        if self._extra is not None and (names := self._extra(value)):
            raise Mismatch(f"{self.name} does not declare {', '.join(names)}; declare the field to send it")
        wire = {}
        name = ""
        try:
            for name, encode in self._encoders:
                wire[name] = encode(getattr(value, name), depth)
        except Mismatch as mismatch:
            raise mismatch.at(f".{name}") from None
        except AttributeError:
            if hasattr(value, name):
                raise  # of a converter
            raise Mismatch("the field was never set").at(f".{name}") from None
        return wire

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) is not dict:
            raise self.expected(wire)
        values = decode_fields(self, self._fields, self._required, wire, depth)
        later = {name: values.pop(name) for name in self._later if name in values}
        try:
            made = self._make(values)
        except (ValueError, TypeError) as error:
            raise Mismatch(f"{self.name} refused its fields: {error}") from error
        for name, value in later.items():
            object.__setattr__(made, name, value)
        return made


class TypedDictConverter(Converter):
    """A TypedDict class: a dict with exactly the declared keys."""

    __slots__ = ("_fields", "_required")

    def __init__(self, typed_dict: type, fields: list[Field]) -> None:
        super().__init__(typed_dict.__qualname__, (dict,), (dict,), hashable=False)
        self.fill(fields)

    def fill(self, fields: list[Field]) -> None:
        self._fields = {field.name: field.converter for field in fields}
        self._required = frozenset(field.name for field in fields if field.required)

    def enc(self, value: Any, depth: int) -> Any:
        if type(value) is not dict:
            raise self.expected(value)
        missing = self._required - value.keys()
        unknown = value.keys() - self._fields.keys()
        if missing or unknown:
            raise _wrong_names(self.name, missing, unknown, self._fields)
        depth = deeper(depth)
        return {
            name: step(self._fields[name].enc, item, depth, f"[{name!r}]") for name, item in value.items()
        }

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) is not dict:
            raise self.expected(wire)
        return decode_fields(self, self._fields, self._required, wire, depth)


def decode_fields(
    owner: Converter,
    fields: Mapping[str, Converter],
    required: frozenset[str],
    wire: dict[Any, Any],
    depth: int,
) -> dict[str, Any]:
    depth = deeper(depth)
    values: dict[str, Any] = {}
    for name, item in wire.items():
        converter = fields.get(name)
        if converter is None:
            raise _wrong_names(owner.name, set(), {name}, fields)
        try:
            values[name] = converter.dec(item, depth)
        except Mismatch as mismatch:
            raise mismatch.at(f".{name}") from None
    if not required <= values.keys():
        raise _wrong_names(owner.name, required - values.keys(), set(), fields)
    return values


def _wrong_names(
    record: str, missing: frozenset[str] | set[str], unknown: set[Any], fields: Mapping[str, Converter]
) -> Mismatch:
    if missing:
        return Mismatch(f"{record} needs {', '.join(sorted(missing))}")
    names = ", ".join(sorted(ascii(name)[:80] for name in unknown))
    return Mismatch(f"{record} has no field {names}; it has {', '.join(fields) or 'none'}")
