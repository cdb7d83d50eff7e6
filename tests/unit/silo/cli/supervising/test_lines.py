"""Output cut into whole lines that say whose they are."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from farro.silo.cli.supervising.lines import LINE_BYTES_MAX, Lines, json_mark, text_mark


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_however_it_is_cut_the_lines_are_those_of_the_whole(data: bytes, cuts: list[int]) -> None:
    lines = Lines()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found = [line for start, end in pairwise(edges) for line in lines.feed(data[start:end])]
    whole = data.split(b"\n")
    assert found + lines.rest() == [*whole[:-1], *filter(None, whole[-1:])]


def test_a_line_without_end_does_not_grow_without_bound() -> None:
    lines = Lines()
    found = [line for _ in range(40) for line in lines.feed(b"x" * 10_000)] + lines.rest()
    assert max(map(len, found)) <= LINE_BYTES_MAX
    assert b"".join(found) == b"x" * 400_000


def test_a_long_line_in_one_piece_is_cut_too() -> None:
    found = Lines().feed(b"x" * (2 * LINE_BYTES_MAX + 1) + b"\nnext\n")
    assert [len(line) for line in found] == [LINE_BYTES_MAX, LINE_BYTES_MAX, 1, 4]


def test_a_text_line_begins_with_the_number() -> None:
    assert text_mark(12)(b"ready") == b"[12] ready"


def test_a_json_line_gets_the_number_as_a_member() -> None:
    mark = json_mark(3)
    assert json.loads(mark(b'{"at": "now", "text": "a}"}')) == {"process": 3, "at": "now", "text": "a}"}
    assert json.loads(mark(b"{}")) == {"process": 3}


def test_what_is_no_json_becomes_json() -> None:
    said = b'Fatal Python error: "x" \xff \x1b[31m'
    assert json.loads(json_mark(1)(said)) == {"process": 1, "text": 'Fatal Python error: "x" \\xff \x1b[31m'}
