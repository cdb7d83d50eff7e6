"""Declared types: what they take, what they give back, what they refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from farro.client.codec import Codec
from farro.client.converters import converter
from farro.client.errors import InvalidPayload
from farro.client.reminders import ReminderHandle

T = TypeVar("T")
UserId = NewType("UserId", str)


class Status(StrEnum):
    NEW = "new"
    SENT = "sent"


class Level(IntEnum):
    LOW = 1


class Shape(Enum):
    ROUND = (1, 2)


class Point(NamedTuple):
    x: int
    y: int = 7


class Options(TypedDict, total=False):
    depth: int


@dataclass
class Line:
    sku: str
    count: int = 1
    price: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    lines: list[Line]
    status: Status = Status.NEW
    chase: ReminderHandle | None = None
    tags: frozenset[str] = frozenset()
    notes: dict[UserId, str] = field(default_factory=dict)


class BigLine(Line):
    pass


@dataclass
class Tree:
    value: int
    left: Tree | None = None
    kids: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class Box(Generic[T]):
    item: T


@dataclass
class Timed:
    start: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError("start must not be negative")
        self.twice = self.start * 2


class Struct(msgspec.Struct):
    a: int
    b: list[int] = []


class Model(pydantic.BaseModel):
    a: int
    b: Decimal = Decimal(1)


@dataclass
class WithInit:
    a: InitVar[int]


def through_the_wire(annotation: Any, value: Any) -> Any:
    codec = Codec()
    compiled = converter(annotation)
    return compiled.decode(codec.unpack_wire(codec.pack_wire(compiled.encode(value))))


ORDER = Order(
    lines=[Line("a", 2, Decimal("1.10")), Line("b")],
    status=Status.SENT,
    chase={"reminder_name": "r"},
    tags=frozenset({"x", "y"}),
    notes={UserId("u"): "hello"},
)

KEPT: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Tree, Tree(1, Tree(2), [Tree(3), Tree(4)])),
    (Box[int], Box(3)),
    (set[Box[int]], {Box(1), Box(2)}),
    (Timed, Timed(3)),
    (Struct, Struct(1, [2])),
    (Model, Model(a=1)),
    (Point, Point(1)),
    (Options, {"depth": 3}),
    (Options, {}),
    (Status, Status.NEW),
    (Level, Level.LOW),
    (Shape, Shape.ROUND),
    (dict[UUID, Level], {UUID(int=1): Level.LOW}),
    (int | str | None, None),
    (int | str | None, "x"),
    (Order | None, ORDER),
    (float | int, 3),
    (float, 3),
    (Literal["a", 1, None], 1),
    (UserId, "u"),
    (Annotated[int, "a note"], 1),
    (tuple[int, str], (1, "x")),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[()], ()),
    (list, [1, {"x": (2,)}]),
    (Any, [1, {"x": (2,)}]),
    (datetime, datetime(2024, 1, 1, tzinfo=UTC)),
    (bytes | None, b"x"),
]


@pytest.mark.parametrize(("annotation", "value"), KEPT, ids=lambda thing: ascii(thing)[:40])
def test_a_declared_value_comes_back_equal_and_of_the_same_type(annotation: Any, value: Any) -> None:
    back = through_the_wire(annotation, value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("annotation", "value"), KEPT, ids=lambda thing: ascii(thing)[:40])
def test_what_passes_through_is_the_same_without_decoding(annotation: Any, value: Any) -> None:
    compiled = converter(annotation)
    wire = compiled.encode(value)
    if compiled.passes_through:
        assert compiled.decode(wire) == wire == value
    else:
        assert compiled.decode(wire) == value


def test_nothing_mutable_is_shared_with_what_was_encoded_ser_008() -> None:
    order = Order(lines=[Line("a")], notes={UserId("u"): "x"})
    wire = converter(Order).encode(order)
    order.lines.append(Line("b"))
    order.notes[UserId("v")] = "y"
    assert len(wire["lines"]) == 1
    assert wire["notes"] == {"u": "x"}


MISFITS: list[tuple[Any, Any, str]] = [
    (int, True, r"^v: expected int, got bool True$"),
    (int, 1.0, r"expected int, got float 1.0"),
    (float, True, r"expected float, got bool"),
    (str, None, r"expected str, got None"),
    (str, Status.NEW, r"expected str, got Status; a subclass"),
    (Line, BigLine("x"), r"expected Line, got BigLine; a subclass would arrive as Line"),
    (list[int], [1, "x"], r"^v\[1\]: expected int, got str 'x'"),
    (dict[str, int], {"a": "b"}, r"^v\['a'\]: expected int"),
    (dict[str, int], {1: 1}, r"^v\[key 1\]: expected str"),
    (tuple[int, str], (1,), r"expected tuple of 2 elements, got 1"),
    (Tree, Tree(1, None, [Tree("x")]), r"^v\.kids\[0\]\.value: expected int, got str"),  # type: ignore[arg-type]
    (Literal["a", "b"], "c", r"expected one of 'a', 'b', got 'c'"),
    (Literal[1], True, r"expected one of 1, got True"),
    (int | str, 1.5, r"expected int or str, got float 1.5"),
    (datetime, datetime(2024, 1, 1), r"naive datetime"),
    (ReminderHandle, {}, r"ReminderHandle needs reminder_name"),
    (ReminderHandle, {"reminder_name": "x", "y": 1}, r"has no field 'y'"),
    (Any, Line("x"), r"annotate .* as Line"),
]


@pytest.mark.parametrize(("annotation", "value", "says"), MISFITS, ids=lambda thing: ascii(thing)[:30])
def test_a_misfit_is_refused_naming_path_rule_and_value(annotation: Any, value: Any, says: str) -> None:
    with pytest.raises(InvalidPayload, match=says):
        converter(annotation).encode(value, "v")


BAD_WIRES: list[tuple[Any, Any, str]] = [
    (Line, {"count": 1}, r"Line needs sku"),
    (Line, {"sku": "a", "zz": 1}, r"Line has no field 'zz'; it has sku, count, price"),
    (Order, {"lines": [{"sku": 1}]}, r"^v\.lines\[0\]\.sku: expected str, got int 1"),
    (Status, "gone", r"'gone' is no Status; it has 'new', 'sent'"),
    (Level, True, r"expected Level, got bool"),
    (Timed, {"start": -1, "twice": 0}, r"Timed refused its fields: start must not be negative"),
    (Model, {"a": 1, "c": 2}, r"Model has no field 'c'"),
    (Line, [1], r"expected Line, got list"),
    (set[int], {"a"}, r"expected int"),
]


@pytest.mark.parametrize(("annotation", "wire", "says"), BAD_WIRES, ids=lambda thing: ascii(thing)[:30])
def test_received_data_is_checked_as_strictly(annotation: Any, wire: Any, says: str) -> None:
    with pytest.raises(InvalidPayload, match=says):
        converter(annotation).decode(wire, "v")


def test_missing_fields_take_their_defaults() -> None:
    assert converter(Order).decode({"lines": []}) == Order(lines=[])
    assert converter(Point).decode([3]) == Point(3, 7)


@pytest.mark.parametrize(
    ("annotation", "wire", "value"),
    [
        (datetime, "2024-01-01T00:00:00+00:00", datetime(2024, 1, 1, tzinfo=UTC)),
        (Decimal, "1.10", Decimal("1.10")),
        (UUID, str(UUID(int=5)), UUID(int=5)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], [1, 2], {1, 2}),
        (datetime | None, "2024-01-01T00:00:00+00:00", datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)
def test_tools_that_only_have_json_may_write_declared_types_as_text_and_lists(
    annotation: Any, wire: Any, value: Any
) -> None:
    assert converter(annotation).decode(wire) == value


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        (complex, r"tuple\[float, float\]"),
        (Path, "use str"),
        (Sequence[int], "use list or tuple"),
        (Line | Tree, "Line and Tree cannot be told apart"),
        (str | Status, "str and Status cannot be told apart"),
        (dict[str, int] | Line, "cannot be told apart"),
        (dict[Line, int], "cannot be the key"),
        (WithInit, r"WithInit\.a is an InitVar"),
        (Ellipsis, "cannot travel"),
    ],
    ids=ascii,
)
def test_a_type_that_cannot_travel_is_refused_when_it_is_declared(annotation: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        converter(annotation)


def test_a_chain_of_records_beyond_the_limit_is_refused_on_both_sides_ser_010() -> None:
    tree = Tree(0)
    for _ in range(50_000):
        tree = Tree(1, tree)
    with pytest.raises(InvalidPayload, match="nested more than 32 levels"):
        converter(Tree).encode(tree)
    wire: dict[str, Any] = {"value": 0}
    for _ in range(500):
        wire = {"value": 1, "left": wire}
    with pytest.raises(InvalidPayload, match="nested more than 32 levels"):
        converter(Tree).decode(wire)
    while tree.left is not None:  # taken apart by hand: freeing it in one go recurses in C
        tree = dataclasses.replace(tree.left)


def test_a_converter_is_compiled_once() -> None:
    assert converter(Order) is converter(Order)


@dataclass(frozen=True)
class Numbered:
    number: int


EQUAL_HASHES = [n * (2**61 - 1) for n in range(1, 2_001)]
EQUAL_TEXTS = [str(number) for number in EQUAL_HASHES]  # only what they stand for has equal hashes

FLOODS: list[tuple[Any, Any]] = [
    (set[int], EQUAL_HASHES),
    (frozenset[int], EQUAL_HASHES),
    (set[Decimal], EQUAL_TEXTS),
    (frozenset[Decimal], frozenset(EQUAL_TEXTS)),
    (set[Numbered], [{"number": number} for number in EQUAL_HASHES]),
    (dict[Decimal, None], dict.fromkeys(EQUAL_TEXTS)),
]


@pytest.mark.parametrize(
    ("annotation", "wire"), FLOODS, ids=[f"{kind} of {type(wire).__name__}" for kind, wire in FLOODS]
)
def test_a_declared_set_or_dict_of_equal_hashes_is_refused(annotation: Any, wire: Any) -> None:
    with pytest.raises(InvalidPayload, match="have the same hash; at most 64 may"):
        converter(annotation).decode(wire)


@pytest.mark.parametrize("make", [set, frozenset, dict.fromkeys])
def test_what_could_not_be_decoded_for_equal_hashes_is_not_encoded(make: Any) -> None:
    value = make(EQUAL_HASHES[:65])
    annotation = dict[int, None] if type(value) is dict else type(value)[int]
    with pytest.raises(InvalidPayload, match="65 set elements or dict keys have the same hash"):
        converter(annotation).encode(value)


def test_declared_sets_and_dicts_with_a_few_equal_hashes_travel() -> None:
    numbers = {*EQUAL_HASHES[:64], *range(1, 500)}
    assert converter(set[int]).decode(sorted(numbers)) == numbers
    decimals = {str(number): number for number in numbers}
    expected = {Decimal(number): number for number in numbers}
    assert converter(dict[Decimal, int]).decode(decimals) == expected
