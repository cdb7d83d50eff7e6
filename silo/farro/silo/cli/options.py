"""Options that several commands share."""

from __future__ import annotations

import click

from farro.silo.cli.failing import EXAMPLE_SILO

service_id = click.option(
    "--service-id",
    envvar="FARRO_SERVICE_ID",
    default="default",
    show_default=True,
    help="Which service's rows are meant where several share a store.",
)
silo_url = click.option(
    "--silo",
    "silo_url",
    metavar="URL",
    envvar="FARRO_SILO",
    default=EXAMPLE_SILO,
    show_default=True,
    help="The address of a silo.",
)
