"""What the log says of connections that speak no HTTP."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp.http_exceptions import BadStatusLine

from farro.silo.gateway.http_log import server_logger
from tests.unit.silo.gateway.serving import serving

GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # a TLS greeting
    b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    b"\xff" * 4096 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n",
]


@pytest.mark.parametrize("sent", GARBAGE, ids=["tls", "ssh", "bytes", "long header", "redis"])
async def test_what_is_no_http_is_refused_without_a_word_above_debug(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (gateway, _):
        host, _, port = gateway.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.0 400 ")
        writer.close()
        await writer.wait_closed()
    assert [record for record in caplog.records if record.levelno > logging.DEBUG or record.exc_info] == []


def test_a_fault_of_the_silo_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    logger = server_logger()
    assert server_logger() is logger and len(logger.filters) == 1
    logger.error("Error handling request", exc_info=ZeroDivisionError("a fault"))
    logger.error("Error handling request", exc_info=BadStatusLine("PING"))
    logger.error("Missing return statement on request handler")
    assert [record.exc_info is not None for record in caplog.records if record.name == logger.name] == [
        True,
        False,
    ]
