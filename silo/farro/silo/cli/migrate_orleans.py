"""``farro migrate --from-orleans``: what is asked, the run, and its summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from farro.client.clock import SystemClock
from farro.client.errors import FarroError
from farro.client.identity import GrainId
from farro.providers.contracts import Provider
from farro.providers.errors import StoreMissing
from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.cli.modules import load_grains
from farro.silo.migration.importing import ImportReport, check_alone, import_reminders, preview
from farro.silo.migration.orleans_ids import KeyForm, Naming

if TYPE_CHECKING:
    from farro.silo.migration.orleans_table import OrleansDatabase, OrleansTable

_COLUMNS = ("Orleans type", "farro type", "imported", "kept", "note")


@dataclass(frozen=True, slots=True)
class OrleansAsk:
    """What one import was asked to do.  ``types`` and ``keys`` are by Orleans type."""

    url: str = field(repr=False)  # it may hold a password
    service_id: str | None
    schema: str | None
    types: Mapping[str, str]
    keys: Mapping[str, KeyForm]
    modules: Sequence[str]
    read_only: bool
    replace: bool
    dry_run: bool
    batch: int


def read_map(texts: Sequence[str]) -> dict[str, str]:
    """``--map`` options.  BadUsage for one that is not ORLEANSTYPE=FARROTYPE or contradicts another."""
    found: dict[str, str] = {}
    for text in texts:
        orleans, target = _pair("--map", text, "shipment=shipments")
        try:
            GrainId(target, "any")
        except FarroError as error:
            raise BadUsage(f"--map {one_line(text)}: {one_line(str(error))}") from None
        if found.setdefault(orleans, target) != target:
            raise BadUsage(f"--map: {one_line(orleans)} is mapped to two types: give it once")
    return found


def read_keys(texts: Sequence[str]) -> dict[str, KeyForm]:
    """``--keys`` options.  BadUsage for one that is not ORLEANSTYPE=FORM or contradicts another."""
    found: dict[str, KeyForm] = {}
    for text in texts:
        orleans, form = _pair("--keys", text, "counter=int")
        if form not in {each.value for each in KeyForm}:
            raise BadUsage(
                f"--keys {one_line(text)}: keys are {', '.join(each.value for each in KeyForm)}, not {form!r}"
            )
        if found.setdefault(orleans, KeyForm(form)).value != form:
            raise BadUsage(f"--keys: {one_line(orleans)} is given two forms: give it once")
    return found


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    # the last mark: generic types of Orleans have some in their names
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise BadUsage(f"{option} {one_line(text)!r} is not NAME=VALUE: write it like {option} {example}")
    return name, value


async def import_from_orleans(asked: OrleansAsk, provider: Provider) -> None:
    """The whole import, told on stdout.  Raises StoreError, BadUsage and Failed."""
    served = _served(asked.modules)
    try:
        from farro.silo.migration.orleans_table import orleans_database, read_orleans_url
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise Failed("--from-orleans needs PostgreSQL's driver: pip install 'farro[postgres]'") from None
    read_orleans_url(asked.url)
    async with orleans_database(asked.url) as database:
        table = await database.find(asked.schema)
        service_id, rows = _service(asked, table, await database.services(table))
        try:
            partitions = await _opened(provider)
            if not asked.dry_run:
                await check_alone(provider, SystemClock().now())  # before anything is changed anywhere
            table = await _upgraded(asked, database, table)
            report = await _run(asked, database, table, service_id, rows, provider, partitions)
        finally:
            await provider.close()
    _tell(asked, report, served)


async def _opened(provider: Provider) -> int | None:
    """The store's partitions; None when a dry run finds no store."""
    try:
        return (await provider.open(SystemClock().now())).partitions
    except StoreMissing as error:
        click.echo(f"there is no store yet, the import would make it: {one_line(str(error))}")
        return None


