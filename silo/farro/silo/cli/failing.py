"""How a command fails: one line on stderr, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click

EXAMPLE_SILO = "http://127.0.0.1:11111"


class Failed(click.ClickException):
    """The command was understood and did not succeed: exit code 1."""

    exit_code = 1


class BadUsage(click.ClickException):
    """The command cannot be carried out as written: exit code 2."""

    exit_code = 2


def one_line(text: str) -> str:
    """``text`` fit for a terminal line: control characters, line breaks included, are shown escaped.

    Names of grains and reminders come from whoever stored them and must not move the cursor or forge a line.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def end_by_sigpipe() -> NoReturn:
    """The reader went away (``| head``): end as any program does that was not written in Python."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left for the last flush
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(1)
