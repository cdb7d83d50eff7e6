import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from farro.providers.conformance.made import NOW, an_owner, writing
from farro.providers.errors import BadStoreUrl, StoreMissing
from farro.providers.memory import MemoryProvider
from farro.providers.opening import open_provider, printable
from farro.providers.sqlite.store import SqliteProvider


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is not a store URL"),
        ("farro.db", "sqlite:///farro.db"),
        ("://x", "is not a store URL"),
        ("mysql://me:secret@host/db", "no store is called 'mysql'; known are memory, postgresql, sqlite"),
        ("postgres://me:secret@host/db", "the scheme is written postgresql"),
        ("redis://:secret@host", "Redis is not in this version of farro"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite://farro.db", "names a host, 'farro.db'"),
        ("sqlite:///:memory:", "write memory://"),
        ("sqlite:///a.db?journal=off", "unknown option 'journal'"),
        ("sqlite:///a.db?synchronous=off", "normal, full, extra, not 'off'"),
        ("sqlite:///a.db?synchronous", "?name=value"),
        ("sqlite:///a.db#part", "%23"),
        ("sqlite:///a%00.db", "names no file"),
        ("memory://a/b", "memory://NAME"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_with_the_way_out(url: str, says: str) -> None:
    with pytest.raises(BadStoreUrl, match=re.escape(says)) as caught:
        open_provider(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "hidden"),
    [
        ("postgresql://me:se:cr@et@host:5/db", "postgresql://me:***@host:5/db"),
        ("postgresql://me@host/db?password=x&sslmode=on", "postgresql://me@host/db?password=***&sslmode=on"),
        ("redis://:secret@host", "redis://:***@host"),
        ("sqlite:///a@b:c.db", "sqlite:///a@b:c.db"),
        ("memory://", "memory://"),
        ("plain", "plain"),
    ],
)
def test_a_printed_url_shows_no_password(url: str, hidden: str) -> None:
    assert printable(url) == hidden


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


async def test_relative_and_absolute_paths_with_odd_characters_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///a.db", f"sqlite:///{tmp_path}/b%20%23%3F%25.db?synchronous=NORMAL"):
        provider = open_provider(url, service_id="s")
        assert isinstance(provider, SqliteProvider) and provider.service_id == "s"
        await provider.open(NOW)
        await provider.close()
    assert names_in(tmp_path) >= {"a.db", "b #?%.db"}


async def test_a_memory_store_is_fresh_unless_it_is_named() -> None:
    for url, expected in (("memory://", 1), ("memory://test-named", 2)):
        for _ in range(2):
            provider = open_provider(url)
            assert isinstance(provider, MemoryProvider)
            await provider.open(NOW)
            owner = await an_owner(provider, 3)
            await owner.commit(owner.member(grain=writing(0)))
            epoch = owner.epochs[3]
            await provider.close()
        assert epoch == expected


async def test_reading_a_memory_store_that_was_never_filled_finds_none() -> None:
    with pytest.raises(StoreMissing):
        await open_provider("memory://", read_only=True).open(NOW)


def test_opening_by_url_touches_no_file(tmp_path: Path) -> None:
    open_provider(f"sqlite:///{tmp_path}/a.db")
    assert list(tmp_path.iterdir()) == []


def third_party(url: str, *, service_id: str, read_only: bool) -> MemoryProvider:
    return MemoryProvider(service_id=service_id, read_only=read_only, url=url)


def test_other_schemes_come_from_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a package as an installer leaves it: its metadata in a folder on the path
    package = tmp_path / "my_store-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-store\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[farro.providers]\nmystore = my_store:make\n")
    module = ModuleType("my_store")
    module.make = third_party  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_store", module)
    monkeypatch.syspath_prepend(tmp_path)
    provider = open_provider("mystore://me:secret@host/x", service_id="s", read_only=True)
    assert isinstance(provider, MemoryProvider) and provider.service_id == "s"
    with pytest.raises(BadStoreUrl, match="known are memory, mystore, postgresql, sqlite"):
        open_provider("other://x")
