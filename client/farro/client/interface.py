"""What can be called on a grain: its public ``async def`` methods, their flags, and their converters.

An annotation may name a class that is defined further down, so a method's plan is compiled when the class is
declared if it can be, and on first use if it cannot.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from types import FunctionType
from typing import Any, TypeVar, cast

from farro.client.conversion import SCALAR_CONVERTERS, Converter
from farro.client.converters import converter
from farro.client.errors import InvalidPayload
from farro.client.identity import Affinity, GrainId
from farro.client.plain import Mismatch
from farro.client.reference import Reference, checked_timeout, close_names, reference_class

_C = TypeVar("_C", bound=type)
_RESERVED = ("grain_id", "with_options")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FLAGS = ("readonly", "oneway", "cancellable", "idempotent")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The compiled signature.

    ``exact`` holds the argument types that need no further look, each with the places of its texts, whose
    encoding does.  One argument's type stands there by itself: to make and hash a tuple takes longer than
    the rest of the call's encoding.
    """

    positional: tuple[tuple[str, Converter], ...]
    by_name: dict[str, Converter]
    required: frozenset[str]
    rest: Converter | None
    rest_by_name: Converter | None
    exact: dict[type | tuple[type, ...], tuple[int, ...]]
    result: Converter
    exact_result: type | None
    passes_through: bool


