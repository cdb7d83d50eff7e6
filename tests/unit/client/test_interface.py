"""Methods, interfaces and references: who can be called with what, and what the refusal says."""

from __future__ import annotations

import copy
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from farro.client.codec import Codec
from farro.client.errors import InvalidGrainId, InvalidPayload, NotRemote
from farro.client.interface import MethodSpec, grain_interface, interface_of
from farro.client.reference import Reference, reference


class Base:
    __farro_base__ = True

    @property
    def state(self) -> Any:
        return None

    async def on_activate(self) -> None: ...


class Shipment(Base):
    __farro_type__ = "shipments"
    carrier: str

    async def on_activate(self) -> None: ...

    async def dispatch(self, carrier_id: str, weight: int = 1, *, fast: bool = False) -> Receipt:
        """Sends it."""
        raise NotImplementedError

    async def note(self, *lines: str, **marks: int) -> None: ...

    async def anything(self, value, other=None):  # type: ignore[no-untyped-def]
        ...

    async def _chase(self, carrier_id: str) -> None: ...

    def plan(self) -> None: ...


@dataclass
class Receipt:
    number: int


@grain_interface("shipments")
class Shipments(Protocol):
    async def dispatch(self, carrier_id: str) -> Receipt: ...

    async def merge(self, other: Shipments) -> Shipments: ...


