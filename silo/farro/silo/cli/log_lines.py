"""Log records as lines of text or JSON on stderr.  Only the command line sets up logging, no library does."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import TextIO

from farro.client.clock import from_us
from farro.silo.cli.failing import one_line

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(level: str, form: str, stream: TextIO | io.TextIOBase | None = None) -> None:
    """Send every record of ``level`` and above to ``stream`` (None: stderr), one line each (a traceback
    follows its line).
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLine() if form == "json" else TextLine())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TextLine(logging.Formatter):
    """``2026-03-01T09:00:00.000Z WARNING farro.turns: text [grain=…]``; control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_instant(record)} {record.levelname} {record.name}: {one_line(record.getMessage())}"
        extra = " ".join(f"{name}={one_line(str(value))}" for name, value in _extra(record).items())
        if extra:
            line += f" [{extra}]"
        if record.exc_info and record.exc_info[0] is not None:
            # indented and escaped: the text of an exception must not pass for a line of the log
            trace = self.formatException(record.exc_info).splitlines()
            line = "\n".join([line, *(f"    {one_line(each)}" for each in trace)])
        return line


class JsonLine(logging.Formatter):
    """One JSON object: ``at``, ``level``, ``logger``, ``text``, ``traceback`` if there is one, and extras."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line | _extra(record), default=str)


def _instant(record: logging.LogRecord) -> str:
    return from_us(int(record.created * 1e6)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
