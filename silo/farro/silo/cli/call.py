"""``farro call``: one call of a grain's method, JSON in and JSON out."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

import click

from farro.client.errors import FarroError
from farro.silo.cli import options as given
from farro.silo.cli.connecting import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, connected
from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.cli.jsonable import jsonable


@click.command(context_settings={"ignore_unknown_options": True})  # -5 is an argument, not an option
@click.argument("grain_type", metavar="TYPE")
@click.argument("grain_key", metavar="KEY")
@click.argument("method", metavar="METHOD")
@click.argument("arguments", metavar="[JSON]...", nargs=-1, type=click.UNPROCESSED)
@given.silo_url
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=CALL_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for the result.",
)
def call(
    grain_type: str,
    grain_key: str,
    method: str,
    arguments: tuple[str, ...],
    silo_url: str,
    timeout: float,
) -> None:
    """Call METHOD of the grain TYPE/KEY and print its result as JSON.

    Arguments are JSON values, one each: 5, true, null, '"text"', '[1, 2]', '{"a": 1}'.  What JSON has no form
    for is printed as text (dates, decimals, UUIDs, NaN), base64 (bytes) or a list (sets, tuples).
    """
    values = [read_json(text, place) for place, text in enumerate(arguments, 1)]
    result = asyncio.run(ask(silo_url, timeout, grain_type, grain_key, method, values))
    click.echo(json.dumps(jsonable(result), ensure_ascii=True))


async def ask(
    silo_url: str, timeout_s: float, grain_type: str, grain_key: str, method: str, values: list[Any]
) -> Any:
    """One call through a client of its own.  Raises :class:`Failed` with the reason in one line."""
    connect_s = min(timeout_s, CONNECT_TIMEOUT_S)
    try:
        async with connected(silo_url, connect_timeout_s=connect_s, timeout_s=timeout_s) as client:
            return await client.call(grain_type, grain_key, method, *values)
    except FarroError as error:
        unknown = " (whether it ran is not known)" if error.turn_ran is None else ""
        raise Failed(f"{one_line(str(error))}{unknown}") from None


def read_json(text: str, place: int) -> Any:
    """One argument, strictly JSON (no NaN, no key twice).  Raises :class:`BadUsage` with the way out."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
    except RecursionError:
        raise BadUsage(f"argument {place} is nested too deeply") from None
    except ValueError as error:
        if text.startswith("--"):
            raise BadUsage(
                f"no such option: {one_line(text)}; a text argument is written '\"--…\"'"
            ) from None
        if isinstance(error, json.JSONDecodeError) and text.isprintable() and len(text) <= 60:
            quoted = json.dumps(text, ensure_ascii=False)
            raise BadUsage(
                f"argument {place}, {text}, is not JSON; if it is a text, write '{quoted}'"
            ) from None
        raise BadUsage(f"argument {place} is not JSON: {one_line(str(error))}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("an object has a key twice")
    return result
