"""The grains ``farro.streams`` and ``farro.consumers``: streams for readers anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from farro.client.streams import EventPage, checked_after, checked_stream
from farro.silo.grains.decorators import cancellable, readonly
from farro.silo.grains.grain import Grain
from farro.silo.streams.reading import StreamReader


class StreamReading(Grain, name="farro.streams"):
    """The verbs of :class:`farro.client.streams.StreamsApi`.  Read-only turns: readers wait side by side."""

    __farro_system__ = True

    @property
    def _reader(self) -> StreamReader:
        reader: StreamReader = self._farro_runtime.streams.reader
        return reader

    @readonly
    async def positions(self, stream: str, after: str) -> dict[int, int]:
        return await self._reader.positions(stream, checked_after(after))

    @readonly
    @cancellable
    async def read(self, stream: str, positions: dict[int, int], limit: int, wait_s: float) -> EventPage:
        return await self._reader.read(self.key, stream, positions, limit, wait_s)


@dataclass
class ConsumerState:
    """Stream → partition → the last event consumed."""

    positions: dict[str, dict[int, int]] = field(default_factory=dict)


class StreamConsumer(Grain[ConsumerState], name="farro.consumers"):
    """The durable cursors of the named consumer that is this grain's key."""

    __farro_system__ = True

    async def begin(self, stream: str, after: str) -> dict[int, int]:
        """Where the consumer stands; ``after`` settles it the first time, durably."""
        stream = checked_stream(stream)
        standing = self.state.positions.get(stream)
        if standing is None:
            reader: StreamReader = self._farro_runtime.streams.reader
            standing = await reader.positions(stream, checked_after(after))
            self.state.positions[stream] = standing
        return standing

    async def acknowledge(self, stream: str, partition: int, sequence: int) -> None:
        """The event is consumed, and all before it in its partition.  Never moves back."""
        standing = self.state.positions.setdefault(checked_stream(stream), {})
        standing[partition] = max(sequence, standing.get(partition, 0))
