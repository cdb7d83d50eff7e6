"""From a store URL to a provider.

``memory://``            a fresh store for this provider
``memory://NAME``        the store of that name in this process; its rows survive close and open
``sqlite:///file.db``    a file relative to the current folder
``sqlite:////var/f.db``  an absolute path; option ``?synchronous=normal|full|extra``
``postgresql://…``       ``user:password@host:5432/database``; options: docs/how-to/set-up-postgresql.md

Other schemes come from installed packages: entry point group ``farro.providers``, name = scheme, object = a
callable ``(url: str, *, service_id: str, read_only: bool) -> Provider``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from urllib.parse import parse_qsl, unquote, urlsplit

from farro.providers.contracts import Provider
from farro.providers.errors import BadStoreUrl
from farro.providers.memory import MemoryProvider, MemoryStore
from farro.providers.sqlite.store import SYNCHRONOUS, SqliteProvider

ENTRY_POINTS = "farro.providers"
EXAMPLE = "sqlite:///farro.db"

_NOT_YET = {
    "postgres": "the scheme is written postgresql",
    "redis": "Redis is not in this version of farro",
}
_HIDDEN_OPTIONS = re.compile(r"(?i)([?&][^=&#]*(?:password|passwd|secret|token)[^=&#]*=)[^&#]*")

_named: dict[str, MemoryStore] = {}


def open_provider(url: str, *, service_id: str = "default", read_only: bool = False) -> Provider:
    """The provider that ``url`` names, not yet opened.  Touches no file and no network.

    BadStoreUrl: the scheme is unknown, the path is missing, or an option is not one of the scheme's.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise BadStoreUrl(f"{printable(url)!r} is not a store URL: write scheme://…, for example {EXAMPLE}")
    scheme = scheme.lower()
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme](url, service_id, read_only)
    found = [point for point in entry_points(group=ENTRY_POINTS) if point.name == scheme]
    if not found:
        known = sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})
        why = _NOT_YET.get(scheme, f"no store is called {scheme!r}")
        raise BadStoreUrl(f"{printable(url)}: {why}; known are {', '.join(known)}, for example {EXAMPLE}")
    make: Callable[..., Provider] = found[0].load()
    return make(url, service_id=service_id, read_only=read_only)


def printable(url: str) -> str:
    """``url`` without its password: for messages and logs."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    # A password that holds an unescaped "/", "?" or "@" makes the URL wrong, and must not show all the more:
    # everything between the first colon and the last "@" is taken for it.
    user, at, place = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    hidden = f"{name}:***" if colon else name
    return _HIDDEN_OPTIONS.sub(r"\1***", f"{scheme}://{hidden}{at}{place}")


def _memory(url: str, service_id: str, read_only: bool) -> Provider:
    name = url.partition("://")[2]
    if not re.fullmatch(r"[\w.-]*", name):
        raise BadStoreUrl(f"{url}: write memory:// or memory://NAME, NAME of letters, digits, '.', '_', '-'")
    if not name:
        return MemoryProvider(service_id=service_id, read_only=read_only, url=url)
    store = _named.setdefault(name, MemoryStore())
    return MemoryProvider(store, service_id=service_id, read_only=read_only, url=url)


def _sqlite(url: str, service_id: str, read_only: bool) -> Provider:
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    form = f"write {EXAMPLE} (relative) or sqlite:////absolute/path.db"
    if parts.netloc:
        raise BadStoreUrl(f"{url} names a host, {parts.netloc!r}, and SQLite is a file: {form}")
    if parts.fragment:
        raise BadStoreUrl(f"{url} has a '#': write it as %23")
    if not path or path.endswith("/") or "\x00" in path:
        raise BadStoreUrl(f"{url!r} names no file: {form}")
    if path == ":memory:":
        raise BadStoreUrl(f"{url}: for a store in memory write memory://")
    synchronous = "full"
    try:
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise BadStoreUrl(f"{url}: options are written ?name=value") from error
    for name, value in options:
        if name != "synchronous":
            raise BadStoreUrl(f"{url} has an unknown option {name!r}; known is synchronous")
        if value.lower() not in SYNCHRONOUS:
            raise BadStoreUrl(f"{url}: synchronous is one of {', '.join(SYNCHRONOUS)}, not {value!r}")
        synchronous = value.lower()
    return SqliteProvider(path, service_id=service_id, synchronous=synchronous, read_only=read_only)


def _postgresql(url: str, service_id: str, read_only: bool) -> Provider:
    try:  # here, because it needs an extra that a store in a file does not
        from farro.providers.postgres.store import PostgresProvider
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise BadStoreUrl(
            'a postgresql:// store needs asyncpg, which is not installed: pip install "farro[postgres]"'
        ) from error
    return PostgresProvider(url, service_id=service_id, read_only=read_only)


_BUILT_IN: dict[str, Callable[[str, str, bool], Provider]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
}
