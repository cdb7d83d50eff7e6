"""How ``farro silo --processes N`` becomes a supervisor: the command lines, and what is refused."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from random import Random, SystemRandom

import click
from click.core import ParameterSource

from farro.silo.cli.failing import BadUsage, Failed, one_line
from farro.silo.cli.log_lines import set_up_logging
from farro.silo.cli.supervising.lines import Mark, json_mark, text_mark
from farro.silo.cli.supervising.output import STDERR, LogStream, Output
from farro.silo.cli.supervising.restarts import BAD_USAGE, RestartLimits
from farro.silo.cli.supervising.silence import SilenceLimits
from farro.silo.cli.supervising.supervisor import Supervisor
from farro.silo.gateway.address import CannotListen, ListenAddress

FARRO = (sys.executable, "-m", "farro.silo.cli.main")
CHECK_WITHIN_S = 120.0
LAST_OUTPUT_S = 2.0
OF_THE_SUPERVISOR = frozenset({"processes", "listen", "advertise", "end_with_stdin"})


def supervise(context: click.Context) -> int:
    """Run the command of ``context`` as several processes; the exit code.

    Everything that is wrong with the command line or the modules is said before anything starts, once and in
    the words of a single silo.
    """
    given = context.params
    if sys.platform == "win32":
        raise BadUsage("--processes: several processes need Linux or macOS; run one")
    if str(given["store"]).lower().startswith("memory:"):
        raise BadUsage(
            f"--processes: {one_line(given['store'])} lives inside one process; give a store that several "
            "can open, such as sqlite:///farro.db"
        )
    # Until there is something to restart.  A function, because what is ignored the processes would inherit.
    signal.signal(signal.SIGHUP, lambda *_: None)
    commands = process_commands(context)
    checking = [*commands[0], "--check"]
    code = _check_now(checking)
    if code != 0:
        return code
    check_free(addresses("--listen", given["listen"], given["processes"]))
    return asyncio.run(_supervise(commands, checking, given))


def process_commands(context: click.Context) -> list[list[str]]:
    """One command line per process.  Raises :class:`BadUsage` when there are not enough ports.

    Only what was said on the command line is said again: what came from the environment is inherited, and a
    store's password in it must not show in the list of processes.
    """
    said: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value = context.params.get(name)
        if isinstance(parameter, click.Argument) or name in OF_THE_SUPERVISOR:
            continue
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            said += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    modules: Sequence[str] = context.params["modules"]
    count = context.params["processes"]
    commands = [
        [*FARRO, "silo", *modules, *said, "--listen", address]
        for address in addresses("--listen", context.params["listen"], count)
    ]
    if context.params["advertise"] is not None:
        advertised = addresses("--advertise", context.params["advertise"], count)
        for command, address in zip(commands, advertised, strict=True):
            command += ["--advertise", address]
    return commands


def addresses(option: str, address: str, processes: int) -> list[str]:
    """The first process's address, and the ports after it; port 0 stays 0 for all."""
    try:
        first = ListenAddress.parse(address)
    except ValueError as error:
        raise BadUsage(f"{option}: {one_line(str(error))}") from None
    if first.port == 0:
        return [str(first)] * processes
    last = first.port + processes - 1
    if last > 65_535:
        raise BadUsage(f"{option}: {processes} processes from port {first.port} on would need port {last}")
    return [str(ListenAddress(first.host, port)) for port in range(first.port, last + 1)]


def check_free(listen: Sequence[str]) -> None:
    """Raises :class:`Failed` when one of the processes could not listen: a second try would not mend it.

    Only before the first start: later it is the processes themselves that hold the ports.
    """
    for address in listen:
        try:
            ListenAddress.parse(address).check_free()
        except CannotListen as error:
            needed = f" ({len(listen)} processes need the ports from {listen[0]} to {listen[-1]})"
            raise Failed(one_line(str(error)) + (needed if listen[0] != listen[-1] else "")) from None


def _check_now(checking: Sequence[str]) -> int:
    """Can a silo be started with this?  It says itself why not, on this process's own stderr."""
    try:
        return subprocess.run(
            checking, stdin=subprocess.DEVNULL, timeout=CHECK_WITHIN_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        raise Failed(f"the modules were not imported within {CHECK_WITHIN_S:g} s") from None


async def _check_again(checking: Sequence[str], output: Output) -> bool:
    process = await asyncio.create_subprocess_exec(
        *checking, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(CHECK_WITHIN_S):
            _, errors = await process.communicate()
    except TimeoutError:
        errors = f"the modules were not imported within {CHECK_WITHIN_S:g} s".encode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    for line in errors.decode(errors="backslashreplace").splitlines():
        output.say(STDERR, line)
    return process.returncode == 0


async def _supervise(
    commands: Sequence[Sequence[str]], checking: Sequence[str], given: dict[str, object]
) -> int:
    output = Output()
    as_json = given["log_format"] == "json"
    set_up_logging(str(given["log_level"]), str(given["log_format"]), LogStream(output))

    def marks(number: int) -> tuple[Mark, Mark]:
        return text_mark(number), json_mark(number) if as_json else text_mark(number)

    async def check() -> bool:
        return await _check_again(checking, output)

    try:
        supervisor = Supervisor(
            commands,
            output,
            marks=marks,
            check=check,
            stop_limit_s=float(str(given["stop_timeout"])),
            restarts=RestartLimits(),
            silence=SilenceLimits(),
            chance=Random(SystemRandom().getrandbits(64)),
        )
        code = await supervisor.run()
    finally:
        await asyncio.to_thread(output.close, LAST_OUTPUT_S)
    if supervisor.reason:
        raise (BadUsage if code == BAD_USAGE else Failed)(one_line(supervisor.reason))
    return code
