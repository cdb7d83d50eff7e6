"""Mistakes in a grain class, and with its objects, are told in words that lead out of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from farro.client.errors import TurnEnded, UnknownOperation
from farro.silo.grains import reminder_book
from farro.silo.grains.decorators import cancellable, oneway, readonly
from farro.silo.grains.grain import Grain
from farro.silo.grains.subscriptions import subscribe


@dataclass
class Items:
    count: int = 0


class TodoList(Grain[Items], name="todo"):
    async def remind(self) -> None:
        pass

    async def _tidy(self) -> None:
        pass

    def _not_async(self) -> None:
        pass

    async def _yields(self) -> AsyncIterator[int]:
        yield 1


# ---- names


def _nothing(self: Any) -> None:
    pass


async def _nothing_async(self: Any) -> None:
    pass


@pytest.mark.parametrize(
    "name", ["tick", "key", "schedule", "destroy", "state", "reminders", "log", "publish", "_farro_id"]
)
@pytest.mark.parametrize(
    "value", [_nothing, _nothing_async, property(_nothing), 5], ids=["method", "async", "property", "value"]
)
def test_a_name_of_grains_own_cannot_be_taken(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"Taker.*'{name}'.*is Grain's own; choose another name"):
        type("Taker", (Grain,), {name: value})


def test_the_line_of_a_taken_name_is_told_also_of_a_mixin() -> None:
    class Mixin:
        async def tick(self) -> None:
            pass

    with pytest.raises(TypeError, match=r"Mixin \(.*\.py:\d+\): 'tick' \(line \d+\)"):
        type("Taker", (Mixin, Grain), {})


def test_the_hooks_may_be_overridden() -> None:
    class Hooked(Grain[Items], layout=2):
        async def on_activate(self) -> None:
            pass

        async def on_deactivate(self, reason: str) -> None:
            pass

        @classmethod
        def migrate(cls, from_version: int, data: Any) -> Any:
            return data

    assert Hooked.__farro_class__.has_on_activate


def test_a_bad_type_name_names_the_class() -> None:
    with pytest.raises(TypeError, match=r"Slashed.*name='a/b'"):
        type("Slashed", (Grain,), {}, name="a/b")


def test_an_async_generator_is_told_what_it_is() -> None:
    async def numbers(self: Any) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"'numbers' \(line \d+\) yields"):
        type("Yielding", (Grain,), {"numbers": numbers})


# ---- objects made by hand


@pytest.mark.parametrize("name", ["state", "key", "id", "log"])
def test_an_object_made_by_hand_says_so(name: str) -> None:
    with pytest.raises(AttributeError, match=r"made by hand.*silo\.grain\(TodoList, key\)"):
        getattr(TodoList(), name)


@pytest.mark.parametrize(
    "effect",
    [
        lambda todo: todo.schedule(todo.remind),
        lambda todo: todo.unschedule(todo.remind),
        lambda todo: todo.publish("s", 1),
        lambda todo: todo.deactivate(),
        lambda todo: todo.destroy(),
    ],
)
def test_an_effect_of_an_object_made_by_hand_is_outside_a_turn(effect: Callable[[TodoList], None]) -> None:
    with pytest.raises(TurnEnded):
        effect(TodoList())


# ---- operations


def _elsewhere() -> None:
    pass


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (lambda: None, r"pass a method of this grain, such as self\.x"),
        (print, r"pass a method of this grain, such as self\.x"),
        (_elsewhere, r"not a method of todo"),
        ("remimd", "did you mean 'remind'"),
        ("_not_async", "'async def'"),
        (TodoList._not_async, "'async def'"),
        (TodoList._yields, "without 'yield'"),
        ("schedule", "cannot be scheduled"),
        ("remind:1", "as key="),
    ],
)
def test_what_is_no_operation_is_told_with_a_way_out(operation: Any, says: str) -> None:
    with pytest.raises(UnknownOperation, match=says):
        reminder_book._operation_name(TodoList.__farro_class__, operation)


def test_methods_and_names_are_operations() -> None:
    for operation in (TodoList.remind, "remind"):
        assert reminder_book._operation_name(TodoList.__farro_class__, operation) == "remind"
    assert reminder_book._operation_name(TodoList.__farro_class__, TodoList()._tidy) == "_tidy"


# ---- decorators


@pytest.mark.parametrize("mark", [readonly, oneway, cancellable])
def test_a_mark_with_parentheses_says_that_it_has_none(mark: Any) -> None:
    with pytest.raises(
        TypeError, match=f"@{mark.__name__} goes on an 'async def' method, without parentheses"
    ):
        mark()


def test_subscribe_without_parentheses_asks_for_the_stream() -> None:
    with pytest.raises(TypeError, match=r'_nothing_async.*@subscribe\("orders"\)'):
        subscribe(_nothing_async)  # type: ignore[arg-type]
