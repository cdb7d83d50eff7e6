"""What aiohttp's server reports about connections, in the silo's own words."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger("farro.gateway")


class _OfNoInterest(logging.Filter):
    """Lets through what is a fault of this silo.

    What is no HTTP (a port scan, a client of something else) is answered with 400 and is nobody's fault here;
    aiohttp would write a traceback of its parser for every such connection.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[1] if record.exc_info else None
        if not isinstance(raised, HttpProcessingError):
            return True
        reason = " ".join(raised.message.split())
        _log.debug("refused a connection that speaks no HTTP: %s", reason[:200])
        return False


def server_logger() -> logging.Logger:
    """The logger to give to aiohttp's server.  The same every time."""
    logger = logging.getLogger("farro.gateway.http")
    if not any(isinstance(each, _OfNoInterest) for each in logger.filters):
        logger.addFilter(_OfNoInterest())
    return logger
