"""A cluster as people and scripts read it: a table, or JSON whose names stay."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import click

from farro.client.clock import from_us
from farro.providers.members import ClusterRows, SiloRow
from farro.silo.cli.reminders_show import Table, iso
from farro.silo.cluster.silo_grain import SiloFacts

COLUMNS = ("silo", "address", "status", "since", "last sign of life", "load", "partitions", "says")
PARTITION_COLUMNS = ("partition", "owner", "epoch")

Facts = dict[int, SiloFacts | str]


def document(rows: ClusterRows, facts: Facts, *, ended: bool, partitions: bool) -> dict[str, Any]:
    """One JSON object.  ``ended``: silos that left or died, too.  ``partitions``: owner and epoch of each.

    ``says`` is what a silo says of itself; None with the reason in ``unreachable``, or when it has ended.
    """
    owned = Counter(rows.owners)
    return {
        "view": rows.view,
        "partitions": {
            "count": len(rows.owners),
            "owned": len(rows.owners) - owned[0],
            "free": owned[0],
            **({"owners": list(rows.owners), "epochs": list(rows.epochs)} if partitions else {}),
        },
        "silos": [
            _silo(row, owned[row.number], facts.get(row.number))
            for row in rows.silos
            if ended or row.status.is_member
        ],
    }


def _silo(row: SiloRow, owned: int, says: SiloFacts | str | None) -> dict[str, Any]:
    return {
        "number": row.number,
        "address": row.address,
        "status": row.status.value,
        "started_at": iso(from_us(row.started_at)),
        "last_sign_of_life_at": iso(from_us(row.renewed_at)),
        "ended_at": None if row.left_at is None else iso(from_us(row.left_at)),
        "renewals": row.renewals,
        "load": row.load,
        "partitions": owned,
        "says": asdict(says) if isinstance(says, SiloFacts) else None,
        "unreachable": says if isinstance(says, str) else None,
    }


def show(rows: ClusterRows, facts: Facts, now: int, *, ended: bool, partitions: bool) -> None:
    """Tables on stdout; ``now`` in microseconds."""
    owned = Counter(rows.owners)
    members = [row for row in rows.silos if row.status.is_member]
    gone = len(rows.silos) - len(members)
    count = len(rows.owners)
    click.echo(f"view {rows.view}: {count} partitions, {count - owned[0]} owned, {owned[0]} free")
    shown = list(rows.silos) if ended else members
    if shown:
        table = Table(COLUMNS)
        for row in shown:
            table.add(_line(row, owned[row.number], facts.get(row.number), now))
        table.end()
    else:
        click.echo("no silo is a member")
    if gone and not ended:
        click.echo(f"{gone} more left or died and are still on record; --all shows them")
    if partitions:
        table = Table(PARTITION_COLUMNS)
        for partition, (owner, epoch) in enumerate(zip(rows.owners, rows.epochs, strict=True)):
            table.add({"partition": partition, "owner": owner or "nobody", "epoch": epoch})
        table.end()


def _line(row: SiloRow, owned: int, says: SiloFacts | str | None, now: int) -> dict[str, Any]:
    since = row.started_at if row.left_at is None else row.left_at
    return {
        "silo": row.number,
        "address": row.address or "-",
        "status": row.status.value,
        "since": iso(from_us(since).replace(microsecond=0)),
        "last sign of life": f"{max(0, now - row.renewed_at) / 1e6:.1f} s ago",
        "load": row.load,
        "partitions": owned,
        "says": _says(says),
    }


def _says(says: SiloFacts | str | None) -> str:
    if says is None:
        return ""
    if isinstance(says, str):
        return f"unreachable: {says}"
    draining = ", draining" if says.draining else ""
    held = f", {says.calls_held} calls wait" if says.calls_held else ""
    return f"view {says.view}, {says.stage}{draining}, {says.turns_running} turns{held}"
