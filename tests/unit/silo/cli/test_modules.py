"""From module names to grain classes, and one line for each way that goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import click
import pytest

from farro.silo.cli.modules import load_grains


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """An empty folder to be in; the path and the modules of Python are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


GRAIN = "from farro.silo import Grain"


def test_every_public_concrete_grain_of_the_module_is_served_imported_ones_too(here: Path) -> None:
    write(here, "a_other.py", GRAIN, "class Imported(Grain): pass")
    write(
        here,
        "a_main.py",
        "from abc import ABC, abstractmethod",
        GRAIN,
        "from a_other import Imported",
        "class Own(Grain, name='owns'): pass",
        "class _Private(Grain): pass",
        "class Abstract(Grain, ABC):",
        "    @abstractmethod",
        "    async def f(self) -> None: ...",
        "number = 5",
    )
    assert [cls.__farro_type__ for cls in load_grains(["a_main", "a_other"])] == ["Imported", "owns"]


def test_a_module_in_a_package_is_found_from_the_current_folder(here: Path) -> None:
    write(here, "b_shop/grains.py", GRAIN, "class Cart(Grain): pass")
    assert [cls.__name__ for cls in load_grains(["b_shop.grains"])] == ["Cart"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("x = 1",), "module c_broken has no grain classes"),
        (("", "raise ValueError('not now')"), "c_broken.py:2: ValueError: not now"),
        (("def f(:",), "c_broken.py:1: SyntaxError"),
        (("", "", "import nowhere_at_all"), "c_broken.py:3: ModuleNotFoundError: No module named"),
        (("import sys", "sys.exit(3)"), "ended the program while it was imported (exit 3)"),
        ((GRAIN, "class Bad(Grain):", "    def f(self): ..."), "c_broken.py"),
        (
            (GRAIN, "class A(Grain, name='x'): pass", "class B(Grain, name='x'): pass"),
            "two grain classes are called 'x'",
        ),
        (("raise ValueError('two\\nlines')",), "two\\nlines"),
    ],
)
def test_a_module_that_cannot_be_served_is_explained_in_one_line(
    here: Path, lines: tuple[str, ...], says: str
) -> None:
    write(here, "c_broken.py", *lines)
    with pytest.raises(click.ClickException) as raised:
        load_grains(["c_broken"])
    assert says in raised.value.message
    assert raised.value.exit_code == 1
    assert "\n" not in raised.value.message


def test_a_module_that_is_not_there_is_named_with_where_it_was_looked_for(here: Path) -> None:
    with pytest.raises(click.ClickException, match=f"no module d_nowhere.sub in {here}") as raised:
        load_grains(["d_nowhere.sub"])
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("name", "guess"),
    [("/shop/counter.py", "shop.counter"), ("./shop/grains.py", "shop.grains"), ("a-b", "as in an import")],
)
def test_a_file_name_in_place_of_a_module_gets_the_way_out(here: Path, name: str, guess: str) -> None:
    with pytest.raises(click.ClickException, match=guess) as raised:
        load_grains([name])
    assert raised.value.exit_code == 2


def test_a_file_in_this_folder_given_with_its_ending_is_recognised(here: Path) -> None:
    write(here, "e_counter.py", GRAIN, "class Counter(Grain): pass")
    with pytest.raises(click.ClickException, match="did you mean e_counter") as raised:
        load_grains(["e_counter.py"])
    assert raised.value.exit_code == 2


def test_an_annotation_that_never_exists_is_one_line_with_class_and_method(here: Path) -> None:
    write(
        here, "f_forward.py", "from __future__ import annotations", GRAIN,
        "class Shop(Grain):", "    async def buy(self, what: Nowhere) -> None: ...",
    )  # fmt: skip
    with pytest.raises(click.ClickException, match=r"Shop \(.*f_forward\.py:3\): Shop\.buy: .*'Nowhere'"):
        load_grains(["f_forward"])
