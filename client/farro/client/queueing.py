"""Waiting in line, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Queue:
    """Coroutines that wait until they are admitted.

    ``on_return`` is called when one that had been admitted was cancelled in that moment: its turn is the next
    one's.
    """

    def __init__(self, on_return: Callable[[], None]) -> None:
        self._on_return = on_return
        self._loop = asyncio.get_running_loop()
        self._places: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._places)

    async def wait(self) -> None:
        """Until it is one's turn."""
        place = self._loop.create_future()
        self._places.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._on_return()
            raise
        finally:
            if place in self._places:
                self._places.remove(place)

    def admit(self, count: int) -> None:
        """Let the first ``count`` of them go on, or as many as there are."""
        while self._places and count > 0:
            place = self._places.popleft()
            if not place.done():
                place.set_result(None)
                count -= 1
