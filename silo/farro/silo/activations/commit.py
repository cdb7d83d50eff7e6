"""The one writer: every change of state and reminder rows of this silo goes through here.

Natural batching: while one batch is at the store, what becomes ready queues; the next batch takes it all, up
to a bound.  A store may have several lanes: each has its own queue and its own batches under way, and a
partition always goes by the same one, so its commits stay in order.  Each member gets its own verdict.  A
lost answer is never repeated: the members learn that the outcome is unknown, and whoever asks for the grain
next reads the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from farro.client.clock import Clock
from farro.client.errors import CommitOutcomeUnknown, FarroError, StorageUnavailable
from farro.providers.contracts import Provider
from farro.providers.errors import OutcomeUnknown, StoreChanged, StoreError
from farro.providers.rows import Commit, Outcome, Verdict
from farro.silo.metrics import CommitFigures
from farro.silo.tasks import TaskOwner

log = logging.getLogger("farro.silo")

P = ParamSpec("P")

# Callers that wait for their commits make no new ones.  So a store that takes a second batch before it has
# answered the first is given no more than that of a queue, until there is enough for a full batch: while it
# writes the one part, the event loop runs the next turns of the other.
OVERLAP = 32

COMMITTED = Outcome.COMMITTED  # a name of an Enum costs two calls to look up

Listener = Callable[[list[tuple[Commit, Verdict]]], None]
Done = Callable[[Verdict | None, FarroError | None], None]  # one of the two is None
Member = tuple[Commit, Done]


class _Lane:
    """What waits for its turn on one lane of the store, and how many batches are under way there."""

    __slots__ = ("queue", "under_way")

    def __init__(self) -> None:
        self.queue: deque[Member] = deque()
        self.under_way = 0


class Committer:
    """Group commit of one silo.  ``owner`` is the silo's number in the store, once it has one.

    ``on_dispossessed`` is told why when the store is no longer the one that was opened: nothing of this silo
    can be committed any more.  ``on_fenced`` is told, once for each batch, of a partition that somebody else
    has taken over: its members had the verdict FENCED.
    """

    def __init__(
        self,
        provider: Provider,
        clock: Clock,
        tasks: TaskOwner,
        *,
        batch_max: int,
        batch_bytes_max: int,
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._tasks = tasks
        self.owner = 0
        self._batch_max = batch_max
        self._batch_bytes_max = batch_bytes_max
        self._loop = asyncio.get_running_loop()
        self._lanes = [_Lane() for _ in range(provider.lanes)]
        self._lane_depth = provider.lane_depth
        self._only_lane = self._lanes[0] if len(self._lanes) == 1 else None
        self._listeners: list[Listener] = []
        self.on_dispossessed: Callable[[str], None] = _nobody_listens
        self.on_fenced: Callable[[int], None] = _nobody_listens
        self._lost_listeners: list[Callable[[Commit], None]] = []
        self.batches = 0
        self.commits = 0
        self.failures = 0
        self.failures_in_a_row = 0  # batches the store did not take since it last took one

    def listen(self, listener: Listener, *, lost: Callable[[Commit], None] | None = None) -> None:
        """Be told of every batch that the store has answered, before anybody waiting for it goes on.

        Told are, in commit order, the committed members that did more than write a grain's state; often none.
        ``lost`` is told of every member that may or may not have been applied.
        """
        self._listeners.append(listener)
        if lost is not None:
            self._lost_listeners.append(lost)

    @property
    def healthy(self) -> bool:
        """The store took the last batch."""
        return not self.failures_in_a_row

    def figures(self) -> CommitFigures:
        return CommitFigures(self.commits, self.batches, self.failures, self._waiting())

    @property
    def batches_waiting(self) -> float:
        """How many full batches the queues hold."""
        return self._waiting() / self._batch_max

    def _waiting(self) -> int:
        return sum(len(lane.queue) for lane in self._lanes)

    def hand_over(self, commit: Commit, done: Done) -> None:
        """Write ``commit`` with the next batch of its lane; from here on nothing cancels it.

        ``done`` hears the verdict, or :class:`StorageUnavailable` (nothing changed) or
        :class:`CommitOutcomeUnknown`; once, and after the listeners have heard of the whole batch.
        """
        lane = self._only_lane
        if lane is None:
            lane = self._lanes[self._provider.lane_of(commit.partition)]
        lane.queue.append((commit, done))
        self._begin(lane)

    def commit(self, commit: Commit) -> asyncio.Future[Verdict]:
        """:meth:`hand_over` for those who wait: the future has the verdict or raises the error."""
        future: asyncio.Future[Verdict] = self._loop.create_future()
        self.hand_over(commit, partial(_resolve, future))
        return future

    def _begin(self, lane: _Lane) -> None:
        """Have the queue worked off, if the lane may have another batch and there is one worth it."""
        if not lane.under_way or (len(lane.queue) >= OVERLAP and lane.under_way < self._lane_depth):
            lane.under_way += 1
            self._tasks.start(self._drain(lane), "commit").add_done_callback(partial(self._drained, lane))

    def _drained(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        lane.under_way -= 1
        if not lane.queue:
            return
        if task.cancelled():  # perhaps before its first step
            self._give_up(lane)
        else:
            self._begin(lane)

    def _give_up(self, lane: _Lane) -> None:
        """The silo ends: nobody commits those that wait."""
        waiting = list(lane.queue)
        lane.queue.clear()
        self._fail(waiting, StorageUnavailable, "the silo ended before the commit reached the store")

    async def _drain(self, lane: _Lane) -> None:
        try:
            while lane.queue and (lane.under_way == 1 or len(lane.queue) >= OVERLAP):
                await self._one_batch(self._next_batch(lane.queue))
        except BaseException:
            self._give_up(lane)
            raise

    def _next_batch(self, queue: deque[Member]) -> list[Member]:
        batch: list[Member] = []
        size = 0
        most = self._batch_max
        if self._lane_depth > 1 and len(queue) <= most:
            most = min(most, OVERLAP)
        while queue and len(batch) < most:
            size += _size(queue[0][0])
            if batch and size > self._batch_bytes_max:
                break
            batch.append(queue.popleft())
        return batch

    async def _one_batch(self, batch: list[Member]) -> None:
        now = self._clock.now()
        try:
            verdicts = await self._provider.commit([commit for commit, _ in batch], self.owner, now)
            answers = list(zip(batch, verdicts, strict=True))
        except OutcomeUnknown as error:
            self._fail(batch, CommitOutcomeUnknown, f"the store did not answer the commit: {error}")
            return
        except StoreError as error:
            if isinstance(error, StoreChanged):
                _tell(self.on_dispossessed, str(error))
            self._fail(batch, StorageUnavailable, f"the store did not take the commit: {error}")
            return
        except Exception as error:  # a fault in a provider: the rows may be there
            log.exception("the provider failed at a commit; the next ones go on")
            self._fail(batch, CommitOutcomeUnknown, f"the commit met a fault: {error!r}")
            return
        except BaseException as error:  # a cancelled wait: the rows may be there
            self._fail(batch, CommitOutcomeUnknown, f"the commit was interrupted: {error!r}")
            raise
        self.batches += 1
        self.commits += len(batch)
        self.failures_in_a_row = 0
        told: list[tuple[Commit, Verdict]] = []
        fenced: set[int] = set()
        for (commit, _), verdict in answers:
            if verdict.outcome is COMMITTED:
                if (
                    commit.settle is not None
                    or commit.reminders
                    or commit.events
                    or (commit.grain is not None and commit.grain.destroy)
                ):
                    told.append((commit, verdict))
            elif verdict.outcome is Outcome.FENCED and commit.epoch:
                fenced.add(commit.partition)
        for partition in sorted(fenced):
            _tell(self.on_fenced, partition)
        for listener in self._listeners:
            _tell(listener, told)
        for (_, done), verdict in answers:
            try:
                done(verdict, None)
            except Exception:
                log.exception("what waited for a commit failed")

    def _fail(self, batch: list[Member], kind: type[FarroError], text: str) -> None:
        self.failures += 1
        self.failures_in_a_row += 1
        if kind is CommitOutcomeUnknown:
            for commit, _ in batch:
                for listener in self._lost_listeners:
                    _tell(listener, commit)
        for _, done in batch:
            _tell(done, None, kind(text))


def _resolve(future: asyncio.Future[Verdict], verdict: Verdict | None, error: FarroError | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    elif verdict is not None:
        future.set_result(verdict)


def _size(commit: Commit) -> int:
    size = 256
    if commit.grain is not None and commit.grain.state is not None:
        size += len(commit.grain.state)
    for event in commit.events:
        size += len(event.payload)
    if commit.request is not None:
        size += len(commit.request.answer)
    return size


def _tell(listener: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """A listener's fault is its own: whoever else waits for the batch is answered all the same."""
    try:
        listener(*args, **kwargs)
    except Exception:
        log.exception("a listener to commits failed")


def _nobody_listens(_: object) -> None:
    """A committer that no host has connected tells nobody."""
