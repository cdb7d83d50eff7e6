"""``farro cluster``: who lives, who owns what, and how a silo is asked to leave."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import click

from farro.client.clock import SystemClock, from_us
from farro.client.errors import CallTimeout, FarroError, SiloUnavailable
from farro.providers.members import ClusterRows, SiloRow, SiloStatus
from farro.silo.cli.cluster_show import document, show
from farro.silo.cli.cluster_source import OfSilos, Source, facts_of, looking, of_silo, of_silos, source
from farro.silo.cli.failing import Failed, one_line
from farro.silo.cli.reminders_show import iso
from farro.silo.cli.reminders_source import run
from farro.silo.cluster.death import refuses

POLL_S = 0.2
DRAIN_WITHIN_S = 60.0


@click.group()
def cluster() -> None:
    """Look at the silos of a store and their partitions, and drain one."""


@cluster.command(short_help="Print silos and partitions.")
@looking
@click.option("--all", "ended", is_flag=True, show_default="off", help="Also silos that have left or died.")
@click.option("--partitions", is_flag=True, show_default="off", help="Also owner and epoch of every one.")
@click.option(
    "--json", "as_json", is_flag=True, show_default="off", help="A JSON document instead of tables."
)
@click.pass_context
def status(
    context: click.Context,
    silo_url: str,
    store: str | None,
    service_id: str,
    ended: bool,
    partitions: bool,
    as_json: bool,
) -> None:
    """Print the silos, what they own, and what each says of itself.

    With --store the rows are read from the store, which needs no silo at all.  Either way each member is
    asked at its own address, and the last column tells what it says or why it does not answer.
    """
    found = source(context, silo_url, store, service_id)

    async def work() -> None:
        async with found as looking_at:
            rows = await looking_at.rows()
        facts = await facts_of(row for row in rows.silos if row.status.is_member)
        if as_json:
            click.echo(json.dumps(document(rows, facts, ended=ended, partitions=partitions), indent=2))
        else:
            show(rows, facts, SystemClock().now(), ended=ended, partitions=partitions)

    run(work())


@cluster.command(short_help="Let a silo hand over its partitions and stop.")
@click.argument("number", metavar="SILO", type=click.IntRange(min=1))
@looking
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it has left.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=DRAIN_WITHIN_S,
    show_default=True,
    help="Seconds to wait; the silo goes on draining after that.",
)
@click.pass_context
def drain(
    context: click.Context,
    number: int,
    silo_url: str,
    store: str | None,
    service_id: str,
    wait: bool,
    timeout: float,
) -> None:
    """Ask the silo with the number SILO to drain: it hands its partitions over, then its process ends with 0.

    Calls go on meanwhile.  Under --processes it stays stopped until the supervisor gets a SIGHUP.
    """
    found = source(context, silo_url, store, service_id)

    async def work() -> None:
        async with AsyncExitStack() as stack:
            looking_at = await stack.enter_async_context(found)
            rows = await looking_at.rows()
            row = _member(rows, number)
            if await _ask_to_drain(row, looking_at):
                click.echo(f"silo {number} at {row.address} drains")
            else:
                click.echo(f"silo {number} at {row.address} has been asked before, and drains")
            if wait:
                others = [each.address for each in rows.silos if _serves(each) and each.number != number]
                if isinstance(looking_at, OfSilos) and others:
                    # the silo that was asked so far may be the one that goes
                    looking_at = await stack.enter_async_context(of_silos(f"http://{at}" for at in others))
                await _wait_until_left(looking_at, row, timeout, is_last=not others)

    run(work())


def _serves(row: SiloRow) -> bool:
    return row.status is SiloStatus.ACTIVE and bool(row.address)


def _member(rows: ClusterRows, number: int) -> SiloRow:
    """The silo of that number, if it can be asked to drain."""
    found = next((row for row in rows.silos if row.number == number), None)
    if found is None:
        members = ", ".join(str(row.number) for row in rows.silos if row.status.is_member) or "none"
        raise Failed(f"there is no silo {number} on record; members are: {members}")
    if found.left_at is not None:
        how = "has left already" if found.status is SiloStatus.LEFT else "was found dead"
        raise Failed(f"silo {number} {how}, at {iso(from_us(found.left_at))}")
    if not found.address:
        raise Failed(f"silo {number} has no address to be asked at; stop the program it lives in")
    return found


async def _ask_to_drain(row: SiloRow, looking_at: Source) -> bool:
    """False: somebody else has asked it; one that drains takes no new clients."""
    if row.status is SiloStatus.DRAINING:
        return False
    try:
        async with of_silo(row) as silo:
            await silo.drain()
    except FarroError as error:
        if await _is_leaving(row, looking_at):
            return False
        raise Failed(
            f"silo {row.number} at {row.address} could not be asked: {one_line(str(error))}"
        ) from None
    return True


async def _is_leaving(silo: SiloRow, looking_at: Source) -> bool:
    try:
        rows = await looking_at.rows()
    except FarroError:
        return False  # nobody can tell
    now = next((row for row in rows.silos if row.number == silo.number), None)
    return now is None or now.status in (SiloStatus.DRAINING, SiloStatus.LEFT)


async def _wait_until_left(looking_at: Source, silo: SiloRow, limit_s: float, *, is_last: bool) -> None:
    """Tell how many partitions it still has, until it is no member any more."""
    told = -1
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    rows = await looking_at.rows()
                except (SiloUnavailable, CallTimeout):
                    if is_last and await refuses(silo.address):
                        click.echo(f"silo {silo.number} has ended; it was the last one")
                        return
                    await asyncio.sleep(POLL_S)
                    continue
                now = next((row for row in rows.silos if row.number == silo.number), None)
                if now is None or now.status is SiloStatus.LEFT:
                    click.echo(f"silo {silo.number} has left")
                    return
                if now.status is SiloStatus.DEAD:
                    raise Failed(f"silo {silo.number} ended without a good-bye: others found it dead")
                owned = rows.owners.count(silo.number)
                if owned != told:
                    click.echo(f"silo {silo.number} has {owned} partitions left")
                    told = owned
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Failed(
            f"silo {silo.number} has not left within {limit_s:g} s (--timeout); it goes on draining, see "
            "farro cluster status"
        ) from None
