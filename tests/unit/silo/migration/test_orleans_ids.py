"""Orleans' grain ids: which grain of farro each one names."""

from __future__ import annotations

from uuid import UUID

import pytest

from farro.client.errors import InvalidGrainId
from farro.silo.migration.orleans_ids import KeyForm, Naming, UnreadableId

GUID = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")


def grain(text: str, form: KeyForm = KeyForm.TEXT) -> str:
    """The farro grain of an id whose type, where it has one, is ``cart``."""
    return str(Naming(keys={"cart": form}).grain(text)[1])


def old(first: int, second: int, *, category: int = 3, extension: str = "") -> str:
    """An id as Orleans before 7 writes it, of type code 0x1A2B3C4D."""
    return f"GrainReference={first:016x}{second:016x}{category:02x}0000001a2b3c4d{extension}"


@pytest.mark.parametrize("key", ["a", "2A", "with/slash", "a+b", "ü 💡 'x' \"y\"", " ", "%20"])
def test_a_text_key_stays_as_it_is(key: str) -> None:
    assert grain(f"cart/{key}") == f"cart/{key}"


@pytest.mark.parametrize(
    ("stored", "key"),
    [
        ("0", "0"),
        ("2A", "42"),
        ("2a", "42"),
        ("7FFFFFFFFFFFFFFF", str(2**63 - 1)),
        ("FFFFFFFFFFFFFFFF", "-1"),
        ("8000000000000000", str(-(2**63))),
        ("2A+eu/west", "42+eu/west"),
        ("2A+", "42+"),
    ],
)
def test_an_integer_key_is_read_from_hexadecimal(stored: str, key: str) -> None:
    assert grain(f"cart/{stored}", KeyForm.INT) == f"cart/{key}"


@pytest.mark.parametrize("extension", ["", "+eu"])
def test_a_guid_key_is_written_as_farro_writes_a_uuid(extension: str) -> None:
    assert grain(f"cart/{GUID.hex}{extension}", KeyForm.UUID) == f"cart/{GUID}{extension}"


@pytest.mark.parametrize(
    ("stored", "form"),
    [("x", KeyForm.INT), ("12345678901234567", KeyForm.INT), ("2A", KeyForm.UUID), ("+e", KeyForm.INT)],
)
def test_a_key_of_another_form_than_told_is_unreadable(stored: str, form: KeyForm) -> None:
    with pytest.raises(UnreadableId, match=f"no {form.value}"):
        grain(f"cart/{stored}", form)


def test_key_forms_hold_for_their_type_alone() -> None:
    assert grain("basket/2A", KeyForm.INT) == "basket/2A"


def test_a_mapped_type_gets_its_new_name_and_keeps_the_old_one_for_the_summary() -> None:
    orleans_type, found = Naming({"cart": "Carts"}).grain("cart/1")
    assert (orleans_type, str(found)) == ("cart", "Carts/1")


@pytest.mark.parametrize("text", ["", "cart", "/x", "cart/", "sys.client", "GrainReference=12"])
def test_what_is_no_grain_id_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableId, match="grain id is not"):
        grain(text)


def test_a_key_longer_than_farro_takes_is_refused() -> None:
    with pytest.raises(InvalidGrainId, match="at most 512"):
        grain("cart/" + "💡" * 145)


def test_an_old_id_with_an_integer_key_names_its_type_code() -> None:
    assert grain(old(0, 42)) == "code-1A2B3C4D/42"
    assert grain(old(0, 2**64 - 42)) == "code-1A2B3C4D/-42"


def test_an_old_id_with_a_guid_key_has_its_bytes_in_dotnets_order() -> None:
    first = int.from_bytes(GUID.bytes_le[:8], "little")
    second = int.from_bytes(GUID.bytes_le[8:], "little")
    assert grain(old(first, second)) == f"code-1A2B3C4D/{GUID}"


def test_an_old_id_with_an_extension_is_a_text_key_or_a_compound_one() -> None:
    assert grain(old(0, 0, category=6, extension="+a+b/c")) == "code-1A2B3C4D/a+b/c"
    assert grain(old(0, 7, category=6, extension="+eu")) == "code-1A2B3C4D/7+eu"


def test_an_old_id_of_a_client_is_unreadable() -> None:
    with pytest.raises(UnreadableId, match="not of a grain"):
        grain(old(0, 1, category=4))


def test_a_type_code_can_be_mapped() -> None:
    assert str(Naming({"code-1A2B3C4D": "carts"}).grain(old(0, 42))[1]) == "carts/42"
