"""``farro migrate``: an older farro's store becomes this farro's; Orleans' reminders become farro's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import click

from farro.client.clock import SystemClock
from farro.providers.contracts import Provider
from farro.providers.errors import BadStoreUrl, StoreError, StoreInUse
from farro.providers.opening import open_provider
from farro.silo.cli import options as given
from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.cli.migrate_orleans import OrleansAsk, import_from_orleans, read_keys, read_map

BATCH = 500
BATCH_MAX = 10_000


@runtime_checkable
class TellsPending(Protocol):
    """A provider that can say what opening it would apply."""

    async def pending_migrations(self) -> list[str]: ...


@click.command()
@click.option(
    "--store",
    metavar="URL",
    envvar="FARRO_STORE",
    default="sqlite:///farro.db",
    show_default=True,
    help="The store to upgrade, or to import into.",
)
@given.service_id
@click.option("--dry-run", is_flag=True, show_default="off", help="Say what would be done; change nothing.")
@click.option(
    "--from-orleans",
    metavar="URL",
    show_default="no import",
    help="Orleans' database: postgresql://user@host:5432/database; a password may be in PGPASSWORD.",
)
@click.option(
    "--orleans-service-id",
    metavar="ID",
    show_default="the only one in the table",
    help="Whose reminders are imported.",
)
@click.option(
    "--orleans-schema",
    metavar="NAME",
    show_default="wherever the table is",
    help="The PostgreSQL schema of Orleans' table.",
)
@click.option(
    "--map",
    "mapped",
    metavar="ORLEANSTYPE=FARROTYPE",
    multiple=True,
    show_default="types keep their names",
    help="Import reminders of one grain type for another.  Repeatable.",
)
@click.option(
    "--keys",
    metavar="ORLEANSTYPE=int|uuid|text",
    multiple=True,
    show_default="text, taken as it is",
    help="Which keys the grains of a type have in Orleans, where ids hide it.  Repeatable.",
)
@click.option(
    "--grains",
    "modules",
    metavar="MODULE",
    multiple=True,
    show_default="not checked",
    help="Check the types against the grain classes of this module.  Repeatable.",
)
@click.option(
    "--read-only", is_flag=True, show_default="off", help="Add no columns and no index to Orleans' table."
)
@click.option(
    "--replace", is_flag=True, show_default="off", help="Put imported reminders over those farro has already."
)
@click.option(
    "--batch",
    type=click.IntRange(1, BATCH_MAX),
    default=BATCH,
    show_default=True,
    help="Reminders read and written at a time.",
)
@click.pass_context
def migrate(
    context: click.Context,
    store: str,
    service_id: str,
    dry_run: bool,
    from_orleans: str | None,
    orleans_service_id: str | None,
    orleans_schema: str | None,
    mapped: tuple[str, ...],
    keys: tuple[str, ...],
    modules: tuple[str, ...],
    read_only: bool,
    replace: bool,
    batch: int,
) -> None:
    """Upgrade a store to this farro, or import Orleans' reminders into it.

    Nothing is ever removed, and a second run changes nothing more.  No silo may be running on the store.

    With --from-orleans each reminder of Orleans' ADO.NET table on PostgreSQL goes on in farro, on its own
    grid.  Stop Orleans first, or both fire.  Reminders that farro has already stay as they are.  Rows that
    cannot be read are listed and stay behind.
    """
    provider = _provider(store, service_id)
    if from_orleans is None:
        _refuse_orleans_options(context)
        asyncio.run(_upgrade(provider, dry_run))
        return
    asked = OrleansAsk(
        url=from_orleans,
        service_id=orleans_service_id,
        schema=orleans_schema,
        types=read_map(mapped),
        keys=read_keys(keys),
        modules=modules,
        read_only=read_only,
        replace=replace,
        dry_run=dry_run,
        batch=batch,
    )
    reader = _provider(store, service_id, read_only=True) if dry_run else provider
    try:
        asyncio.run(import_from_orleans(asked, reader))
    except BadStoreUrl as error:
        raise BadUsage(f"--from-orleans: {one_line(str(error))}") from None
    except StoreError as error:
        raise _failed(error) from None


def _provider(store: str, service_id: str, *, read_only: bool = False) -> Provider:
    if store.lower().startswith("memory:"):
        raise BadUsage(f"--store: {one_line(store)} ends with its process: there is nothing to migrate")
    try:
        return open_provider(store, service_id=service_id, read_only=read_only)
    except BadStoreUrl as error:
        raise BadUsage(f"--store: {one_line(str(error))}") from None


def _refuse_orleans_options(context: click.Context) -> None:
    mine = ("store", "service_id", "dry_run", "from_orleans")
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in mine and source is not click.core.ParameterSource.DEFAULT:
            raise BadUsage(f"{parameter.opts[0]} belongs to --from-orleans: give both or neither")


async def _upgrade(provider: Provider, dry_run: bool) -> None:
    """Apply what is pending, and say so; a store that is not there yet is not made."""
    try:
        pending: list[str] = []
        if isinstance(provider, TellsPending):
            pending = await provider.pending_migrations()
        elif dry_run:
            raise Failed("--dry-run: this kind of store cannot say beforehand what it would apply")
        if dry_run:
            _say(pending, "would apply", "nothing was changed")
            return
        info = await provider.open(SystemClock().now())
        await provider.close()
        _say(pending, "applied", f"{info.url} is at schema {info.schema_version}")
    except StoreError as error:
        raise _failed(error) from None


def _say(pending: Sequence[str], verb: str, end: str) -> None:
    for name in pending:
        click.echo(f"{verb} {name}")
    click.echo(end if pending else f"up to date: {end}")


def _failed(error: StoreError) -> Failed:
    text = one_line(str(error))
    return Failed(f"stop the silo before migrating: {text}" if isinstance(error, StoreInUse) else text)