class MethodSpec:
    """One remote method: how to bind, check and convert its arguments and its result.

    Wire arguments hold what the caller gave: a default is the callee's, so stored calls evolve with it.
    """

    __slots__ = (
        "_function",
        "_owner_type",
        "_plan",
        "cancellable",
        "doc",
        "idempotent",
        "name",
        "oneway",
        "owner",
        "readonly",
        "timeout",
    )

    def __init__(self, owner: type | None, owner_name: str, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.owner = owner_name
        self.doc = function.__doc__
        self.readonly, self.oneway, self.cancellable, self.idempotent = (
            bool(getattr(function, f"__farro_{flag}__", False)) for flag in _FLAGS
        )
        if self.idempotent and (self.readonly or self.oneway):
            other = "readonly" if self.readonly else "oneway"
            why = "changes nothing" if self.readonly else "gives no answer"
            raise TypeError(
                f"{owner_name}.{name}: @idempotent_request remembers the answer to a change, and a method "
                f"that is @{other} {why}; take one of the two marks away"
            )
        self.timeout = checked_timeout(getattr(function, "__farro_timeout__", None))
        self._function = function
        self._owner_type = owner
        self._plan: _Plan | None = None

    @classmethod
    def compile(cls, owner: type, name: str, function: Callable[..., Any]) -> MethodSpec:
        """The spec of a function defined in a class, private ones included.

        Raises ``TypeError``, naming class, method and parameter, for an annotation that cannot travel.
        """
        spec = cls(owner, owner.__name__, name, function)
        try:
            spec._plan = _compile_plan(spec)
        except NameError:
            return spec  # names a class that is defined further down: compiled on first use, or by resolve()
        return spec

    @classmethod
    def untyped(cls, grain_type: str, name: str) -> MethodSpec:
        """The spec of a method that this process has no class for: any arguments, any result."""
        return cls(None, grain_type, name, _any_signature)

    def resolve(self) -> _Plan:
        """Compile now, if that was put off.

        Raises ``TypeError`` as in compile, and for names that are still not defined.
        """
        if self._plan is None:
            try:
                self._plan = _compile_plan(self)
            except NameError as error:
                raise TypeError(
                    f"{self.owner}.{self.name}: {error}; annotations must name what exists at run time, "
                    "at module level and not only under TYPE_CHECKING"
                ) from None
        return self._plan

    @property
    def args_pass_through(self) -> bool:
        """What ``encode_call`` returns may be given to the method as it is, without ``decode_call``."""
        return (self._plan or self.resolve()).passes_through

    @property
    def result_passes_through(self) -> bool:
        """What ``encode_result`` returns may be given to the caller as it is, without ``decode_result``."""
        return (self._plan or self.resolve()).result.passes_through

    def encode_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[list[Any], dict[str, Any] | None]:
        """Wire arguments; :class:`InvalidPayload` naming method and parameter if they do not fit."""
        plan = self._plan or self.resolve()
        if not kwargs:
            texts = plan.exact.get(type(args[0]) if len(args) == 1 else tuple(map(type, args)))
            if texts is not None:
                for index in texts:
                    if not args[index].isascii():
                        break
                else:
                    return list(args), None
            wire_args, _ = self._convert(plan, args, {}, encoding=True)
            return wire_args, None
        return self._convert(plan, args, kwargs, encoding=True)

    def decode_call(self, args: list[Any], kwargs: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
        """The inverse of :meth:`encode_call`; checks as strictly, for the wire may come from anybody."""
        plan = self._plan or self.resolve()
        if not kwargs and (type(args[0]) if len(args) == 1 else tuple(map(type, args))) in plan.exact:
            return args, {}
        return self._convert(plan, args, kwargs or {}, encoding=False)

    def encode_result(self, value: Any) -> Any:
        """The wire value of a result; :class:`InvalidPayload` naming the method if it does not fit."""
        plan = self._plan or self.resolve()
        if type(value) is plan.exact_result:
            return value
        return plan.result.encode(value, f"{self.owner}.{self.name}() -> result")

    def decode_result(self, wire: Any) -> Any:
        """The inverse of :meth:`encode_result`."""
        plan = self._plan or self.resolve()
        if type(wire) is plan.exact_result:
            return wire
        return plan.result.decode(wire, f"{self.owner}.{self.name}() -> result")

    def _convert(
        self, plan: _Plan, args: Any, kwargs: dict[str, Any], *, encoding: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        positional = plan.positional
        if len(args) > len(positional) and plan.rest is None:
            raise self._wrong_count(plan, len(args))
        made = []
        for index, value in enumerate(args):
            name, item = positional[index] if index < len(positional) else (f"*args[{index}]", plan.rest)
            made.append(self._one(item, name, value, encoding))
        given = {name for name, _ in positional[: len(args)]}
        named = {}
        for name, value in kwargs.items():
            found = plan.by_name.get(name, plan.rest_by_name)
            if found is None or type(name) is not str:
                raise InvalidPayload(
                    f"{self} has no parameter {ascii(name)[:80]}{close_names(str(name), list(plan.by_name))}"
                )
            if name in given and name in plan.by_name:
                raise InvalidPayload(f"{self} got {name} twice, by place and by name")
            named[name] = self._one(found, name, value, encoding)
        if not plan.required <= given and (missing := plan.required - given - named.keys()):
            raise InvalidPayload(f"{self} is missing {', '.join(sorted(missing))}")
        return made, named

    def _one(self, item: Converter | None, name: str, value: Any, encoding: bool) -> Any:
        assert item is not None
        try:
            return item.enc(value, 0) if encoding else item.dec(value, 0)
        except Mismatch as mismatch:
            where = "".join(reversed(mismatch.steps))
            inside = f" at {where}" if where else ""
            raise InvalidPayload(f"{self.owner}.{self.name}({name}=…){inside}: {mismatch.problem}") from None

    def _wrong_count(self, plan: _Plan, count: int) -> InvalidPayload:
        names = ", ".join(name for name, _ in plan.positional)
        takes = f"{len(plan.positional)} ({names})" if names else "no"
        return InvalidPayload(f"{self} takes {takes} positional arguments, got {count}")

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}()"

    def __repr__(self) -> str:
        return f"<method {self.owner}.{self.name}>"


async def _any_signature(*args: Any, **kwargs: Any) -> Any:
    """Stands for a method whose signature is not known here."""


def _compile_plan(spec: MethodSpec) -> _Plan:
    owner = spec._owner_type
    function: Any = inspect.unwrap(spec._function)
    names = {} if owner is None else {owner.__name__: owner}
    hints = typing.get_type_hints(function, localns=names, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    if owner is not None:
        parameters = parameters[1:]
    by_kind: dict[Any, dict[str, Converter]] = {kind: {} for kind in inspect._ParameterKind}
    for parameter in parameters:
        annotation = hints.get(parameter.name, Any)
        by_kind[parameter.kind][parameter.name] = _declared(spec, f"parameter {parameter.name!r}", annotation)
    positional = tuple(item for kind in _POSITIONAL for item in by_kind[kind].items())
    named = by_kind[inspect.Parameter.POSITIONAL_OR_KEYWORD] | by_kind[inspect.Parameter.KEYWORD_ONLY]
    everything = [item for group in by_kind.values() for item in group.values()]
    result = _declared(spec, "its result", hints.get("return", Any))
    required = frozenset(
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
    return _Plan(
        positional=positional,
        by_name=named,
        required=required,
        rest=next(iter(by_kind[inspect.Parameter.VAR_POSITIONAL].values()), None),
        rest_by_name=next(iter(by_kind[inspect.Parameter.VAR_KEYWORD].values()), None),
        exact=_exact(positional, required),
        result=result,
        exact_result=result.types[0] if result in _CHECKED_BY_TYPE and result.types != (str,) else None,
        passes_through=all(item.passes_through for item in everything),
    )


_CHECKED_BY_TYPE = tuple(SCALAR_CONVERTERS[kind] for kind in (None, bool, int, float, str, bytes))


def _exact(
    positional: tuple[tuple[str, Converter], ...], required: frozenset[str]
) -> dict[type | tuple[type, ...], tuple[int, ...]]:
    scalars = list(takewhile(lambda item: item[1] in _CHECKED_BY_TYPE, positional))
    kinds = tuple(item.types[0] for _, item in scalars)
    texts = tuple(index for index, kind in enumerate(kinds) if kind is str)
    found: dict[type | tuple[type, ...], tuple[int, ...]] = {}
    for count in range(len(kinds) + 1):
        if required <= {name for name, _ in scalars[:count]}:
            found[kinds[0] if count == 1 else kinds[:count]] = tuple(
                index for index in texts if index < count
            )
    return found


def _declared(spec: MethodSpec, what: str, annotation: Any) -> Converter:
    try:
        return converter(annotation)
    except TypeError as error:
        raise TypeError(f"{spec.owner}.{spec.name}, {what}: {error}") from None


class Interface:
    """The remote methods of one class, under one grain type name, and where its grains live.

    ``affinity``: what their keys have in common that live together; None: each lives where its id says.
    ``stateless``: they live nowhere, and any silo will do.
    """

    __slots__ = (
        "_cls",
        "_reference_class",
        "affinity",
        "class_name",
        "doc",
        "methods",
        "stateless",
        "type_name",
    )

    def __init__(
        self, cls: type, type_name: str, methods: Mapping[str, MethodSpec], affinity: Affinity | None
    ) -> None:
        self._cls = cls
        self.class_name = cls.__name__
        self.doc = cls.__doc__
        self.type_name = type_name
        self.methods = methods
        self.affinity = affinity
        self.stateless = False
        self._reference_class: type[Reference] | None = None

    @property
    def reference_class(self) -> type[Reference]:
        if self._reference_class is None:
            self._reference_class = reference_class(self)
        return self._reference_class

    def why_not_remote(self, name: str) -> str:
        """The reason why a reference of this interface has no such method."""
        what = f"{self.class_name}.{name}"
        if name.startswith("_"):
            return f"{what} is private to the grain; only public async methods can be called from outside"
        if name == "state":
            return f"{what} belongs to the grain itself; add an async method that returns what you need"
        if inspect.getattr_static(self._cls, name, None) is not None or name in _annotations(self._cls):
            return f"{what} can be used inside the grain only; only its own public async methods are remote"
        return f"{self.class_name} has no method {name!r}{close_names(name, list(self.methods))}"


def _annotations(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name in inspect.get_annotations(base)}


def interface_of(cls: type) -> Interface:
    """The interface of a grain class or Protocol, built once and kept on the class.

    Raises ``TypeError`` for a class that cannot be one, naming class, method and parameter.
    """
    if not isinstance(cls, type):
        raise TypeError(f"expected a grain class or a Protocol, got {type(cls).__name__}")
    found: Interface | None = vars(cls).get("__farro_interface__")
    if found is None:
        found = _build(cls)
        cls.__farro_interface__ = found  # type: ignore[attr-defined]
    return found


def grain_interface(
    type_name: str, *, affinity: Affinity | None = None, stateless: bool = False
) -> Callable[[_C], _C]:
    """Name the grain type that a Protocol class describes: for clients without the implementation.

    ``affinity``: that of the grain class, so that calls go to the right silo at once; without it, or with a
    wrong one, a call takes one step more.  ``stateless``: it is a stateless worker, so that calls are spread
    over the silos.
    """

    def decorate(cls: _C) -> _C:
        GrainId(type_name, "-")
        cls.__farro_type__ = type_name  # type: ignore[attr-defined]
        cls.__farro_affinity__ = affinity  # type: ignore[attr-defined]
        interface_of(cls).stateless = stateless
        return cls

    return decorate


def _build(cls: type) -> Interface:
    type_name = vars(cls).get("__farro_type__", cls.__name__)
    GrainId(type_name, "-")
    internal = {"__init__"}
    methods: dict[str, MethodSpec] = {}
    for base in reversed(cls.__mro__):
        if vars(base).get("__farro_base__"):
            # Overriding a hook of the base class does not open it to callers.
            internal |= vars(base).keys()
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in internal:
                continue
            methods.pop(name, None)
            if isinstance(member, FunctionType) and inspect.iscoroutinefunction(member):
                if name in _RESERVED:
                    raise TypeError(f"{cls.__name__}.{name}: references use this name themselves; rename it")
                methods[name] = MethodSpec.compile(cls, name, member)
    return Interface(cls, type_name, methods, _checked_affinity(cls))


def _checked_affinity(cls: type) -> Affinity | None:
    affinity: Any = vars(cls).get("__farro_affinity__")
    if affinity is None:
        return None
    if not callable(affinity) or inspect.iscoroutinefunction(affinity):
        raise TypeError(
            f"{cls.__name__}: affinity= takes a plain function from a key to a text, such as "
            f'lambda key: key.split("/")[0], not {affinity!r:.80}'
        )
    return cast(Affinity, affinity)
