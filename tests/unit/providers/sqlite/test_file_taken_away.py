"""A database or lock file that is removed, replaced or reached by another name under a running silo."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from farro.providers.conformance.made import NOW, Owner, an_owner, writing
from farro.providers.errors import StoreChanged, StoreInUse
from farro.providers.sqlite.store import SqliteProvider


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "farro.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteProvider]:
    provider = SqliteProvider(path)
    await provider.open(NOW)
    yield provider
    await provider.close()


@pytest.fixture
async def owner(store: SqliteProvider) -> Owner:
    return await an_owner(store)


def names_of(prefix: str, folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.name.startswith(prefix)]


def removed(file: Path) -> None:
    file.unlink()


def replaced(file: Path) -> None:
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


async def commits(store: SqliteProvider, owner: Owner) -> object:
    return await owner.commit(owner.member(grain=writing(0)))


async def renews(store: SqliteProvider, owner: Owner) -> object:
    return await store.renew(owner.number, NOW)


Ask = Callable[[SqliteProvider, Owner], Awaitable[object]]


@pytest.mark.parametrize("ask", [commits, renews])
@pytest.mark.parametrize("happens", [removed, replaced])
@pytest.mark.parametrize("name", ["farro.db", "farro.db.lock"])
async def test_nothing_is_acknowledged_once_the_file_or_its_lock_is_another(
    store: SqliteProvider, owner: Owner, path: Path, name: str, happens: Callable[[Path], None], ask: Ask
) -> None:
    assert await store.renew(owner.number, NOW)
    happens(path.with_name(name))
    with pytest.raises(StoreChanged, match=rf"{name} was removed or replaced"):
        await ask(store, owner)


async def test_a_store_reached_by_a_symbolic_link_has_the_same_locks(
    store: SqliteProvider, owner: Owner, path: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    second = SqliteProvider(link)
    await second.open(NOW)
    assert await second.is_held(owner.number)
    await second.close()
    assert not names_of("link.db.", tmp_path)


@pytest.mark.parametrize("happens", [removed, replaced])
async def test_a_file_that_replaces_one_in_use_is_refused_until_that_silo_is_gone(
    store: SqliteProvider, owner: Owner, path: Path, happens: Callable[[Path], None]
) -> None:
    await owner.committed(grain=writing(0))
    happens(path)
    successor = SqliteProvider(path)
    with pytest.raises(StoreInUse, match="was removed or replaced while a silo had it open"):
        await successor.open(NOW)
    await store.close()
    await successor.open(NOW)
    await successor.close()


async def test_closing_a_removed_store_leaves_the_log_of_its_successor_alone(
    store: SqliteProvider, owner: Owner, path: Path
) -> None:
    await owner.committed(grain=writing(0))
    for name in ("", "-wal", "-shm", ".lock"):
        removed(path.with_name(path.name + name))
    successor = SqliteProvider(path)
    await successor.open(NOW)
    new_owner = await an_owner(successor)
    await new_owner.committed("new", grain=writing(0))
    assert log_of(path).exists()
    await store.close()
    assert log_of(path).exists()
    assert (await successor.load([("shipments", "new")]))[0] is not None
    await successor.close()


@pytest.mark.parametrize("happens", [removed, replaced])
async def test_closing_leaves_no_log_beside_a_file_that_was_taken_away(
    store: SqliteProvider, owner: Owner, path: Path, happens: Callable[[Path], None]
) -> None:
    await owner.committed(grain=writing(0))
    happens(path)
    assert log_of(path).exists()
    await store.close()
    assert not log_of(path).exists()
