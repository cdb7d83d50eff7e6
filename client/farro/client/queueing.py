"""Waiting in line, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Queue:
    """Coroutines that wait until they are admitted.

    ``on_return`` is called when one that had been admitted was cancelled in that moment: its turn is the next
    one's.  ``places``: of those that wait, for looking only.
    """

    def __init__(self, on_return: Callable[[], None]) -> None:
        self._on_return = on_return
        self._loop = asyncio.get_running_loop()
        self.places: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Until it is one's turn."""
        place = self._loop.create_future()
        self.places.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._on_return()
            raise
        finally:
            if place in self.places:
                self.places.remove(place)

    def admit(self, count: int) -> None:
        """Let the first ``count`` of them go on, or as many as there are."""
        while self.places and count > 0:
            place = self.places.popleft()
            if not place.done():
                place.set_result(None)
                count -= 1
