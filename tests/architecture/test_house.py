"""The package keeps the rules of the house.  The floors (who may import whom) are import-linter's part."""

from __future__ import annotations

import importlib
import inspect
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture import rules

HOME = Path(__file__).parents[2]
ROOTS = tuple(HOME / name for name in ("client", "providers", "silo"))
CLOCK = "farro.client.clock"
TASK_STARTERS = frozenset(
    {"farro.silo.tasks", "farro.client.connection", "farro.client.client", "farro.client.blocking"}
)
TEST_KITS = ("farro.silo.testing", "farro.providers.conformance")
REGISTRIES = ("pypi" + ".org", "files.python" + "hosted.org", "registry.npm" + "js.org", "--index" + "-url")
PLANTED = "tests/architecture/"


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path, root): path for root in ROOTS for path in sorted((root / "farro").rglob("*.py"))}
ROOMS = frozenset(MODULES) | {name.rpartition(".")[0] for name in MODULES}


def _broken(
    rule: Callable[[str], list[str]], spared: Callable[[str], bool] = lambda name: False
) -> list[str]:
    """Every finding of a rule in the package, but for the modules that are spared."""
    return [
        f"{path.relative_to(HOME)}:{finding}"
        for name, path in MODULES.items()
        if not spared(name)
        for finding in rule(path.read_text(encoding="utf-8"))
    ]


def _tracked() -> list[Path]:
    """Files that git knows; in a source archive without git, every file that could be."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        paths = [HOME / name for name in listed.stdout.split("\0") if name]
        return [path for path in paths if path.is_file()]
    tops = [*ROOTS, *(HOME / name for name in ("tests", "examples", "benchmarks", "docs"))]
    return [path for top in tops for path in top.rglob("*") if path.suffix in (".py", ".sql", ".md")]


def test_the_rules_see_all_three_roots() -> None:
    assert {"farro.client.clock", "farro.providers.contracts", "farro.silo.testing.virtual_time"} <= set(
        MODULES
    )


def test_farro_is_a_namespace_without_a_file_of_its_own() -> None:
    assert [root for root in ROOTS if (root / "farro" / "__init__.py").exists()] == []


def test_only_the_clock_reads_time() -> None:
    assert _broken(rules.clock_readers, lambda name: name == CLOCK) == []


def test_only_the_task_owners_start_tasks() -> None:
    def spared(name: str) -> bool:
        return name in TASK_STARTERS or name.startswith(TEST_KITS)

    assert _broken(rules.task_starters, spared) == []


def test_chance_comes_in_by_the_door() -> None:
    assert _broken(rules.dice_throwers) == []


def test_nothing_but_the_command_line_prints() -> None:
    assert _broken(rules.printers, lambda name: name.startswith("farro.silo.cli")) == []


def test_no_exception_is_swallowed() -> None:
    assert _broken(rules.swallowers) == []


def test_imports_are_absolute_and_name_the_file() -> None:
    def front_door_users(source: str) -> list[str]:
        return rules.front_door_users(source, ROOMS)

    assert _broken(rules.relative_imports) == []
    assert _broken(front_door_users, lambda name: name in rules.FRONT_DOORS) == []


def test_the_init_of_a_room_is_a_sign_with_only_a_docstring() -> None:
    assert (
        _broken(
            rules.sign_faults,
            lambda name: MODULES[name].name != "__init__.py" or name in rules.FRONT_DOORS,
        )
        == []
    )


def test_every_module_says_what_it_is_for() -> None:
    assert _broken(rules.missing_docstring) == []


@pytest.mark.parametrize("door", sorted(rules.FRONT_DOORS))
def test_everything_at_a_front_door_has_a_docstring(door: str) -> None:
    path = MODULES[door]
    assert rules.front_door_faults(path.read_text(encoding="utf-8")) == []
    module = importlib.import_module(door)
    bare: list[str] = []
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        text = thing.__doc__ or ""
        if not text or text.startswith(f"{name}("):  # what dataclass writes when nobody did
            bare.append(name)
    assert bare == []


def test_every_query_is_named_and_described() -> None:
    faults = [
        f"{path.relative_to(HOME)}:{finding}"
        for root in ROOTS
        for path in sorted(root.rglob("*.sql"))
        if not path.name[:1].isdigit()  # numbered files are migrations
        for finding in rules.query_faults(path.read_text(encoding="utf-8"))
    ]
    assert faults == []


def test_no_file_names_a_developers_machine_or_a_registry() -> None:
    machine = [f"{Path.home()}/", f"{HOME}/", "/" + "root/", "/" + "Users/"]
    faults: list[str] = []
    for path in _tracked():
        name = path.relative_to(HOME).as_posix()
        if name.startswith(PLANTED):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        # recorded cases quote other people's crontabs, paths included
        words = REGISTRIES if path.suffix == ".jsonl" else (*REGISTRIES, *machine)
        faults += [f"{name}:{finding}" for finding in rules.machine_traces(text, words)]
    assert faults == []


def test_nothing_is_marked_as_unfinished() -> None:
    faults = [
        f"{path.relative_to(HOME)}:{finding}"
        for path in _tracked()
        if path.suffix in (".py", ".sql", ".toml")
        and not path.relative_to(HOME).as_posix().startswith(PLANTED)
        for finding in rules.unfinished(path.read_text(encoding="utf-8"))
    ]
    assert faults == []
