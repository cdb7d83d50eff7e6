"""What is known of a grain class once it is declared: its type name, methods, operations and state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from farro.client.errors import InvalidGrainId
from farro.client.identity import GrainId
from farro.client.interface import Interface, MethodSpec, interface_of
from farro.silo.grains.state import StateSpec

if TYPE_CHECKING:
    from farro.silo.grains.grain import Grain

Method = Callable[..., Coroutine[Any, Any, Any]]

IDLE_AFTER = timedelta(minutes=15)
RECEIVE_REMINDER = "receive_reminder"
SYSTEM_PREFIX = "farro."
HOOKS = frozenset({"on_activate", "on_deactivate", RECEIVE_REMINDER, "migrate"})


class Operation:
    """One method as the silo runs it: the function and how its arguments and result travel."""

    __slots__ = ("function", "remote", "spec")

    def __init__(self, function: Method, spec: MethodSpec, remote: bool) -> None:
        self.function = function
        self.spec = spec
        self.remote = remote


class GrainClass:
    """A declared grain class.  Mistakes in the declaration raise ``TypeError`` with class, name and line."""

    def __init__(self, cls: type[Grain[Any]], layout: int, idle_after: timedelta | None) -> None:
        self.cls = cls
        self.where = where(cls)
        self.type_name: str = cls.__farro_type__
        try:
            GrainId(self.type_name, "x")  # the name's rules
        except InvalidGrainId as error:
            raise TypeError(f"{self.where}: name={self.type_name!r:.80}: {error}") from None
        _check_names(cls)
        # A silo's own grains: what they raise is the answer, not a failure of somebody's code.
        self.system = bool(cls.__dict__.get("__farro_system__"))
        if self.type_name.startswith(SYSTEM_PREFIX) and not self.system:
            raise TypeError(
                f"{self.where}: grain type names that begin with {SYSTEM_PREFIX!r} are farro's own"
            )
        self.idle_after_s = (idle_after if idle_after is not None else IDLE_AFTER).total_seconds()
        if self.idle_after_s <= 0:
            raise TypeError(f"{self.where}: idle_after must be greater than zero")
        self.interface: Interface = interface_of(cls)
        self.affinity = self.interface.affinity
        self.max_local = 0
        self.operations, self._former = _operations(cls, self.interface)
        self.state = self._state_spec(layout)
        self.receive_reminder = self._receiver()
        self.has_on_activate = _overrides(cls, "on_activate")
        self.has_on_deactivate = _overrides(cls, "on_deactivate")

    def _receiver(self) -> Operation | None:
        """``receive_reminder`` when the class overrides it: where named reminders go."""
        if not _overrides(self.cls, RECEIVE_REMINDER):
            return None
        function = self.cls.receive_reminder
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{self.where}: receive_reminder must be 'async def'")
        return Operation(function, MethodSpec.compile(self.cls, RECEIVE_REMINDER, function), remote=False)

    def canonical_operation(self, name: str) -> str | None:
        """The method's name of today for a stored or given name; None when there is none."""
        return name if name in self.operations else self._former.get(name)

    def former_names(self, name: str) -> list[str]:
        """The names that ``@operation`` says a method had before."""
        return [old for old, new in self._former.items() if new == name] if self._former else []

    def _state_spec(self, layout: int) -> StateSpec | None:
        annotation = _state_annotation(self.cls)
        if annotation is None:
            return None
        return StateSpec(f"{self.where}", annotation, layout, self.cls.migrate)


def where(cls: type) -> str:
    """``module.Class (file:line)`` for error texts."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    try:
        line = inspect.getsourcelines(cls)[1]
        file = inspect.getsourcefile(cls) or "?"
    except (OSError, TypeError):  # made in a shell or by exec: there is no file to name
        return name
    return f"{name} ({file}:{line})"


def _is_base(cls: type) -> bool:
    return bool(cls.__dict__.get("__farro_base__"))


def _overrides(cls: type, name: str) -> bool:
    return any(name in base.__dict__ for base in cls.__mro__ if not _is_base(base))


def _check_names(cls: type) -> None:
    """Nothing but the hooks may take the place of what every grain has."""
    own = {"state", "_farro_id", "_farro_runtime"}
    own = own.union(*(base.__dict__ for base in cls.__mro__ if _is_base(base))) - HOOKS
    for base in cls.__mro__:
        if _is_base(base) or base is object:
            continue
        for name, value in base.__dict__.items():
            if name in own and not name.startswith("__"):
                code = getattr(getattr(value, "fget", value), "__code__", None)
                line = "" if code is None else f" (line {code.co_firstlineno})"
                raise TypeError(f"{where(base)}: {name!r}{line} is Grain's own; choose another name")


def _operations(cls: type[Grain[Any]], interface: Interface) -> tuple[dict[str, Operation], dict[str, str]]:
    """Every async method by name, private ones included (they can be scheduled), and former names → name."""
    reserved = {name for base in cls.__mro__ if _is_base(base) or base is object for name in base.__dict__}
    found: dict[str, Operation] = {}
    former: dict[str, str] = {}
    for name in dir(cls):
        if name in reserved or name.startswith("__"):
            continue
        function = inspect.getattr_static(cls, name)
        if not inspect.isfunction(function):
            continue
        if not inspect.iscoroutinefunction(function):
            if not name.startswith("_"):
                line = function.__code__.co_firstlineno
                problem = "is not 'async def'; make it async"
                if inspect.isasyncgenfunction(function):
                    problem = (
                        "yields, and a call has one result: return a list, or publish events to a stream"
                    )
                raise TypeError(
                    f"{where(cls)}: public method {name!r} (line {line}) {problem}, "
                    "or make it private with a leading underscore"
                )
            continue
        remote = interface.methods.get(name)
        spec = remote if remote is not None else MethodSpec.compile(cls, name, function)
        found[name] = Operation(function, spec, remote is not None)
        for old in getattr(function, "__farro_old_names__", ()):
            former[old] = name
    for old, name in former.items():
        if old in found:
            raise TypeError(f"{where(cls)}: @operation({old!r}) on {name!r}, but {old!r} is a method too")
    return found, former


def _state_annotation(cls: type) -> Any:
    """The argument of ``Grain[...]`` nearest to ``cls``, or None."""
    for base in cls.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            origin = get_origin(generic)
            if isinstance(origin, type) and _is_base(origin):
                (annotation,) = get_args(generic)
                if not isinstance(annotation, TypeVar):
                    return None if annotation is type(None) else annotation
    return None
