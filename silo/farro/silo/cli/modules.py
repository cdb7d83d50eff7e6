"""From module names on the command line to the grain classes in them."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import farro.client.identity
import farro.silo.options
from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.grains.grain import Grain
from farro.silo.grains.grain_class import where

GrainType = type[Grain[Any]]

# the standard library, farro.silo and farro.client: a line in there is not where the author's mistake is
_NOT_THE_AUTHORS = tuple(
    Path(inspect.getfile(part)).parent for part in (inspect, farro.silo.options, farro.client.identity)
)


def load_grains(names: Iterable[str]) -> list[GrainType]:
    """The grain classes of the modules, in the order of their appearance, each once.

    The current folder is looked at first, then PYTHONPATH and the installed packages.  Raises
    :class:`Failed` or :class:`BadUsage`, naming the module, what is wrong with it and where.
    """
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    found: dict[str, GrainType] = {}
    for name in names:
        classes = grains_in(_imported(name))
        if not classes:
            raise Failed(
                f"module {name} has no grain classes: define or import subclasses of farro.silo.Grain in it "
                "(names that begin with an underscore are not served)"
            )
        for cls in classes:
            _check_annotations(cls)
            other = found.setdefault(cls.__farro_type__, cls)
            if other is not cls:
                raise Failed(
                    f"two grain classes are called {cls.__farro_type__!r}: {where(other)} and {where(cls)}; "
                    "give one of them another name="
                )
    return list(found.values())


def _check_annotations(cls: GrainType) -> None:
    """What methods were declared with must exist once the module is read."""
    for operation in cls.__farro_class__.operations.values():
        try:
            operation.spec.resolve()
        except TypeError as error:
            raise Failed(f"{where(cls)}: {one_line(str(error))}") from None


def grains_in(module: ModuleType) -> list[GrainType]:
    """The public concrete grain classes that are attributes of ``module``, defined or imported there."""
    return [
        thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing)
        and issubclass(thing, Grain)
        and thing is not Grain
        and not name.startswith("_")
        and not inspect.isabstract(thing)
    ]


def _imported(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadUsage(f"{name!r} is not the name of a module{_guess(name)}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            if (Path.cwd() / name).is_file():
                raise BadUsage(f"{name!r} is a file, and modules are meant{_guess(name)}") from None
            raise Failed(
                f"there is no module {name} in {Path.cwd()}, in PYTHONPATH or among the installed packages"
            ) from None
        raise _import_failed(name, error) from None
    except SystemExit as error:
        raise Failed(f"module {name} ended the program while it was imported (exit {error.code})") from None
    except Exception as error:
        raise _import_failed(name, error) from None


def _guess(name: str) -> str:
    path = name.removesuffix(".py").removeprefix("./").strip("/")
    guess = path.replace("/", ".").replace(os.sep, ".")
    fits = guess != name and all(part.isidentifier() for part in guess.split("."))
    return f"; did you mean {guess}?" if fits else "; write it as in an import, such as myapp.grains"


def _import_failed(name: str, error: Exception) -> Failed:
    """One line that leads the author to the line of theirs that raised."""
    text = one_line(str(error)) or "(no text)"
    if isinstance(error, SyntaxError) and error.filename:
        text, place = one_line(error.msg), f"{_shown(error.filename)}:{error.lineno}"
    else:
        place = _author_line(error.__traceback__)
    return Failed(f"module {name} cannot be imported: {place}: {type(error).__name__}: {text}")


def _author_line(trace: TracebackType | None) -> str:
    """``file:line`` of the innermost frame that is neither farro, nor the import machinery, nor installed."""
    frames = [
        frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<frozen importlib")
    ]
    own = [frame for frame in frames if not _is_installed(frame.filename)]
    frame = (own or frames)[-1]
    return f"{_shown(frame.filename)}:{frame.lineno}"


def _is_installed(filename: str) -> bool:
    path = Path(filename)
    return "site-packages" in path.parts or any(path.is_relative_to(folder) for folder in _NOT_THE_AUTHORS)


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
