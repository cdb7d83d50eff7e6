"""A silo inside a FastAPI application: they start together, end together and share one event loop.

Install:    pip install fastapi uvicorn
Run it:     uvicorn examples.hosting_fastapi:app --reload
Ask it:     curl -X POST http://127.0.0.1:8000/visitors/lobby
Look at it: farro cluster status
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

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


@asynccontextmanager
async def with_silo(app: FastAPI) -> AsyncGenerator[None]:
    """Starts the silo before the first request, and drains it after the last one."""
    store = os.environ.get("FARRO_STORE", "sqlite:///visitors.db")
    listen = os.environ.get("FARRO_LISTEN", "127.0.0.1:11111")
    async with Silo([Visitors], store, listen) as silo:
        # what makes a silo useless, or an operator who drains it, ends the program in its usual way
        silo.on_failure(lambda reason: signal.raise_signal(signal.SIGTERM))
        silo.on_drain(lambda reason: signal.raise_signal(signal.SIGTERM))
        app.state.silo = silo
        yield


app = FastAPI(lifespan=with_silo)


def silo_of(request: Request) -> Silo:
    silo: Silo = request.app.state.silo
    return silo


@app.post("/visitors/{place}")
async def visit(place: str, silo: Annotated[Silo, Depends(silo_of)]) -> dict[str, int]:
    return {"visitors": await silo.grain(Visitors, place).come()}


@app.exception_handler(FarroError)
async def not_done(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FarroError)
    return JSONResponse({"error": str(error)}, status_code=503 if error.retry_safe else 500)
