"""``farro silo``: one silo process."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from farro.client.clock import Clock, ScaledClock, SystemClock, from_us
from farro.client.errors import FarroError
from farro.providers.errors import BadStoreUrl, StoreError
from farro.providers.opening import open_provider
from farro.silo.cli import options as given
from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.cli.log_lines import FORMATS, LEVELS, set_up_logging
from farro.silo.cli.modules import GrainType, load_grains
from farro.silo.cli.stopping import Stop
from farro.silo.cli.supervising.signs import Signs
from farro.silo.gateway.address import CannotListen, ListenAddress
from farro.silo.host import Silo
from farro.silo.options import OptionsError, ReminderOptions, SiloOptions
from farro.silo.store_clock import StoreClock

log = logging.getLogger("farro.cli")

STOP_TIMEOUT_S = 10.0
PROCESSES_MAX = 64
DEMO_WINDOW_S = 5.0  # loop seconds that a silo on a fast clock looks ahead; it polls five times as often


@dataclass(frozen=True, slots=True)
class Serving:
    """What one ``farro silo`` was asked to do."""

    grains: list[GrainType]
    store: str
    listen: str
    service_id: str
    options: SiloOptions
    clock: Clock
    ends_with_stdin: bool
    signs: Signs
    advertise: str | None = None


@click.command()
@click.argument("modules", metavar="MODULES...", nargs=-1, required=True)
@click.option(
    "--store",
    envvar="FARRO_STORE",
    default="sqlite:///farro.db",
    show_default=True,
    help="Where state and reminders are kept: sqlite:///FILE, sqlite:////ABSOLUTE/FILE, "
    "postgresql://USER@HOST/DATABASE or memory://.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    envvar="FARRO_LISTEN",
    default="127.0.0.1:11111",
    show_default=True,
    help="Where clients and other silos reach the silo; port 0 lets the system choose.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    envvar="FARRO_ADVERTISE",
    show_default="where it listens",
    help="Where clients and other silos reach it, if that is not where it listens: behind a port mapping.",
)
@given.service_id
@click.option(
    "--stop-timeout",
    type=click.FloatRange(0.1, 3600),
    default=STOP_TIMEOUT_S,
    show_default=True,
    help="Seconds that running turns may take to finish on SIGTERM or Ctrl-C.",
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="Logged on stderr."
)
@click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option(
    "--allow-insecure-bind",
    is_flag=True,
    show_default="off",
    help="Listen beyond loopback although there is no TLS and no authentication yet.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    default=1,
    show_default=True,
    help="How many silos to run over the store, each a process with the next port.",
)
@click.option("--demo-clock", metavar="START:SPEED", hidden=True, help="Schedule time of its own.")
@click.option("--end-with-stdin", is_flag=True, hidden=True, help="Stop when stdin is closed.")
@click.option("--signs-to", type=int, metavar="FD", hidden=True, help="Where a supervisor hears of it.")
@click.option("--check", is_flag=True, hidden=True, help="Only say whether this could be started.")
@click.pass_context
def silo(
    context: click.Context,
    modules: tuple[str, ...],
    store: str,
    listen: str,
    advertise: str | None,
    service_id: str,
    stop_timeout: float,
    log_level: str,
    log_format: str,
    allow_insecure_bind: bool,
    processes: int,
    demo_clock: str | None,
    end_with_stdin: bool,
    signs_to: int | None,
    check: bool,
) -> int:
    """Serve every grain class found in MODULES until SIGTERM or Ctrl-C.

    MODULES are written as in an import (counter, myapp.grains) and found in the current folder, in PYTHONPATH
    or among the installed packages.  When the silo is ready it says so in one line on stdout.  The first
    SIGTERM or Ctrl-C lets running turns finish; a second one, a second later or more, ends the silo at once.

    With --processes N, N silos run on this machine, watched and restarted by a process that serves nothing;
    SIGHUP restarts them one after another.
    """
    if processes > 1:
        from farro.silo.cli.supervising.command import supervise  # only whoever supervises needs it

        return supervise(context)
    set_up_logging(log_level, log_format)
    signs = Signs(signs_to)
    with signs.of_life():
        clock, reminders = _time(demo_clock)
        options = SiloOptions(
            reminders=reminders,
            stop_timeout=timedelta(seconds=stop_timeout),
            allow_insecure_bind=allow_insecure_bind,
        )
        grains = load_grains(modules)
        asked = Serving(grains, store, listen, service_id, options, clock, end_with_stdin, signs, advertise)
        if check:
            _made(asked)
            return 0
        return asyncio.run(_serve(asked))


async def _serve(asked: Serving) -> int:
    """Run until asked to stop; the exit code."""
    number = "?"

    def announce(text: str) -> None:
        click.echo(f"farro silo {number}: {text}")

    stop = Stop(announce, asked.options.stop_timeout.total_seconds())
    asyncio.get_running_loop().set_exception_handler(lambda _, context: _defect(stop, context))
    with stop.on_signals(for_good=True), stop.when_stdin_closes(asked.ends_with_stdin):
        running = await _started(asked)
        number = str(running.number)
        stop.hands_over = lambda: running.cluster.has_peers
        try:
            _say_ready(running, asked)
            asked.signs.ready(running.number, str(running.address))
            running.on_failure(lambda reason: stop.ask(reason, exit_code=1))
            running.on_stuck(stop.end_stuck)
            running.on_drain(stop.ask)
            await stop.wait()
        finally:
            await running.stop()
        announce("stopped")
    return stop.exit_code


def _made(asked: Serving) -> Silo:
    """A silo that is not started yet, or the reason why it never could be; nothing is opened."""
    with _one_clear_error():
        address = ListenAddress.parse(asked.listen)
        try:
            address.check_allowed(asked.options.allow_insecure_bind)
        except CannotListen as error:  # the other options forbid it, whatever the machine's state
            raise BadUsage(f"--listen: {error}") from None
        return Silo(
            asked.grains,
            open_provider(asked.store, service_id=asked.service_id),
            asked.listen,
            options=asked.options,
            service_id=asked.service_id,
            advertise=asked.advertise,
            clock=asked.clock,
        )


async def _started(asked: Serving) -> Silo:
    """A running silo, or one clear reason why there is none."""
    silo = _made(asked)
    with _one_clear_error():
        await silo.start()
    return silo


@contextmanager
def _one_clear_error() -> Iterator[None]:
    try:
        yield
    except BadStoreUrl as error:
        raise BadUsage(f"--store: {one_line(str(error))}") from None
    except StoreError as error:
        raise Failed(f"--store: {one_line(str(error))}") from None
    except (CannotListen, OptionsError) as error:
        raise Failed(one_line(str(error))) from None
    except FarroError as error:
        raise Failed(f"the silo did not start: {one_line(str(error))}") from None
    except ValueError as error:
        raise BadUsage(one_line(str(error))) from None


def _say_ready(running: Silo, asked: Serving) -> None:
    names = ", ".join(sorted(cls.__farro_type__ for cls in asked.grains))
    click.echo(
        f"farro silo {running.number} ready at http://{running.address}, store {running.store_url}, "
        f"grains: {names}"
    )
    if isinstance(asked.clock, ScaledClock):
        click.echo(f"farro silo {running.number} demo clock {from_us(asked.clock.now()).isoformat()}")


def _defect(stop: Stop, context: dict[str, Any]) -> None:
    """An error that reached the event loop itself.

    In a task it has ended that task alone and is logged.  In a callback of the silo it means that a part of
    the silo (the reminder line's timer, a connection's reader) has stopped: better to end, and be started
    again by whoever looks after the process, than to go on without it.
    """
    error = context.get("exception")
    log.error("%s", context.get("message", "an error reached the event loop"), exc_info=error)
    if error is None or "handle" not in context:
        return
    frames = traceback.extract_tb(error.__traceback__)
    if frames and "farro" in frames[-1].filename:
        stop.ask(f"a part of the silo failed ({type(error).__name__})", exit_code=1)


def _time(demo_clock: str | None) -> tuple[Clock, ReminderOptions]:
    """The silo's clock, and reminder options that fit its speed."""
    if demo_clock is None:
        return StoreClock(SystemClock()), ReminderOptions()
    start, _, speed_text = demo_clock.rpartition(":")
    try:
        speed = float(speed_text)
        clock = ScaledClock(datetime.fromisoformat(start), speed)
    except ValueError as error:
        raise BadUsage(f"--demo-clock: {error}; write it like 2026-03-01T00:00:00Z:3600") from None
    window = max(timedelta(minutes=5), timedelta(seconds=DEMO_WINDOW_S * speed))
    # a poll costs the same at any speed, so its period is meant in the loop's seconds
    return clock, ReminderOptions(look_ahead_window=window, poll_interval=window / 5, repair_interval=window)
