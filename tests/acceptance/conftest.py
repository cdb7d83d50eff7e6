"""What the acceptance tests share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.acceptance.processes import SiloProcess, silos


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[SiloProcess]:
    """One silo for the tests that only ask it things."""
    with silos(tmp_path_factory.mktemp("shared")) as start:
        yield start()
