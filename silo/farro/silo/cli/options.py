"""Options that several commands share."""

from __future__ import annotations

import click

from farro.silo.cli.failing import EXAMPLE_SILO, BadUsage


def _named(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value.strip():
        raise BadUsage(
            "--service-id: the name of a service must not be empty; give one, or leave it out for 'default'"
        )
    return value


service_id = click.option(
    "--service-id",
    envvar="FARRO_SERVICE_ID",
    default="default",
    show_default=True,
    callback=_named,
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