class Recorder:
    """A caller that keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

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
        self.calls.append((grain_type, grain_key, spec.name, args, kwargs, timeout))

        async def answer() -> None:
            return None

        return answer()


DISPATCH = interface_of(Shipment).methods["dispatch"]


def test_an_interface_has_the_public_async_methods_and_no_hook_of_the_base_sec_003() -> None:
    assert set(interface_of(Shipment).methods) == {"dispatch", "note", "anything"}
    assert interface_of(Shipment).type_name == "shipments"
    assert interface_of(Shipment) is interface_of(Shipment)


def test_arguments_go_as_given_and_defaults_stay_with_the_callee() -> None:
    assert DISPATCH.encode_call(("c-7",), {}) == (["c-7"], None)
    assert DISPATCH.encode_call((), {"carrier_id": "c-7", "fast": True}) == (
        [],
        {"carrier_id": "c-7", "fast": True},
    )
    assert DISPATCH.decode_call(["c-7"], {"fast": True}) == (["c-7"], {"fast": True})


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, r"Shipment\.dispatch\(\) is missing carrier_id"),
        ((1,), {}, r"Shipment\.dispatch\(carrier_id=…\): expected str, got int 1"),
        (("é\ud800",), {}, r"carrier_id=…\): text holds a lone surrogate"),
        (("a", 1, True), {}, r"takes 2 \(carrier_id, weight\) positional arguments, got 3"),
        (("a",), {"carrier_id": "b"}, "got carrier_id twice"),
        (("a",), {"zzz": 1}, r"has no parameter 'zzz'$"),
        ((), {"carier_id": "a"}, "has no parameter 'carier_id'; did you mean 'carrier_id'"),
        (("a", True), {}, r"weight=…\): expected int, got bool"),
    ],
)
def test_a_wrong_call_is_refused_the_same_on_both_sides(
    args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidPayload, match=says):
        DISPATCH.encode_call(args, kwargs)
    if "surrogate" not in says:
        with pytest.raises(InvalidPayload, match=says):
            DISPATCH.decode_call(list(args), kwargs)


def test_open_ended_signatures_check_every_argument() -> None:
    note = interface_of(Shipment).methods["note"]
    assert note.encode_call(("a", "b"), {"x": 1}) == (["a", "b"], {"x": 1})
    with pytest.raises(InvalidPayload, match=r"\*args\[1\]=…\): expected str"):
        note.encode_call(("a", 1), {})
    with pytest.raises(InvalidPayload, match=r"x=…\): expected int"):
        note.encode_call((), {"x": "1"})


def test_without_annotations_any_plain_value_goes() -> None:
    anything = interface_of(Shipment).methods["anything"]
    assert anything.encode_call(({1, 2},), {}) == ([{1, 2}], None)
    with pytest.raises(InvalidPayload, match="annotate"):
        anything.encode_call((Receipt(1),), {})


def test_a_class_defined_further_down_is_found_on_first_use() -> None:
    wire = DISPATCH.encode_result(Receipt(3))
    assert wire == {"number": 3}
    assert DISPATCH.decode_result(wire) == Receipt(3)
    with pytest.raises(InvalidPayload, match=r"Shipment\.dispatch\(\) -> result: expected Receipt, got str"):
        DISPATCH.encode_result("x")


def test_scalars_pass_through_and_records_do_not() -> None:
    assert DISPATCH.args_pass_through
    assert not DISPATCH.result_passes_through


def test_an_annotation_that_cannot_travel_fails_at_declaration_naming_the_parameter() -> None:
    class Bad:
        async def add(self, number: complex) -> None: ...

    with pytest.raises(TypeError, match=r"Bad\.add, parameter 'number': .*complex"):
        interface_of(Bad)


def test_a_name_that_never_gets_defined_is_reported_with_the_method() -> None:
    class Bad:
        async def add(self, number: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    spec = interface_of(Bad).methods["add"]
    with pytest.raises(TypeError, match=r"Bad\.add: name 'Nowhere' is not defined"):
        spec.resolve()


def test_a_method_name_that_references_use_themselves_is_refused() -> None:
    class Bad:
        async def with_options(self) -> None: ...

    with pytest.raises(TypeError, match="rename it"):
        interface_of(Bad)


async def test_a_reference_method_hands_its_call_to_the_caller() -> None:
    recorder = Recorder()
    shipment = reference(interface_of(Shipment), 42, recorder)
    await shipment.dispatch("c-7", fast=True)
    await shipment.with_options(timeout=2).dispatch("c-8")
    assert recorder.calls == [
        ("shipments", "42", "dispatch", ("c-7",), {"fast": True}, None),
        ("shipments", "42", "dispatch", ("c-8",), {}, 2.0),
    ]


def test_references_are_equal_by_grain_id_and_print_it() -> None:
    one = reference(interface_of(Shipment), "s-42", None)
    other = reference(interface_of(Shipments), "s-42", Recorder())
    assert one == other and hash(one) == hash(other) and one != "s-42"
    assert repr(one) == "<reference shipments/s-42>"
    assert repr(reference(interface_of(Shipment), "a\n\x1b", None)) == r"<reference shipments/a\n\x1b>"
    assert copy.deepcopy([one])[0] is one


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("state", "belongs to the grain itself"),
        ("carrier", "inside the grain only"),
        ("plan", "inside the grain only"),
        ("on_activate", "inside the grain only"),
        ("_chase", "private"),
        ("dispach", "did you mean 'dispatch'"),
        ("zzz", "has no method 'zzz'$"),
    ],
)
def test_what_is_not_remote_says_why(name: str, says: str) -> None:
    with pytest.raises(NotRemote, match=says):
        getattr(reference(interface_of(Shipment), "s", None), name)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "3"])
def test_a_timeout_must_be_a_positive_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        reference(interface_of(Shipment), "s", None).with_options(timeout=timeout)


def test_a_bad_key_is_refused_before_anything_is_sent() -> None:
    for key in ("", "a\x00b", 1.5, True, "x" * 513):
        with pytest.raises(InvalidGrainId):
            reference(interface_of(Shipment), key, None)  # type: ignore[arg-type]


def test_a_reference_travels_and_gets_the_methods_of_its_declaration() -> None:
    merge = interface_of(Shipments).methods["merge"]
    caller = Recorder()
    codec = Codec(caller)
    sent = reference(interface_of(Shipment), "s-1", Recorder())
    wire_args, _ = merge.encode_call((sent,), {})
    (back,), _ = merge.decode_call(codec.unpack_wire(codec.pack_wire(wire_args)), None)
    assert back == sent and back._caller is caller
    assert type(back) is interface_of(Shipments).reference_class


def test_a_reference_to_another_grain_type_and_a_grain_itself_are_refused() -> None:
    merge = interface_of(Shipments).methods["merge"]
    with pytest.raises(InvalidPayload, match=r"expected a reference to Shipments \(shipments\), got"):
        merge.encode_call((reference(interface_of(Base), "x", None),), {})
    with pytest.raises(InvalidPayload, match="expected a reference to Shipments, got Shipment"):
        merge.encode_call((Shipment(),), {})


def test_an_untyped_reference_says_how_to_get_methods() -> None:
    found = Codec().unpack(Codec().pack(reference(interface_of(Shipment), "s-1", None)))
    assert type(found) is Reference
    with pytest.raises(NotRemote, match="untyped"):
        _ = found.dispatch
