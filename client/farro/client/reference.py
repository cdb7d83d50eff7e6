"""References: the address of a grain, with its methods.

A reference holds a grain id, the caller that will carry its calls, and a timeout; making one activates
nothing.  For each interface one subclass of :class:`Reference` is built, with one function per remote method.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from farro.client.errors import InvalidPayload, NotRemote
from farro.client.identity import GrainId, Key, canonical_key
from farro.client.requests import RequestCaller

if TYPE_CHECKING:
    from farro.client.interface import Interface, MethodSpec

TIMEOUT_S_MAX = 7 * 86_400.0


class Caller(Protocol):
    """What carries a call: a client, or a silo for its own grains."""

    def invoke(
        self,
        grain_type: str,
        grain_key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        request_id: str | None = None,
    ) -> Awaitable[Any]:
        """Call one method.  ``timeout`` in seconds; None: the method's own, else the caller's default.

        ``request_id`` is for an ``@idempotent_request``; None: one that nobody else has.
        """
        ...


def checked_timeout(timeout: float | None) -> float | None:
    """The timeout in seconds as given; ``ValueError`` unless it is above 0 and at most seven days."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ValueError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= TIMEOUT_S_MAX:
        raise ValueError(f"timeout must be above 0 and at most {TIMEOUT_S_MAX:.0f} seconds, not {timeout}")
    return float(timeout)


class Reference:
    """The address of one grain.  Equal to every other reference to the same grain id."""

    __slots__ = ("_caller", "_id", "_key", "_timeout", "_type")

    _interface: Interface | None = None

    def __init__(self, grain_id: GrainId, caller: Caller | None, timeout: float | None = None) -> None:
        self._id = grain_id
        self._type = grain_id.type
        self._key = grain_id.key
        self._caller = caller
        self._timeout = timeout

    @property
    def grain_id(self) -> GrainId:
        return self._id

    def with_options(self, *, timeout: float | None = None, request_id: str | None = None) -> Any:
        """The same reference with these options and the defaults of all others.

        Its calls wait at most ``timeout`` seconds.  With a ``request_id`` each of its methods that is an
        ``@idempotent_request`` takes effect once per id, whoever calls it how often within the silo's
        ``request_window``; the others raise :class:`InvalidPayload`.
        """
        caller = self._caller.inner if isinstance(self._caller, RequestCaller) else self._caller
        if request_id is not None and caller is not None:
            caller = RequestCaller(caller, request_id)
        return type(self)(self._id, caller, checked_timeout(timeout))

    def __eq__(self, other: object) -> bool:
        return self._id == other._id if isinstance(other, Reference) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"<reference {ascii(str(self._id))[1:-1]}>"

    # An address is a value: copying what holds it must not copy the client behind it.
    def __copy__(self) -> Reference:
        return self

    def __deepcopy__(self, memo: object) -> Reference:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled; store str(reference.grain_id) and ask a client again")

    def __getattr__(self, name: str) -> NoReturn:
        raise NotRemote(self._why_not(name))

    def _why_not(self, name: str) -> str:
        if name.startswith("__"):
            return f"{self!r} has no attribute {name!r}"
        if self._interface is None:
            return (
                f"{self!r} is untyped, so {name!r} is not known; "
                "annotate where it comes from with the grain class, or use client.call(type, key, method, …)"
            )
        return self._interface.why_not_remote(name)


def untyped_reference(grain_type: str, grain_key: str, caller: Caller | None) -> Reference:
    """A reference without methods: what arrives where no grain class is declared."""
    return Reference(GrainId(grain_type, grain_key), caller)


def reference(interface: Interface, key: Key, caller: Caller | None, timeout: float | None = None) -> Any:
    """A typed reference to the grain of that interface with that key.

    Raises :class:`InvalidGrainId` for a key that is not a str, int or UUID within the limits.
    """
    grain_id = GrainId(interface.type_name, canonical_key(key))
    return interface.reference_class(grain_id, caller, timeout)


def rebound(interface: Interface, found: Reference) -> Any:
    """The same address and caller as a typed reference of that interface."""
    cls = interface.reference_class
    return found if type(found) is cls else cls(found._id, found._caller, found._timeout)


def reference_class(interface: Interface) -> type[Reference]:
    """The subclass of :class:`Reference` that has the methods of the interface."""
    namespace: dict[str, Any] = {"__slots__": (), "_interface": interface, "__doc__": interface.doc}
    for name, spec in interface.methods.items():
        namespace[name] = _remote_method(spec)
    return type(f"{interface.class_name}Reference", (Reference,), namespace)


def _remote_method(spec: MethodSpec) -> Callable[..., Awaitable[Any]]:
    def call(self: Reference, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        caller = self._caller
        if caller is None:
            raise InvalidPayload(f"{self!r} belongs to no client or silo; get one from client.grain(…)")
        return caller.invoke(self._type, self._key, spec, args, kwargs, self._timeout)

    call.__name__ = spec.name
    call.__qualname__ = f"{spec.owner}.{spec.name}"
    call.__doc__ = spec.doc
    call.__farro_spec__ = spec  # type: ignore[attr-defined]
    return call


def close_names(name: str, known: list[str]) -> str:
    """``"; did you mean 'x'?"`` or nothing."""
    close = difflib.get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
