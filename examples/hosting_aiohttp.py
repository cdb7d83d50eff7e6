"""A silo inside an aiohttp application: they start together, end together and share one event loop.

Run it:     python examples/hosting_aiohttp.py
Ask it:     curl -X POST http://127.0.0.1:8080/visitors/lobby
Look at it: farro cluster status
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from aiohttp import web

from farro.client import FarroError
from farro.silo import Grain, Silo


@dataclass
class Count:
    value: int = 0


class Visitors(Grain[Count], name="visitors"):
    """Counts who comes."""

    async def come(self) -> int:
        self.state.value += 1
        return self.state.value


SILO = web.AppKey("silo", Silo)


async def with_silo(app: web.Application) -> AsyncGenerator[None]:
    """Starts the silo before the first request, and drains it after the last one."""
    store = os.environ.get("FARRO_STORE", "sqlite:///visitors.db")
    listen = os.environ.get("FARRO_LISTEN", "127.0.0.1:11111")
    async with Silo([Visitors], store, listen) as silo:
        # what makes a silo useless, or an operator who drains it, ends the program in its usual way
        silo.on_failure(lambda reason: signal.raise_signal(signal.SIGTERM))
        silo.on_drain(lambda reason: signal.raise_signal(signal.SIGTERM))
        app[SILO] = silo
        yield


async def visit(request: web.Request) -> web.Response:
    visitors = request.app[SILO].grain(Visitors, request.match_info["place"])
    try:
        return web.json_response({"visitors": await visitors.come()})
    except FarroError as error:
        return web.json_response({"error": str(error)}, status=503 if error.retry_safe else 500)


def make_app() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(with_silo)
    app.router.add_post("/visitors/{place}", visit)
    return app


if __name__ == "__main__":
    web.run_app(make_app(), host="127.0.0.1", port=int(os.environ.get("PORT", "8080")))
