"""The documents cannot rot: their code runs, their commands parse, their tables are the code's own."""

from __future__ import annotations

import enum
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from farro.client import BlockingClient, Client, errors
from farro.client import reminders as values
from farro.client.management import Reminders
from farro.providers import errors as store_errors
from farro.silo import (
    ActivationOptions,
    Cron,
    Grain,
    ReminderOptions,
    Silo,
    SiloOptions,
    StreamOptions,
    metrics,
)
from farro.silo.cli.main import farro
from farro.silo.options import EVENT_BYTES_CEILING
from farro.silo.reminders.due_queue import AGED_ONE_IN
from farro.silo.reminders.statistics import LATENESS_BOUNDS_S
from farro.silo.testing import VirtualClock
from tests.acceptance.processes import HOME

DOCS = sorted((HOME / "docs").rglob("*.md"))
NAMES = [str(path.relative_to(HOME)) for path in DOCS]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN, OTHER = "python", "python before"  # the second is another system's code: it only has to be Python
LANGUAGES = {RUN, OTHER, "console", "sh", "bash", "text", "sql", "toml", "typescript", ""}
RUN_ELSEWHERE = {"docs/quickstart.md"}  # by test_readme, file by file and with its output
ONLY_COMPILED = {"docs/how-to/write-a-provider.md"}  # its code imports the store that the reader writes
UNITS = [("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000)]


def text(name: str) -> str:
    return (HOME / name).read_text(encoding="utf-8")


def blocks(name: str, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(text(name)) if language in languages]


def having(*languages: str) -> list[str]:
    return [name for name in NAMES if name not in RUN_ELSEWHERE and blocks(name, *languages)]


# ---------------------------------------------------------------- code


@pytest.mark.parametrize("name", NAMES)
def test_a_code_block_says_what_it_is(name: str) -> None:
    assert {language for language, _ in FENCE.findall(text(name))} <= LANGUAGES


# hands on silo.address, which is None only without a gateway
NOT_STRICT = {"docs/how-to/use-streams.md"}
RUNNABLE = [name for name in having(RUN) if name not in ONLY_COMPILED]


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_python_of_a_document_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("document_" + re.sub(r"\W", "_", name))
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where annotations are looked up
    for number, body in enumerate(blocks(name, RUN), 1):
        exec(compile(body, f"{name}, block {number}", "exec"), module.__dict__)


@pytest.mark.parametrize("name", sorted({*having(OTHER), *ONLY_COMPILED}))
def test_the_python_that_cannot_run_here_is_python(name: str) -> None:
    for body in blocks(name, RUN, OTHER):
        compile(body, name, "exec")


@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy belongs to the tools of development")
def test_the_python_of_the_documents_type_checks(tmp_path: Path) -> None:
    for name in set(RUNNABLE) - NOT_STRICT:
        path = tmp_path / (re.sub(r"\W", "_", name.removesuffix(".md")) + ".py")
        path.write_text("\n\n".join(blocks(name, RUN)), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--follow-imports", "silent"]
    done = subprocess.run(
        [*command, *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=HOME, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.replace(str(tmp_path), "") + done.stderr


# ---------------------------------------------------------------- commands


def commands(name: str) -> Iterator[str]:
    for language, body in FENCE.findall(text(name)):
        for line in body.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ") if language == "console" and line.startswith("$ ") else line
            told = language in ("sh", "bash", "") or command is not line
            if told and command.startswith("farro "):
                yield command


def parsed(words: list[str]) -> click.Context:
    """The context of the innermost command; raises ``click.UsageError`` for what does not parse."""
    context = click.Context(farro, info_name="farro")
    command: click.Command = farro
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if inner is None:
            raise click.UsageError(f"{context.command_path} has no command {words[0]!r}")
        context = click.Context(inner, info_name=words[0], parent=context)
        command, words = inner, words[1:]
    try:
        return command.make_context(context.info_name, list(words), parent=context.parent)
    except click.exceptions.Exit:  # --help, --version
        return context


@pytest.mark.parametrize("name", [*NAMES, "README.md", "examples/README.md"])
def test_every_command_line_parses(name: str) -> None:
    for command in commands(name):
        try:
            parsed(shlex.split(command, comments=True)[1:])
        except click.UsageError as error:
            pytest.fail(f"{name}: {command}\n{error.format_message()}")


def test_a_command_line_that_does_not_parse_is_found() -> None:
    wrong = ["silo", "cron nxt '* * * * *'", "call a b", "cron next x --coun 3"]
    for line in wrong:
        with pytest.raises(click.UsageError):
            parsed(shlex.split(line))
    assert sum(len(list(commands(name))) for name in NAMES) > 15


# ---------------------------------------------------------------- links


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text(name))):
        if ":" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (HOME / name).parent / file if file else HOME / name
        assert path.exists(), f"{name}: {target}"
        assert not anchor or anchor in anchors(path), f"{name}: {target}"


def test_the_index_lists_every_document() -> None:
    index = HOME / "docs/index.md"
    linked = {
        (index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", text("docs/index.md"))
    }
    assert [name for name in NAMES if (HOME / name) != index and (HOME / name).resolve() not in linked] == []


# ---------------------------------------------------------------- options, errors, metrics


def section(name: str, title: str) -> str:
    """What stands under the heading that begins with ``title``, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\b.*?$(.*?)(?=^#+ |\Z)", text(name), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} has no section {title}"
    return found[1]


def rows(part: str) -> dict[str, list[str]]:
    """The table rows of a section by the names in their first cell, the other cells as they stand."""
    table: dict[str, list[str]] = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            for each in re.findall(r"`(\w+)`", cells[0]):
                table[each] = cells[1:]
    return table


def shown(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
        return next((f"{us // size} {unit}" for unit, size in UNITS if us % size == 0), f"{us} µs")
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    return f"`{type(value).__name__}()`" if is_dataclass(value) else f"`{value}`"


@pytest.mark.parametrize("options", [SiloOptions, ReminderOptions, ActivationOptions, StreamOptions])
def test_every_option_stands_there_with_its_default(options: type[Any]) -> None:
    stated = {
        name: cells[0] for name, cells in rows(section("docs/reference/options.md", options.__name__)).items()
    }
    assert stated == {each.name: shown(getattr(options(), each.name)) for each in fields(options)}


def test_every_error_stands_there_with_its_two_answers() -> None:
    kinds: list[type[errors.FarroError]] = [errors.FarroError, *_below(errors.FarroError)]
    table = rows(section("docs/reference/errors.md", "What a caller gets"))
    stated = {name: tuple(cells[:3]) for name, cells in table.items()}
    yes_no = {True: "yes", False: "·"}
    assert stated == {
        kind.__name__: (f"`{kind.code}`", str(kind.turn_ran), yes_no[kind.retry_safe]) for kind in kinds
    }


def test_every_store_error_stands_there() -> None:
    stated = set(rows(section("docs/reference/errors.md", "What the author of a silo gets")))
    ours = {kind.__name__ for kind in _below(store_errors.StoreError)}
    assert stated == {"StoreError", "OptionsError", *ours}


def _below(kind: type[Any]) -> list[type[Any]]:
    """Its subclasses that are farro's own; tests and other documents may have made some."""
    children = [each for each in kind.__subclasses__() if each.__module__ == kind.__module__]
    return [*children, *(deeper for each in children for deeper in _below(each))]


@pytest.mark.parametrize(
    "figures", [each for each in vars(metrics).values() if is_dataclass(each) and isinstance(each, type)]
)
def test_every_figure_stands_there(figures: type[Any]) -> None:
    stated = list(rows(section("docs/reference/metrics.md", figures.__name__)))
    assert sorted(stated) == sorted(each.name for each in fields(figures))


def test_the_numbers_that_stand_in_sentences_are_the_codes() -> None:
    options = ReminderOptions()
    priorities = " ".join(text("docs/reference/priorities.md").split())
    assert AGED_ONE_IN == 8 and "**one start in eight**" in priorities
    assert options.background_wait_max == timedelta(seconds=60) and "(**60 s**)" in priorities
    assert f"at most {EVENT_BYTES_CEILING:,}" in text("docs/reference/options.md")
    bounds = [f"{bound * 1000:g}" for bound in LATENESS_BOUNDS_S if bound < 1]
    bounds[-1] += " ms"
    bounds += [f"{bound:g}" for bound in LATENESS_BOUNDS_S if bound >= 1]
    assert ", ".join(bounds) + " s" in " ".join(text("docs/reference/metrics.md").split())


# ---------------------------------------------------------------- api

API = "docs/reference/api.md"
FRONT_DOORS = ["farro.silo", "farro.client", "farro.providers", "farro.silo.testing"]
LEFT_OUT = {"machine_load", "network", "dial", "chance", "caller"}  # told in a sentence beside the signature


def signature(name: str, function: Any) -> str:
    """As the page writes it: names and defaults, no annotations."""
    parts: list[str] = []
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    for place, each in enumerate(parameters):
        if each.name in LEFT_OUT:
            continue
        before = parameters[place - 1] if place else None
        if (
            before is not None
            and before.kind is each.POSITIONAL_ONLY
            and each.kind is not each.POSITIONAL_ONLY
        ):
            parts.append("/")
        if each.kind is each.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = "*" * ((each.kind is each.VAR_POSITIONAL) + 2 * (each.kind is each.VAR_KEYWORD))
        default = "" if each.default is each.empty else f"={_default(each.default)}"
        parts.append(f"{star}{each.name}{default}")
    if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return f"{name}({', '.join(parts)})"


def _default(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def members(cls: type[Any]) -> Iterator[str]:
    """Every public member as the page writes it: a signature, or the bare name of a property or field."""
    for name in sorted(each for each in dir(cls) if not each.startswith("_")):
        member = inspect.getattr_static(cls, name)
        member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not inspect.isfunction(member):
            yield name
        else:
            bound = (
                getattr(cls, name) if isinstance(inspect.getattr_static(cls, name), classmethod) else member
            )
            yield signature(name, bound)


def spans() -> set[str]:
    """Every code span of the page, on one line."""
    return {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text(API)))}


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_every_name_of_a_front_door_stands_there(door: str) -> None:
    module = import_module(door)
    known = set(re.findall(r"\w+", " ".join([*spans(), text("docs/reference/errors.md")])))
    assert [name for name in module.__all__ if name not in known] == []


@pytest.mark.parametrize("cls", [Grain, Silo, Client, BlockingClient, Reminders, Cron, VirtualClock])
def test_every_public_member_stands_there_as_it_is_called(cls: type[Any]) -> None:
    assert [member for member in members(cls) if member not in spans()] == []


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_every_function_of_a_front_door_stands_there_as_it_is_called(door: str) -> None:
    module = import_module(door)
    functions = [(name, getattr(module, name)) for name in module.__all__]
    stated = spans()
    missing = [signature(name, each) for name, each in functions if inspect.isfunction(each)]
    assert [each for each in missing if each not in stated] == []


def test_constructors_stand_there_as_they_are_called() -> None:
    for cls in (Silo, Client, Cron, values.ReminderQuery):
        assert signature(cls.__name__, cls) in spans()


@pytest.mark.parametrize("cls", [values.Tick, values.TickStatus, values.ReminderStatus])
def test_every_field_of_a_value_stands_there(cls: type[Any]) -> None:
    line = next(line for line in text(API).splitlines() if line.startswith(f"- `{cls.__name__}`:"))
    stated = set(re.findall(r"`(\w+)`", line)) - {cls.__name__}
    extra = {name for name in dir(cls) if isinstance(getattr(cls, name), property)}
    assert stated == {each.name for each in fields(cls)} | extra
    assert all(each.default is MISSING for each in fields(cls))
