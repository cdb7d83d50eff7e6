"""A supervisor over small programs instead of silos: ``python supervised.py FOLDER FAKE FAKE …``.

A FAKE is a word for what a program does each time it is started, joined by commas; the last goes on for ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random

from farro.silo.cli.log_lines import set_up_logging
from farro.silo.cli.supervising.lines import text_mark
from farro.silo.cli.supervising.output import LogStream, Output
from farro.silo.cli.supervising.restarts import RestartLimits
from farro.silo.cli.supervising.signs import Signs
from farro.silo.cli.supervising.silence import SilenceLimits
from farro.silo.cli.supervising.supervisor import Supervisor

LINES = 500


def fake(folder: Path, place: str, acts: str) -> None:
    """What one program does, by how often it was started."""
    starts = folder / f"starts-{place}"
    starts.write_text(f"{starts.read_text() if starts.exists() else ''}{os.getpid()}\n")
    number = len(starts.read_text().splitlines())
    all_acts = acts.split(",")
    act = all_acts[min(number, len(all_acts)) - 1]
    print(f"start {number}: {act}", flush=True)
    if act.startswith("exit"):
        print("Error: it is no good", file=sys.stderr, flush=True)
        sys.exit(int(act.removeprefix("exit")))
    threading.Thread(target=end_with_stdin, daemon=True).start()
    signs = Signs(int(sys.argv[sys.argv.index("--signs-to") + 1]))
    if act == "mute":
        signs.ready(number, "127.0.0.1:1")
        time.sleep(600)  # a program that hangs
    with signs.of_life():
        serve(signs, act, number)


def end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(0)


def serve(signs: Signs, act: str, number: int) -> None:
    over: list[int] = []
    if act == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: over.append(0))
    if act == "never":
        signal.pause()
    if act == "chatter":
        for line in range(LINES):
            os.write(1, b"said %d " % line)
            os.write(1, b"x" * (line % 100) + b"\n")
            os.write(2, b"told %d\n" % line)
    signs.ready(number, f"127.0.0.1:{number}")
    if act == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "leave":
        return
    # Not pause(): after a SIGCONT the kernel may give the signal to the other thread; nothing wakes this one.
    while not over:
        time.sleep(0.02)
    print("drained", flush=True)
    if act == "untidy":
        sys.exit(1)


async def supervise(folder: Path, fakes: list[str]) -> int:
    output = Output()
    set_up_logging("warning", "text", LogStream(output))

    async def check() -> bool:
        return not (folder / "broken").exists()

    supervisor = Supervisor(
        [
            [sys.executable, __file__, str(folder), "--fake", str(number), acts]
            for number, acts in enumerate(fakes, 1)
        ],
        output,
        marks=lambda number: (text_mark(number), text_mark(number)),
        check=check,
        stop_limit_s=0.2,
        restarts=RestartLimits(first_s=0.02, longest_s=0.1, start_failures_max=3),
        silence=SilenceLimits(look_s=0.1, silent_s=2, first_sign_s=20, start_s=5),
        chance=Random(1),
    )
    code = await supervisor.run()
    output.say(2, f"reason: {supervisor.reason}")
    await asyncio.to_thread(output.close, 2)
    return code


if __name__ == "__main__":
    if "--fake" in sys.argv:
        fake(Path(sys.argv[1]), *sys.argv[3:5])
    else:
        sys.exit(asyncio.run(supervise(Path(sys.argv[1]), sys.argv[2:])))
