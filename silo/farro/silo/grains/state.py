"""How a grain's state is created, encoded, compared, loaded and migrated."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

from farro.client.codec import Codec
from farro.client.conversion import Converter
from farro.client.converters import converter
from farro.client.errors import FarroError, IncompatibleState, InvalidPayload

Migrate = Callable[[int, Any], Any]


class StateSpec:
    """The state type of one grain class: ``annotation`` is the type parameter of ``Grain[...]``."""

    def __init__(self, owner: str, annotation: Any, layout: int, migrate: Migrate) -> None:
        if layout < 1:
            raise TypeError(f"{owner}: layout must be 1 or greater, not {layout}")
        self.layout = layout
        self._owner = owner
        self._path = f"{owner}.state"
        self._migrate = migrate
        self._new = _factory(owner, annotation)
        self._annotation = annotation
        self._compiled: Converter | None = None
        try:
            self._compiled = converter(annotation)
        except NameError:
            pass  # a field names a class that the module defines further down: compiled at first use
        except TypeError as error:
            raise TypeError(f"{owner}: its state cannot be stored: {error}") from error

    @property
    def _converter(self) -> Converter:
        if self._compiled is None:
            self._compiled = converter(self._annotation)
        return self._compiled

    def new(self) -> Any:
        """The state of a grain that has none yet."""
        return self._new()

    def encode(self, state: Any, codec: Codec) -> bytes:
        """The bytes that are compared and committed.  Raises :class:`InvalidPayload` naming the path."""
        return codec.pack_wire((self._compiled or self._converter).encode(state, self._path), self._path)

    def decode(self, data: bytes, layout: int, codec: Codec) -> Any:
        """The state in ``data``, brought from ``layout`` to this class's layout step by step.

        Raises :class:`IncompatibleState` when the data is newer than the code, does not fit it, or a
        migration step raises.
        """
        if layout > self.layout:
            raise IncompatibleState(
                f"{self._owner}: the stored state has layout {layout}, this code knows up to {self.layout}; "
                "deploy the newer code again"
            )
        plain = codec.unpack_wire(data)
        for step in range(layout, self.layout):
            try:
                plain = self._migrate(step, plain)
            except FarroError:
                raise
            except Exception as error:
                raise IncompatibleState(
                    f"{self._owner}.migrate({step}, …) raised {type(error).__name__}: {error}"
                ) from error
        try:
            return self._converter.decode(plain, self._path)
        except InvalidPayload as error:
            raise IncompatibleState(
                f"{self._owner}: the stored state (layout {layout}) does not fit the code: {error}; "
                f"raise layout= and give the class a migrate(from_version, data) step"
            ) from error


def _factory(owner: str, annotation: Any) -> Callable[[], Any]:
    """What makes an empty state: ``dict`` and classes are called without arguments, ``X | None`` is None."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        if type(None) in get_args(annotation):
            return lambda: None
    elif (origin or annotation) in (dict, list, set):
        kind: Callable[[], Any] = origin or annotation
        return kind
    elif isinstance(annotation, type):
        if dataclasses.is_dataclass(annotation):
            for field in dataclasses.fields(annotation):
                if (
                    field.init
                    and field.default is dataclasses.MISSING
                    and field.default_factory is dataclasses.MISSING
                ):
                    raise TypeError(
                        f"{owner}: state field {annotation.__name__}.{field.name} needs a default; "
                        "a grain that was never written starts with the defaults"
                    )
        return annotation
    raise TypeError(
        f"{owner}: {annotation!r} cannot be a grain's state; use a dataclass, msgspec.Struct, "
        "pydantic model, dict, or one of these | None"
    )
