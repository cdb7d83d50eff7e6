"""Converters of types that choose: enums, literals, unions, and which grain a reference is to."""

from __future__ import annotations

from enum import Enum, Flag
from typing import Any

from farro.client.conversion import Converter
from farro.client.plain import Mismatch, show
from farro.client.reference import Reference, rebound


class EnumConverter(Converter):
    """An Enum class: the member's value where all values are ``str`` or ``int``, else the member's name."""

    __slots__ = ("_by_value", "_by_wire", "_enum")

    def __init__(self, enum: type[Enum]) -> None:
        self._enum = enum
        members = list(enum.__members__.values())
        self._by_value = all(type(member.value) in (str, int) for member in members)
        self._by_wire = {self._wire(member): member for member in members}
        wire_types = {type(wire) for wire in self._by_wire} or {int}
        super().__init__(enum.__name__, (enum,), tuple(wire_types))

    def _wire(self, member: Enum) -> Any:
        return member.value if self._by_value else member.name

    def enc(self, value: Any, depth: int) -> Any:
        if not isinstance(value, self._enum):
            raise self.expected(value)
        return self._wire(value)

    def dec(self, wire: Any, depth: int) -> Any:
        if type(wire) not in self.wire_types:
            raise self.expected(wire)
        member = self._by_wire.get(wire)
        if member is not None:
            return member
        if issubclass(self._enum, Flag):
            try:
                return self._enum(wire)
            except ValueError:
                raise Mismatch(f"{show(wire)} is no combination of {self.name}") from None
        known = ", ".join(show(wire) for wire in list(self._by_wire)[:12])
        raise Mismatch(f"{show(wire)} is no {self.name}; it has {known}")


class LiteralConverter(Converter):
    """``Literal[…]`` of None, bool, int, str, bytes."""

    __slots__ = ("_allowed",)

    def __init__(self, allowed: tuple[Any, ...]) -> None:
        types = tuple(dict.fromkeys(type(value) for value in allowed))
        super().__init__(f"one of {', '.join(map(show, allowed))}", types, types, passes_through=True)
        self._allowed = {(type(value), value) for value in allowed}

    def enc(self, value: Any, depth: int) -> Any:
        if type(value) not in self.types or (type(value), value) not in self._allowed:
            raise Mismatch(f"expected {self.name}, got {show(value)}")
        return value

    def dec(self, wire: Any, depth: int) -> Any:
        return self.enc(wire, depth)


class UnionConverter(Converter):
    """A union whose members differ in the types they take, on both sides."""

    __slots__ = ("_by_type", "_by_wire", "_only", "_reference")

    def __init__(self, members: list[Converter]) -> None:
        self._by_type = {kind: member for member in reversed(members) for kind in member.types}
        self._by_wire = {kind: member for member in reversed(members) for kind in member.wire_types}
        super().__init__(
            " or ".join(member.name for member in members),
            tuple(self._by_type),
            tuple(self._by_wire),
            passes_through=all(member.passes_through for member in members),
            hashable=all(member.hashable for member in members),
        )
        others = [member for member in members if member.types != (type(None),)]
        self._only = others[0] if len(others) == 1 else None
        self._reference = self._by_type.get(Reference)

    def enc(self, value: Any, depth: int) -> Any:
        member = self._by_type.get(type(value)) or self._other(value)
        return member.enc(value, depth)

    def dec(self, wire: Any, depth: int) -> Any:
        member = self._by_wire.get(type(wire)) or self._other(wire)
        return member.dec(wire, depth)

    def _other(self, value: Any) -> Converter:
        if isinstance(value, Reference) and self._reference is not None:
            return self._reference
        if self._only is not None:
            return self._only
        raise self.expected(value)


class ReferenceConverter(Converter):
    """A grain class or interface: any reference to that grain type, with that interface's methods."""

    __slots__ = ("_grain",)

    def __init__(self, grain: type | None) -> None:
        name = "a reference" if grain is None else f"a reference to {grain.__name__}"
        super().__init__(name, (Reference,), (Reference,), passes_through=True)
        self._grain = grain

    def enc(self, value: Any, depth: int) -> Any:
        if not isinstance(value, Reference):
            mismatch = self.expected(value)
            if any("__farro_base__" in vars(base) for base in type(value).__mro__):
                mismatch.problem += "; a grain itself does not travel, pass a reference to it"
            raise mismatch
        if self._grain is None:
            return value
        # Interfaces are made of converters; looking one up only when a reference passes breaks the circle.
        from farro.client.interface import interface_of

        interface = interface_of(self._grain)
        if value.grain_id.type != interface.type_name:
            raise Mismatch(f"expected {self.name} ({interface.type_name}), got {value!r}")
        return rebound(interface, value)

    def dec(self, wire: Any, depth: int) -> Any:
        return self.enc(wire, depth)
