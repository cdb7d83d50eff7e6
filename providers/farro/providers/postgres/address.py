"""What a PostgreSQL URL says.  The password is in no text that this room makes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from farro.providers.errors import BadStoreUrl

FORM = "postgresql://user:password@host:5432/database"
PORT = 5432
POOL_DEFAULT = 4  # connections for reads; polls and loads are short
POOL_MAX = 100
LANES_DEFAULT = 1  # measured in benchmarks/pg_group_commit.py: one full batch beats several split ones
LANES_MAX = 16
PARTITIONS_DEFAULT = 1024
PARTITIONS_MAX = 4096  # taking all at once locks each: the lock table of a default server holds 6,400
SCHEMA_DEFAULT = "farro"
DRIVER_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "target_session_attrs", "passfile")
_NUMBERS = {"pool": POOL_MAX, "lanes": LANES_MAX, "partitions": PARTITIONS_MAX}
OPTIONS = (*_NUMBERS, "schema", "host", *DRIVER_OPTIONS)


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """Where the database is and how it is used.  None where the driver's own defaults hold (``PGHOST`` …).

    ``partitions`` None: 1,024 for a new service, whatever an existing one has.
    """

    hosts: tuple[tuple[str, int], ...] = ()
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str | None = None
    schema: str = SCHEMA_DEFAULT
    pool: int = POOL_DEFAULT
    lanes: int = LANES_DEFAULT
    partitions: int | None = None
    driver: tuple[tuple[str, str], ...] = ()

    @property
    def printable(self) -> str:
        """The address as a URL for messages: without the password, and made of the parts, not of the text
        given.
        """
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{quote(h)}:{p}" for h, p in self.hosts)
        schema = f"?schema={quote(self.schema)}" if self.schema != SCHEMA_DEFAULT else ""
        return f"postgresql://{user}{hosts}/{quote(self.database or '')}{schema}"

    @property
    def driver_url(self) -> str:
        """The options that asyncpg reads from a URL alone."""
        return f"postgresql://?{urlencode(self.driver)}"

    def lock_class(self, service_id: str) -> int:
        """The first half of the service's advisory lock keys; every silo of the service computes the same.

        Two services that meet in 32 bits wait for each other now and then, and nothing worse.
        """
        digest = hashlib.blake2b(f"{self.schema}\x00{service_id}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big", signed=True)

    def silo_locks(self, service_id: str) -> int:
        """What a silo's number is added to for the key of its lock, which is one number of 64 bits.

        The server keeps such keys apart from those in two halves, so no partition's lock is ever meant.
        """
        digest = hashlib.blake2b(f"{self.schema}\x00{service_id}\x00silos".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True) >> 1  # room for the number


def read_address(url: str) -> PostgresAddress:
    """Raises BadStoreUrl, whose text repeats nothing that could be a password."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadStoreUrl(f"the PostgreSQL URL cannot be read: write {FORM}") from error
    login, at, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    if parts.fragment or "#" in url or "@" in parts.path or "@" in parts.query or (at and not user):
        # never with the text itself: a mark inside the password moves it into another part of the URL
        raise BadStoreUrl(
            f"the PostgreSQL URL cannot be read: write {FORM}, and '@' ':' '/' '?' '#' '%' inside the user or"
            " the password as %40 %3A %2F %3F %23 %25"
        )
    options = _options(parts.query)
    host_option = options.pop("host", "")
    address = PostgresAddress(
        hosts=_hosts(hosts or host_option),
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=unquote(parts.path.removeprefix("/")) or None,
        driver=tuple((name, options.pop(name)) for name in DRIVER_OPTIONS if name in options),
        schema=_schema(options.pop("schema", SCHEMA_DEFAULT)),
        **{name: _number(name, value) for name, value in options.items()},
    )
    if (count := address.partitions) is not None and count & (count - 1):
        raise BadStoreUrl(f"{address.printable}: partitions is a power of two, not {count}")
    return address


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise BadStoreUrl("the PostgreSQL URL has options that are not ?name=value&name=value") from error
    for name, _ in pairs:
        if name in ("user", "password"):
            raise BadStoreUrl(f"the PostgreSQL URL has {name} as an option: write {FORM}")
        if name not in OPTIONS:
            raise BadStoreUrl(
                f"the PostgreSQL URL has an unknown option {name!r:.40}; known are {', '.join(OPTIONS)}"
            )
    return dict(pairs)


def _hosts(text: str) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for one in text.split(",") if text else ():
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", one)
        if match is None or not 0 < int(match[3] or PORT) < 65536:
            raise BadStoreUrl(f"the PostgreSQL URL has a host that is not host or host:port: write {FORM}")
        found.append((match[1] or unquote(match[2]), int(match[3] or PORT)))
    return tuple(found)


def _schema(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", text) or text.startswith("pg_"):
        raise BadStoreUrl(
            f"the schema {text!r:.80} is not a name of a-z, 0-9 and '_' of at most 63 letters; pg_… is the"
            " server's own"
        )
    return text


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _NUMBERS[name]):
        raise BadStoreUrl(f"the option {name} is a number from 1 to {_NUMBERS[name]}, not {text!r:.40}")
    return int(text)
