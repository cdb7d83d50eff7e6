"""What a connection and a session need of their socket.  aiohttp's WebSockets have it, and so has a pipe."""

from __future__ import annotations

from typing import Any, Protocol


class Socket(Protocol):
    """One end of a WebSocket: whole frames, in order, until it ends."""

    @property
    def close_code(self) -> int | None:
        """Why it ended, as a WebSocket close code; None while it lives, and when it broke."""
        ...

    async def send_bytes(self, data: bytes, /) -> None:
        """Hand over one binary frame; waits while the other side does not read.  Raises ``OSError``."""
        ...

    async def receive(self) -> Any:
        """The next frame as an ``aiohttp.WSMessage``.

        ``BINARY`` or ``TEXT``; ``ERROR`` with the exception as data when it broke; anything else says that it
        has been closed.  Raises nothing.
        """
        ...

    async def close(self, *, code: int = 1000, message: bytes = b"") -> Any:
        """End it, saying why, after what has been handed over.  Repeatable."""
        ...