def _service(asked: OrleansAsk, table: OrleansTable, services: Mapping[str, int]) -> tuple[str, int]:
    """Whose reminders are meant, and how many they are."""
    known = ", ".join(one_line(f"{name!r} ({rows})") for name, rows in services.items())
    if asked.service_id is not None:
        if asked.service_id not in services and services:
            raise Failed(
                f"--orleans-service-id: {table.name} has no reminders of {asked.service_id!r}; it has {known}"
            )
        return asked.service_id, services.get(asked.service_id, 0)
    if len(services) > 1:
        raise Failed(f"{table.name} has reminders of several services: {known}; choose --orleans-service-id")
    return next(iter(services.items()), ("", 0))


async def _upgraded(asked: OrleansAsk, database: OrleansDatabase, table: OrleansTable) -> OrleansTable:
    statements = table.additions()
    if asked.read_only or not statements:
        return table
    if asked.dry_run:
        for statement in statements:
            click.echo(f"would run on Orleans' database: {statement}")
        return table
    upgraded = await database.upgrade(table)
    for statement in statements:
        click.echo(f"ran on Orleans' database: {statement}")
    return upgraded


async def _run(
    asked: OrleansAsk,
    database: OrleansDatabase,
    table: OrleansTable,
    service_id: str,
    rows: int,
    provider: Provider,
    partitions: int | None,
) -> ImportReport:
    naming = Naming(asked.types, asked.keys)
    now = SystemClock().now()
    with _progress(rows) as progress:
        async with aclosing(database.pages(table, service_id, asked.batch)) as pages:
            if asked.dry_run:
                store = None if partitions is None else provider
                return await preview(pages, store, naming, now=now, replace=asked.replace, progress=progress)
            assert partitions is not None, "a store opened for writing is there"
            return await import_reminders(
                pages,
                provider,
                naming,
                partitions=partitions,
                now=now,
                replace=asked.replace,
                progress=progress,
            )


@contextmanager
def _progress(rows: int) -> Generator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda read: None
        return
    with click.progressbar(length=rows, label="reminders", file=sys.stderr) as bar:
        yield lambda read: bar.update(read - bar.pos)


# ---- the summary


def _served(modules: Sequence[str]) -> dict[str, bool] | None:
    """Grain types of the modules, and whether they have a receive_reminder; None: no modules given."""
    if not modules:
        return None
    return {
        cls.__farro_type__: cls.__farro_class__.receive_reminder is not None for cls in load_grains(modules)
    }


def _note(orleans: str, farro_type: str, asked: OrleansAsk, served: Mapping[str, bool] | None) -> str:
    if served is not None and farro_type not in served:
        return "unknown type: kept, waits for a silo that serves it"
    if served is not None and not served[farro_type]:
        return "the class has no receive_reminder: kept, waits for it"
    if served is None and orleans not in asked.types:
        return "not mapped: kept, waits for a silo that serves this type"
    return ""


def _tell(asked: OrleansAsk, report: ImportReport, served: Mapping[str, bool] | None) -> None:
    lines: list[list[str]] = [list(_COLUMNS)]
    for orleans, found in sorted(report.types.items()):
        note = _note(orleans, found.farro_type, asked, served)
        lines.append(
            [one_line(orleans), one_line(found.farro_type), str(found.imported), str(found.kept), note]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    for line in lines if report.types else ():
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    for left in report.reasons:
        click.echo(one_line(f"left behind: {left.row.grain_id} {left.row.name!r}: {left.reason}"))
    if unlisted := report.unreadable - len(report.reasons):
        click.echo(f"left behind: {unlisted} more")
    for orleans in (*asked.types, *asked.keys):
        if orleans not in report.types:
            click.echo(f"no reminder of the type {one_line(orleans)} was imported", err=True)
    would = "would be " if asked.dry_run else ""
    click.echo(
        f"{report.read} read: {report.imported} {would}imported, {report.kept} {would}kept as farro has them,"
        f" {report.unreadable} {would}left behind"
    )
