import pytest

from farro.providers.conformance.kit import MakeProvider, ProviderKit
from farro.providers.contracts import Provider
from farro.providers.memory import MemoryProvider, MemoryStore


class TestMemory(ProviderKit):
    @pytest.fixture
    def make_provider(self) -> MakeProvider:
        store = MemoryStore()

        def make(service_id: str = "default") -> Provider:
            return MemoryProvider(store, service_id=service_id)

        return make
