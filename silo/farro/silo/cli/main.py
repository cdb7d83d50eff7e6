"""``farro``: the command line.  Each group of commands is imported when it is used, so that help is quick."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import NoReturn

import click

from farro.silo.cli.failing import end_by_sigpipe, one_line

COMMANDS = {
    "silo": ("farro.silo.cli.silo", "silo", "Run a silo that serves the grain classes of MODULES."),
    "call": ("farro.silo.cli.call", "call", "Call a method of a grain and print its result as JSON."),
    "reminders": ("farro.silo.cli.reminders", "reminders", "Look at reminders, and operate them."),
    "cluster": ("farro.silo.cli.cluster", "cluster", "Look at silos and partitions, and drain a silo."),
    "migrate": ("farro.silo.cli.migrate", "migrate", "Upgrade a store, or import reminders of Orleans."),
    "cron": ("farro.silo.cli.cron", "cron", "Read cron texts: when they fire, and what they mean."),
    "demo": ("farro.silo.cli.demo.command", "demo", "Watch grains keep their schedules through a kill -9."),
    "bench": ("farro.silo.cli.bench", "bench", "Run the benchmarks of a source checkout."),
}
TRACEBACK_VARIABLE = "FARRO_TRACEBACK"
COMPLETION_VARIABLE = "_FARRO_COMPLETE"  # set by the shell completion that click generates


class LazyGroup(click.Group):
    """Lists every command by name and one line; imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _, _) in COMMANDS.items() if find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"max_content_width": 110})
@click.version_option(version("farro"), prog_name="farro", message="%(prog)s %(version)s")
def farro() -> None:
    """Grains that remember and wake: run silos, call grains, look at reminders.

    Options may come from the environment too: FARRO_STORE, FARRO_SILO, FARRO_LISTEN, FARRO_SERVICE_ID.
    Exit codes: 0 done, 1 failed, 2 bad usage.
    """


def main() -> NoReturn:
    """The ``farro`` command.  Every failure is one line on stderr."""
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        end_by_sigpipe()
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        click.echo(
            f"Error: farro met what it did not expect: {type(error).__name__}: {one_line(str(error))} "
            f"(set {TRACEBACK_VARIABLE}=1 to see where)",
            err=True,
        )
        sys.exit(1)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """The exit code of the command.  Not click's own ``main``: it hides from us that the reader went away."""
    if COMPLETION_VARIABLE in os.environ:
        farro.main(arguments, prog_name="farro", standalone_mode=False)
    try:
        with farro.make_context("farro", arguments) as context:
            code = farro.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
