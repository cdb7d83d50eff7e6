from collections.abc import AsyncIterator

import asyncpg
import pytest

from farro.providers.conformance.batches import BatchKit
from farro.providers.conformance.kit import MakeProvider, ProviderKit
from farro.providers.conformance.membership import MembershipKit
from farro.providers.conformance.requests import RequestKit
from farro.providers.conformance.stores import StoreKit
from farro.providers.conformance.streams import StreamKit
from farro.providers.contracts import Provider
from farro.providers.postgres.store import PostgresProvider
from tests.support.servers import Server

EMPTY_ALL = """DO $$
DECLARE one text;
BEGIN
    FOR one IN SELECT tablename FROM pg_tables
               WHERE schemaname = 'kit' AND tablename <> 'farro_migrations' LOOP
        EXECUTE format('DELETE FROM kit.%I', one);
    END LOOP;
END $$"""


class PostgresKit(StoreKit):
    """One schema for all tests, emptied before each: to create it takes far longer than a test."""

    options = ""

    @pytest.fixture
    async def make_provider(self, postgres_server: Server) -> AsyncIterator[MakeProvider]:
        url = f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres"
        connection = await asyncpg.connect(url)
        await connection.execute(EMPTY_ALL)
        await connection.close()

        def make(service_id: str = "default") -> Provider:
            return PostgresProvider(f"{url}?schema=kit{self.options}", service_id=service_id)

        yield make


@pytest.mark.service
class TestPostgres(PostgresKit, ProviderKit):
    options = "&partitions=64"


@pytest.mark.service
class TestPostgresWithLanes(PostgresKit, BatchKit, MembershipKit, RequestKit, StreamKit):
    """What lanes can change: order, batches that span them, numbers within a partition."""

    options = "&partitions=64&lanes=3&pool=2"
