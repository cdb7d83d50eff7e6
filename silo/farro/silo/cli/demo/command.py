"""``farro demo``: the command, its temporary folder, and how it ends."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from pathlib import Path

import click

from farro.client.errors import FarroError
from farro.providers.errors import StoreError
from farro.silo.cli.demo.screen import Screen
from farro.silo.cli.demo.story import Story
from farro.silo.cli.failing import Failed

NEXT = """\
# hello.py
from dataclasses import dataclass
from datetime import timedelta
from farro.silo import Grain

@dataclass
class Greetings:
    count: int = 0

class Greeter(Grain[Greetings], name="greeters"):
    async def hello(self, name: str) -> str:
        self.state.count += 1
        self.schedule(self.remember, name, after=timedelta(minutes=1), key=name)
        return f"Hello {name}, you are number {self.state.count}"

    async def remember(self, name: str) -> None:
        self.log.warning("a minute ago I met %s", name)

$ farro silo hello
$ farro call greeters lobby hello '"Ada"'
$ farro reminders list greeters lobby"""


@click.command()
@click.option(
    "--keep", is_flag=True, show_default="off", help="Leave the SQLite file and the logs, and say where."
)
def demo(keep: bool) -> int:
    """Watch grains keep their schedules through a kill -9.

    Starts a silo process on a fresh SQLite file, with a clock that runs one hour a second; puts real crontab
    lines and a few subscriptions on it; kills it with SIGKILL in the middle of ticks, starts it again, and
    proves by counts read from the file that no tick was lost and none counted twice.  Takes under 30 seconds.
    Exit code 1 if the proof fails.
    """
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="farro-demo-"))
    try:
        holds = asyncio.run(_tell(Story(folder, screen)))
    except (FarroError, StoreError) as error:
        raise Failed(f"the demo met {type(error).__name__}: {error}") from None
    except TimeoutError:
        raise Failed("the demo waited too long for its silo; is the machine very busy?") from None
    except asyncio.CancelledError:
        raise Failed("stopped by SIGTERM") from None
    finally:
        if keep:
            screen.say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    if holds:
        screen.chapter("What you would write next:")
        screen.code(NEXT)
    return 0 if holds else 1


async def _tell(story: Story) -> bool:
    telling = asyncio.current_task()
    assert telling is not None
    # the default would end this process before it could end its silo
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, telling.cancel)
    return await story.tell()
