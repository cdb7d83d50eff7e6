from pathlib import Path

import pytest

from farro.providers.conformance.kit import MakeProvider, ProviderKit
from farro.providers.contracts import Provider
from farro.providers.sqlite.store import SqliteProvider


class TestSqlite(ProviderKit):
    @pytest.fixture
    def make_provider(self, tmp_path: Path) -> MakeProvider:
        def make(service_id: str = "default") -> Provider:
            return SqliteProvider(tmp_path / "farro.db", service_id=service_id)

        return make
