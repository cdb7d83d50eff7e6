"""From an annotation to its converter: what can be declared, compiled once.

Anything that is not listed here is a ``TypeError`` when the class is declared, with the way out in its text.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any

from farro.client.choices import EnumConverter, LiteralConverter, ReferenceConverter, UnionConverter
from farro.client.conversion import (
    SCALAR_CONVERTERS,
    Anything,
    Converter,
    DictConverter,
    FixedTuple,
    ListConverter,
    RecordSetConverter,
    SequenceConverter,
)
from farro.client.records import Field, RecordConverter, TypedDictConverter
from farro.client.reference import Reference

_CACHED_ANNOTATIONS_MAX = 4_096
_ANYTHING = Anything()
_MISSING = dataclasses.MISSING
_AliasType: Any = getattr(typing, "TypeAliasType", ())
_WRAPPERS = (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)


def converter(annotation: Any) -> Converter:
    """The converter of a declared type.

    Raises ``TypeError`` for a type that cannot travel, and ``NameError`` while a forward reference in it is
    not defined yet.
    """
    try:
        return _cached(annotation)
    except TypeError as error:
        if not str(error).startswith("unhashable"):
            raise
        return _Compiler().compile(annotation)


@lru_cache(maxsize=_CACHED_ANNOTATIONS_MAX)
def _cached(annotation: Any) -> Converter:
    return _Compiler().compile(annotation)


def is_grain_interface(cls: type) -> bool:
    """Whether a class stands for grains: a grain class, or a Protocol."""
    return (
        "__farro_type__" in vars(cls)
        or bool(getattr(cls, "_is_protocol", False))
        or any("__farro_base__" in vars(base) for base in cls.__mro__)
    )


class _Late(Converter):
    """Stands for a recursive type alias while it is being compiled."""

    __slots__ = ("target",)

    target: Converter

    def __init__(self, name: str) -> None:
        super().__init__(name, (), (), hashable=False)

    def enc(self, value: Any, depth: int) -> Any:
        return self.target.enc(value, depth)

    def dec(self, wire: Any, depth: int) -> Any:
        return self.target.dec(wire, depth)


class _Compiler:
    """One run.  ``_open`` holds what is being compiled, so that a type may contain itself."""

    def __init__(self) -> None:
        self._open: dict[Any, Converter] = {}

    def compile(self, annotation: Any) -> Converter:
        origin = typing.get_origin(annotation)
        if origin in _WRAPPERS:
            return self.compile(typing.get_args(annotation)[0])
        found = SCALAR_CONVERTERS.get(annotation) or self._open.get(annotation)
        if found is not None:
            return found
        if annotation is Any or annotation is object:
            return _ANYTHING
        if isinstance(annotation, typing.TypeVar):
            return self.compile(annotation.__bound__ or Any)
        if isinstance(annotation, typing.NewType):
            return self.compile(annotation.__supertype__)
        if annotation is typing.Never or annotation is typing.NoReturn:
            return SCALAR_CONVERTERS[None]
        if _AliasType and isinstance(annotation, _AliasType):
            late = self._open[annotation] = _Late(str(annotation))
            late.target = self.compile(annotation.__value__)
            return late.target
        if isinstance(annotation, str):
            raise NameError(f"the forward reference {annotation!r} is not resolved")
        if isinstance(annotation, typing.ForwardRef):
            raise NameError(f"the forward reference {annotation.__forward_arg__!r} is not resolved")
        return self._composed(annotation, origin, typing.get_args(annotation))

    def _composed(self, annotation: Any, origin: Any, args: tuple[Any, ...]) -> Converter:
        if origin is typing.Union or origin is types.UnionType:
            return self._union(args)
        if origin is typing.Literal:
            return self._literal(args)
        kind = origin or annotation
        if kind is list:
            return ListConverter(self.compile(args[0] if args else Any))
        if kind is dict:
            return self._dict(*(args or (Any, Any)))
        if kind is set or kind is frozenset:
            return self._set(kind, self.compile(args[0] if args else Any))
        if kind is tuple:
            return self._tuple(args, annotation)
        if isinstance(kind, type):
            return self._class(kind, annotation, args)
        raise unsupported(annotation)

    def _union(self, args: tuple[Any, ...]) -> Converter:
        members = [self.compile(arg) for arg in args]
        if _ANYTHING in members:
            return _ANYTHING
        for side in ("types", "wire_types"):
            taken: dict[type, Converter] = {}
            for member in members:
                for kind in getattr(member, side):
                    other = taken.setdefault(kind, member)
                    if other is not member and not (kind is int and "float" in (other.name, member.name)):
                        raise TypeError(
                            f"the union of {other.name} and {member.name} cannot be told apart on the wire; "
                            "use one dataclass with optional fields, or two parameters"
                        )
        # With int declared beside float, an int is an int.
        members.sort(key=lambda member: member.name == "float")
        return UnionConverter(members)

    def _literal(self, args: tuple[Any, ...]) -> Converter:
        if not all(type(arg) in (type(None), bool, int, str, bytes) for arg in args):
            raise TypeError("Literal takes None, bool, int, str and bytes; declare the Enum class instead")
        return LiteralConverter(args)

    def _dict(self, key: Any, value: Any) -> Converter:
        key_converter = self.compile(key)
        if not key_converter.hashable and key_converter is not _ANYTHING:
            raise TypeError(f"{key_converter.name} cannot be the key of a dict on the wire; use str")
        return DictConverter(key_converter, self.compile(value))

    def _set(self, kind: type, item: Converter) -> Converter:
        if item.hashable or item is _ANYTHING:
            return SequenceConverter(kind, item)
        return RecordSetConverter(kind, item)

    def _tuple(self, args: tuple[Any, ...], annotation: Any) -> Converter:
        if not args and annotation in (tuple, typing.Tuple):  # noqa: UP006 - the bare old spelling is met too
            return SequenceConverter(tuple, _ANYTHING)
        if len(args) == 2 and args[1] is Ellipsis:
            return SequenceConverter(tuple, self.compile(args[0]))
        items = [self.compile(arg) for arg in args]
        return FixedTuple(tuple, items, [f"[{index}]" for index in range(len(items))], len(items))

    def _class(self, cls: type, annotation: Any, args: tuple[Any, ...]) -> Converter:
        if issubclass(cls, Reference) or "__farro_base__" in vars(cls):
            return ReferenceConverter(None)
        if issubclass(cls, Enum):
            return EnumConverter(cls)
        if typing.is_typeddict(cls):
            return self._typed_dict(cls, annotation, args)
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return self._named_tuple(cls, args)
        if dataclasses.is_dataclass(cls):
            return self._dataclass(cls, annotation, args)
        if _is_subclass(cls, "msgspec", "Struct"):
            return self._struct(cls, annotation, args)
        if _is_subclass(cls, "pydantic", "BaseModel"):
            return self._pydantic(cls, annotation)
        if is_grain_interface(cls):
            return ReferenceConverter(cls)
        raise unsupported(annotation)

    def _named_tuple(self, cls: Any, args: tuple[Any, ...]) -> Converter:
        hints = _hints(cls, args)
        items = [self.compile(hints.get(name, Any)) for name in cls._fields]
        labels = [f".{name}" for name in cls._fields]
        return FixedTuple(cls, items, labels, len(items) - len(cls._field_defaults))

    def _typed_dict(self, cls: Any, annotation: Any, args: tuple[Any, ...]) -> Converter:
        made = self._open[annotation] = TypedDictConverter(cls, [])
        hints = _hints(cls, args)
        made.fill(
            [
                Field(name, self._field(cls, name, hint), name in cls.__required_keys__)
                for name, hint in hints.items()
            ]
        )
        return made

    def _dataclass(self, cls: Any, annotation: Any, args: tuple[Any, ...]) -> Converter:
        hints = _hints(cls, args)
        fields = dataclasses.fields(cls)
        names = {field.name for field in fields}
        for name in cls.__dataclass_fields__.keys() - names:
            if isinstance(hints.get(name), dataclasses.InitVar):
                raise TypeError(
                    f"{cls.__qualname__}.{name} is an InitVar, which is gone once the object is made"
                )
        made = self._open[annotation] = RecordConverter(cls, [], lambda values: cls(**values))
        made.fill(
            [
                Field(
                    field.name,
                    self._field(cls, field.name, hints[field.name]),
                    field.init and field.default is _MISSING and field.default_factory is _MISSING,
                    field.init,
                )
                for field in fields
            ]
        )
        return made

    def _struct(self, cls: Any, annotation: Any, args: tuple[Any, ...]) -> Converter:
        hints = _hints(cls, args)
        made = self._open[annotation] = RecordConverter(cls, [], lambda values: cls(**values))
        fields = sys.modules["msgspec"].structs.fields(cls)
        made.fill(
            [
                Field(field.name, self._field(cls, field.name, hints[field.name]), field.required)
                for field in fields
            ]
        )
        return made

    def _pydantic(self, cls: Any, annotation: Any) -> Converter:
        made = self._open[annotation] = RecordConverter(
            cls, [], _pydantic_maker(cls), lambda value: list(value.model_extra or ())
        )
        made.fill(
            [
                Field(name, self._field(cls, name, info.annotation), info.is_required())
                for name, info in cls.model_fields.items()
            ]
        )
        return made

    def _field(self, cls: type, name: str, hint: Any) -> Converter:
        try:
            return self.compile(hint)
        except TypeError as error:
            raise TypeError(f"{cls.__qualname__}.{name}: {error}") from None


def _pydantic_maker(cls: Any) -> Callable[[dict[str, Any]], Any]:
    # pydantic's ValidationError is a ValueError, so a refusal becomes a misfit of the data like any other.
    return lambda values: cls.model_validate(values, by_name=True, by_alias=False)


def _is_subclass(cls: type, module: str, name: str) -> bool:
    """Whether cls derives from ``module.name``, without importing the module: then somebody already has."""
    base = getattr(sys.modules.get(module), name, None)
    return isinstance(base, type) and issubclass(cls, base)


def _hints(cls: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    parameters = getattr(cls, "__parameters__", ())
    if not args or len(args) != len(parameters):
        return hints
    given = dict(zip(parameters, args, strict=True))
    return {name: _substituted(hint, given) for name, hint in hints.items()}


def _substituted(hint: Any, given: dict[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(given.get(parameter, parameter) for parameter in parameters)]


_WAYS_OUT: dict[str, str] = {
    "complex": "use tuple[float, float]",
    "bytearray": "use bytes",
    "memoryview": "use bytes",
    "defaultdict": "use dict",
    "OrderedDict": "use dict",
    "Counter": "use dict[str, int]",
    "deque": "use list",
    "Sequence": "use list or tuple",
    "Iterable": "use list or tuple",
    "Collection": "use list or tuple",
    "MutableSequence": "use list",
    "Mapping": "use dict",
    "MutableMapping": "use dict",
    "Set": "use set or frozenset",
    "range": "use list[int]",
}


def unsupported(annotation: Any) -> TypeError:
    kind = typing.get_origin(annotation) or annotation
    name = getattr(kind, "__name__", str(kind))
    way_out = _WAYS_OUT.get(name, "use plain values, a dataclass, or Any")
    if isinstance(kind, type) and kind.__module__.startswith("pathlib"):
        way_out = "use str"
    return TypeError(f"{annotation!r} cannot travel between processes; {way_out}")
