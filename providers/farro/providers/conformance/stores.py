"""The fixtures of the kit: an empty store, open, with a silo that owns two partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from farro.providers.conformance.made import NOW, Owner, an_owner
from farro.providers.contracts import Provider


class MakeProvider(Protocol):
    """Answers a provider, not yet open, on the one store of the test."""

    def __call__(self, service_id: str = "default") -> Provider: ...


@pytest.mark.asyncio
class StoreKit:
    """Subclass and override ``make_provider``."""

    @pytest.fixture
    def make_provider(self) -> MakeProvider:
        raise NotImplementedError("override the fixture make_provider: see farro.providers.conformance.kit")

    @pytest.fixture
    async def store(self, make_provider: MakeProvider) -> AsyncIterator[Provider]:
        provider = make_provider()
        await provider.open(NOW)
        yield provider
        await provider.close()

    @pytest.fixture
    async def owner(self, store: Provider) -> Owner:
        return await an_owner(store)


async def reopened(store: Provider, make_provider: MakeProvider, service_id: str = "default") -> Provider:
    """Another provider on the same store, after ``store`` was closed."""
    await store.close()
    again = make_provider(service_id)
    await again.open(NOW)
    return again
