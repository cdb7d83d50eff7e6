"""How the rows are made: frozen for the type checker, plain slots at run time.

A frozen dataclass sets each field by a call of ``object.__setattr__``: a row of 28 fields takes four times as
long to build, and rows are built by the thousand.  See docs/decisions.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen, slots):
        """As ``dataclass``, but nothing stops an assignment that no type checker has seen."""
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["value"]
