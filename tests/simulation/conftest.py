"""Simulated minutes are many: a tracer would make them ten times as long, and they are measured elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)
