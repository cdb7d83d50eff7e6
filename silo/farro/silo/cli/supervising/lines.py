"""What processes write, cut into whole lines that say whose they are.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable

LINE_BYTES_MAX = 64 * 1024  # what is longer goes on in a further line

Mark = Callable[[bytes], bytes]


class Lines:
    """Cuts a stream of bytes into lines.  Holds at most one unfinished line."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, self._held = (self._held + data).split(b"\n")
        while len(self._held) > LINE_BYTES_MAX:
            lines.append(self._held[:LINE_BYTES_MAX])
            self._held = self._held[LINE_BYTES_MAX:]
        return [piece for line in lines for piece in _pieces(line)]

    def rest(self) -> list[bytes]:
        """The last line, if it has no end: the process died within it."""
        held, self._held = self._held, b""
        return _pieces(held) if held else []


def _pieces(line: bytes) -> list[bytes]:
    if len(line) <= LINE_BYTES_MAX:
        return [line]
    return [line[at : at + LINE_BYTES_MAX] for at in range(0, len(line), LINE_BYTES_MAX)]


def text_mark(number: int) -> Mark:
    """``[2] line``."""
    prefix = f"[{number}] ".encode()
    return lambda line: prefix + line


def json_mark(number: int) -> Mark:
    """The process's number as a member of the JSON object that the line is.

    What is no object (a crash of the interpreter, a print) becomes one, so that every line of the log can be
    read as JSON.
    """
    member = f'"process": {number}'.encode()

    def mark(line: bytes) -> bytes:
        if line.startswith(b"{") and line.endswith(b"}"):
            inner = line[1:-1]
            return b"{" + member + (b", " + inner if inner.strip() else b"") + b"}"
        text = json.dumps(line.decode(errors="backslashreplace"))
        return b"{" + member + b', "text": ' + text.encode() + b"}"

    return mark
