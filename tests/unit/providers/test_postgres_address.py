"""What a PostgreSQL URL says, and what never comes out of it."""

from __future__ import annotations

import sys
import traceback

import pytest

from farro.providers.errors import BadStoreUrl, Unavailable
from farro.providers.opening import open_provider
from farro.providers.postgres.address import PostgresAddress, read_address
from farro.providers.postgres.store import PostgresProvider

SECRET = "S3CRET"


def test_a_url_names_user_password_hosts_database_and_options() -> None:
    address = read_address(
        "postgresql://me:p%40ss%2F@a.example:5433,[::1]/my%20db?pool=7&lanes=2&partitions=64&schema=other&sslmode=require"
    )
    assert address == PostgresAddress(
        hosts=(("a.example", 5433), ("::1", 5432)),
        user="me",
        password="p@ss/",
        database="my db",
        schema="other",
        pool=7,
        lanes=2,
        partitions=64,
        driver=(("sslmode", "require"),),
    )


def test_what_a_url_leaves_out_is_left_to_the_driver() -> None:
    assert read_address("postgresql://") == PostgresAddress()
    assert read_address("postgresql:///db?host=/run/pg").hosts == (("/run/pg", 5432),)


def test_a_printed_address_and_provider_have_no_password() -> None:
    url = f"postgresql://me:{SECRET}@host:1/db?schema=other"
    assert read_address(url).printable == "postgresql://me@host:1/db?schema=other"
    for shown in (repr(read_address(url)), repr(open_provider(url)), str(open_provider(url))):
        assert SECRET not in shown and "host" in shown


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"postgresql://me:{SECRET}/x@host/db", "%2F"),
        (f"postgresql://me:{SECRET}?x@host/db", "%3F"),
        (f"postgresql://me:x#{SECRET}@host/db", "%23"),
        (f"postgresql://me:{SECRET}@host:port/db", "host:port"),
        (f"postgresql://me:{SECRET}@host:99999/db", "host:port"),
        (f"postgresql://me:{SECRET}@[host/db", "cannot be read"),
        (f"postgresql://:{SECRET}@host/db", "cannot be read"),
        (f"postgresql://host/db?password={SECRET}", "password as an option"),
        (f"postgresql://me:{SECRET}@host/db?pol=3", "unknown option 'pol'; known are pool"),
        (f"postgresql://me:{SECRET}@host/db?pool", "?name=value"),
        (f"postgresql://me:{SECRET}@host/db?pool=0", "pool is a number from 1 to 100"),
        (f"postgresql://me:{SECRET}@host/db?pool=9999999999999999", "pool is a number from 1 to 100"),
        (f"postgresql://me:{SECRET}@host/db?lanes=two", "lanes is a number from 1 to 16"),
        (f"postgresql://me:{SECRET}@host/db?partitions=100", "a power of two, not 100"),
        (f'postgresql://me:{SECRET}@host/db?schema=x"y', "the schema"),
        (f"postgresql://me:{SECRET}@host/db?schema=pg_farro", "the server's own"),
    ],
)
def test_a_bad_url_is_one_clear_error_without_the_password(url: str, says: str) -> None:
    with pytest.raises(BadStoreUrl) as caught:
        open_provider(url)
    assert says in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_services_and_schemas_have_lock_keys_of_their_own() -> None:
    one, other = PostgresAddress(), PostgresAddress(schema="other")
    keys = {one.lock_class("a"), one.lock_class("b"), other.lock_class("a")}
    assert len(keys) == 3 and one.lock_class("a") == PostgresAddress().lock_class("a")
    assert all(-(2**31) <= key < 2**31 for key in keys)


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("farro.providers.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(BadStoreUrl, match=r'pip install "farro\[postgres\]"'):
        open_provider("postgresql://host/db")


def test_another_scheme_than_ours_is_named() -> None:
    assert isinstance(open_provider("postgresql://host/db", service_id="a"), PostgresProvider)
    with pytest.raises(BadStoreUrl, match="the scheme is written postgresql"):
        open_provider("postgres://host/db")


@pytest.mark.parametrize(
    ("at", "advice"),
    [
        ("127.0.0.1:1", "start PostgreSQL, or name its host and port"),
        ("no-such-host.invalid", "check the host in the URL"),
    ],
)
async def test_a_server_that_is_not_there_is_an_error_with_the_way_out(at: str, advice: str) -> None:
    with pytest.raises(Unavailable, match=f"{at}.*{advice}"):
        await PostgresProvider(f"postgresql://farro@{at}/postgres").open(0)
