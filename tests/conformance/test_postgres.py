from itertools import count

import pytest

from farro.providers.conformance.kit import MakeProvider, ProviderKit
from farro.providers.contracts import Provider
from farro.providers.postgres.store import PostgresProvider
from tests.support.servers import Server

SCHEMAS = count(1)


class PostgresKit(ProviderKit):
    """Each test has a schema of its own on the one server."""

    options = ""

    @pytest.fixture
    def make_provider(self, postgres_server: Server) -> MakeProvider:
        schema = f"kit_{next(SCHEMAS)}"
        url = f"postgresql://farro@127.0.0.1:{postgres_server.port}/postgres?schema={schema}{self.options}"

        def make(service_id: str = "default") -> Provider:
            return PostgresProvider(url, service_id=service_id)

        return make


@pytest.mark.service
class TestPostgres(PostgresKit):
    options = "&partitions=64"


@pytest.mark.service
class TestPostgresWithLanes(PostgresKit):
    options = "&partitions=64&lanes=3&pool=2"
