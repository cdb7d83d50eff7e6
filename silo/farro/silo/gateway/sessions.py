"""All sessions of one silo, whatever carries them: who is there, what they are told, and the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import WSCloseCode

from farro.client.cluster_map import ClusterMap
from farro.client.sockets import Socket
from farro.silo.gateway.session import Session, Shared
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.gateway")

LET_GO_S = 1.0  # how long a client that was answered may take to go by itself
CLOSE_S = 1.0  # how long a client may take to answer our close


class Sessions:
    """Serves one open socket after the other by :meth:`serve`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._sessions: dict[Session, None] = {}  # in the order they came
        self._tasks = TaskOwner("gateway")
        self._stopping = False

    def __len__(self) -> int:
        return len(self._sessions)

    async def serve(self, socket: Socket, peer: str, abort: Callable[[], None]) -> None:
        """Serve that socket until it ends.  ``abort`` ends it without a word."""
        session = Session(socket, peer, self._shared, abort)
        self._sessions[session] = None
        if self._stopping:
            session.go_away("the silo is stopping")
        writer = self._tasks.start(session.write(), f"writer {peer}")
        try:
            await session.read()
        finally:
            self._sessions.pop(session, None)
            writer.cancel()

    def publish(self, cluster: ClusterMap) -> None:
        """Tell everybody, and who comes later, what the cluster looks like now."""
        known = self._shared.map
        if known is not None and cluster.view < known.view:
            return
        self._shared.map = cluster
        for session in self._sessions:
            session.publish(cluster)

    async def stop(self, grace: float) -> None:
        """Tell clients to go, answer what is in flight for ``grace`` seconds, close (1001).  Once."""
        self._stopping = True
        sessions = list(self._sessions)
        for session in sessions:
            session.go_away("the silo is stopping")
        try:
            async with asyncio.timeout(grace):
                for session in sessions:
                    await session.wait_until_quiet()
        except TimeoutError:
            log.warning("the gateway stopped with calls in flight after %g s of grace", grace)
        else:
            await self._let_go(sessions)
        for session in self._sessions:
            self._tasks.start(session.close(WSCloseCode.GOING_AWAY, "the silo has stopped"), "close")
        await self._tasks.wait(2 * CLOSE_S)
        await self._tasks.stop()

    async def _let_go(self, sessions: list[Session]) -> None:
        try:
            async with asyncio.timeout(LET_GO_S):
                for session in sessions:
                    await session.wait_until_gone()
        except TimeoutError:
            log.debug("some clients have not gone although they were told to")
