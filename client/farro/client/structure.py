"""The walk over packed bytes that allocates nothing: refuses what would cost memory before it is decoded.

msgpack's decoder allocates room for all announced elements of an array before it reads the first one, and
does so at every level of nesting.  Small frames with few large headers cannot hurt and are not walked.
"""

from __future__ import annotations

from farro.client.plain import NESTING_MAX, Mismatch, too_deep

# At eight bytes a slot: what the decoder may reserve, untouched, before it notices that data is missing.
_SLOTS_UNCHECKED_MAX = 4_000_000

# Frames may wrap a payload of NESTING_MAX levels in a batch, a message and its arguments.
_LEVELS_MAX = NESTING_MAX + 8


def check_structure(data: bytes) -> None:
    """Raises :class:`Mismatch` when arrays or maps announce more than the data can hold, or nest too deep."""
    size = len(data)
    large = data.count(0xDD) + data.count(0xDF) + data.count(0xDC) + data.count(0xDE)
    if large * size > _SLOTS_UNCHECKED_MAX and large > 1:
        _walk(data, size)


def _walk(data: bytes, size: int) -> None:
    position = 0
    open_levels: list[int] = []  # elements still to come, outermost first
    promised = 1
    while promised:
        if position >= size:
            raise Mismatch("the data ends in the middle of a value")
        if promised > size - position:
            raise Mismatch("more elements are announced than the data can hold")
        head = data[position]
        children, skip = _element(data, position, head)
        position += skip
        promised += children - 1
        if open_levels:
            open_levels[-1] -= 1
        if children:
            open_levels.append(children)
            if len(open_levels) > _LEVELS_MAX:
                raise too_deep()
        while open_levels and not open_levels[-1]:
            open_levels.pop()


def _element(data: bytes, position: int, head: int) -> tuple[int, int]:
    """``(children, bytes of this element without them)``."""
    if head < 0x80 or head >= 0xE0:
        return 0, 1
    if head < 0x90:
        return 2 * (head & 0x0F), 1
    if head < 0xA0:
        return head & 0x0F, 1
    if head < 0xC0:
        return 0, 1 + (head & 0x1F)
    kind, width = _LAYOUTS[head - 0xC0]
    if kind == "fixed":
        return 0, 1 + width
    count = int.from_bytes(data[position + 1 : position + 1 + width], "big")
    if kind == "bytes":
        return 0, 1 + width + count
    if kind == "ext":
        return 0, 2 + width + count
    return (count if kind == "array" else 2 * count), 1 + width


_LAYOUTS: tuple[tuple[str, int], ...] = (
    *(("fixed", 0),) * 4,
    ("bytes", 1), ("bytes", 2), ("bytes", 4),
    ("ext", 1), ("ext", 2), ("ext", 4),
    ("fixed", 4), ("fixed", 8),
    ("fixed", 1), ("fixed", 2), ("fixed", 4), ("fixed", 8),
    ("fixed", 1), ("fixed", 2), ("fixed", 4), ("fixed", 8),
    ("fixed", 2), ("fixed", 3), ("fixed", 5), ("fixed", 9), ("fixed", 17),
    ("bytes", 1), ("bytes", 2), ("bytes", 4),
    ("array", 2), ("array", 4),
    ("map", 2), ("map", 4),
)  # fmt: skip
