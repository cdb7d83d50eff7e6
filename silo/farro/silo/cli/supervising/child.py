"""One silo process under supervision: its pipes, its output, its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from farro.silo.cli.supervising.lines import Lines, Mark
from farro.silo.cli.supervising.output import STDERR, STDOUT, Output
from farro.silo.cli.supervising.signs import READY
from farro.silo.tasks import TaskOwner

READ_BYTES = 64 * 1024
LAST_WORDS_S = 1.0  # of reading after its end: children of its own may hold the pipes


@dataclass(frozen=True, slots=True)
class Serving:
    """What a process says of itself when it is ready."""

    silo: int
    address: str


class Child:
    """Started by :meth:`start`; :meth:`wait` must be called, it releases what the process held."""

    def __init__(self, tasks: TaskOwner, output: Output, marks: tuple[Mark, Mark]) -> None:
        self._tasks = tasks
        self._output = output
        self._marks = marks
        self._reading: list[asyncio.Task[None]] = []
        self._stdin = -1
        self._process: asyncio.subprocess.Process
        self.serving: Serving | None = None
        self.error = ""  # its last line on stderr that says why it failed

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        tasks: TaskOwner,
        output: Output,
        marks: tuple[Mark, Mark],
        on_sign: Callable[[Child], None],
    ) -> Child:
        """Run ``command`` with ``--signs-to FD --end-with-stdin`` added.  ``marks``: of stdout, of stderr.

        ``on_sign`` is called for every sign of life, and after :attr:`serving` was set.  Raises OSError when
        there is no process to be had.
        """
        child = cls(tasks, output, marks)
        # pipes of our own, none of asyncio's: a process counts as ended when it has ended, whoever holds them
        stdin, child._stdin = os.pipe()
        pipes = [os.pipe() for _ in range(3)]
        out, err, signs = (write for _, write in pipes)
        try:
            child._process = await asyncio.create_subprocess_exec(
                *command,
                *("--signs-to", str(signs), "--end-with-stdin"),
                stdin=stdin,
                stdout=out,
                stderr=err,
                pass_fds=(signs,),
                start_new_session=True,  # Ctrl-C is for the supervisor, which asks its processes itself
            )
        except BaseException:
            os.close(child._stdin)
            for read, _ in pipes:
                os.close(read)
            raise
        finally:
            for each in (stdin, out, err, signs):
                os.close(each)
        readers = [await _Pipe.open(read) for read, _ in pipes]
        child._read(child._copy(readers[0], STDOUT), "stdout")
        child._read(child._copy(readers[1], STDERR), "stderr")
        child._read(child._hear(readers[2], on_sign), "signs")
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it has ended."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit code, or minus the number of the signal that ended it; its last words have been read."""
        try:
            code = await self._process.wait()
            await asyncio.wait(self._reading, timeout=LAST_WORDS_S)
            return code
        finally:
            os.close(self._stdin)
            for task in self._reading:
                task.cancel()

    # ---- reading

    def _read(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._reading.append(self._tasks.start(work, f"{what} of {self.pid}"))

    async def _copy(self, pipe: _Pipe, descriptor: int) -> None:
        lines, mark = Lines(), self._marks[descriptor - STDOUT]
        with closing(pipe):
            while data := await pipe.read():
                await self._write(descriptor, mark, lines.feed(data))
            await self._write(descriptor, mark, lines.rest())

    async def _write(self, descriptor: int, mark: Mark, lines: list[bytes]) -> None:
        if not lines:
            return
        if descriptor == STDERR:
            errors = [line for line in lines if line.startswith(b"Error: ")]
            self.error = errors[-1].decode(errors="backslashreplace") if errors else self.error
        await self._output.write(descriptor, [mark(line) for line in lines])

    async def _hear(self, pipe: _Pipe, on_sign: Callable[[Child], None]) -> None:
        lines = Lines()
        with closing(pipe):
            while data := await pipe.read():
                for line in lines.feed(data):
                    word, *rest = line.split(b" ")
                    if word == READY:
                        self.serving = Serving(int(rest[0]), rest[1].decode())
                on_sign(self)


class _Pipe:
    """The reading end of a pipe."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._reader = reader
        self._transport = transport

    @classmethod
    async def open(cls, descriptor: int) -> _Pipe:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        return cls(reader, transport)

    async def read(self) -> bytes:
        """What has come; empty at the end."""
        return await self._reader.read(READ_BYTES)

    def close(self) -> None:
        self._transport.close()
