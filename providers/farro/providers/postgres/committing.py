"""The group commit: lanes, order, verdicts.

Partitions are spread over a few connections, the *lanes*; each has one batch in flight.  So the commits of a
partition follow each other by themselves, in the order in which they were begun.

A batch is one round trip and one transaction, with three exceptions: it spans lanes, or a grain comes twice
in it, or something makes the store refuse the whole (bad data of one member, a partition locked for long),
after which it goes on in halves.  Then each part is a transaction of its own, and trouble after the first
part has landed is an unknown outcome.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from farro.providers.checks import rejections, too_many
from farro.providers.errors import OutcomeUnknown, StoreError, Unavailable
from farro.providers.postgres.connecting import ANSWER_S, Connection
from farro.providers.postgres.failures import (
    TROUBLE,
    is_data_error,
    is_lock_timeout,
    is_worth_another_try,
    not_taken,
    said,
)
from farro.providers.postgres.link import Link
from farro.providers.postgres.sql import queries
from farro.providers.postgres.staging import Staged, runs_of_distinct_grains
from farro.providers.rows import Commit, Outcome, Verdict

LOCK_TIMEOUT_MS = 500
_COMMITTED = Outcome.COMMITTED  # looked up once: an attribute of an Enum class costs as much as two calls
_REPEATED = Outcome.REPEATED
TRIES_MAX = 5  # of one part that other changes got in the way of

Grain = tuple[str, str]


@dataclass(slots=True, eq=False)
class Sending:
    """What one call of commit has on one lane."""

    lane: int
    indices: list[int]
    grains: set[Grain]
    before: Sending | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    landed: bool = False  # a part of it was applied


@dataclass(frozen=True, slots=True)
class Request:
    """One call of commit."""

    batch: Sequence[Commit]
    owner: int
    now: int
    verdicts: dict[int, Verdict]


class Committing:
    """All commits of one provider."""

    def __init__(
        self, links: Sequence[Link], url: str, schema: str, service_id: str, lock_class: int, partitions: int
    ) -> None:
        self._links = links
        self._url = url
        self._queries = queries(schema)
        self._service_id = service_id
        self._lock_class = lock_class
        self._partitions = partitions
        self._last: dict[int, Sending] = {}
        self._under_way: dict[Grain, Sending] = {}
        self._doubtful: list[Sending] = []

    async def commit(self, batch: Sequence[Commit], owner: int, now: int) -> list[Verdict]:
        request = Request(batch, owner, now, {})
        sendings = self._begin(request)
        if len(sendings) == 1:
            await self._send(sendings[0], request)
        else:
            results = await asyncio.gather(
                *(self._send(sending, request) for sending in sendings), return_exceptions=True
            )
            _raise_together([r for r in results if r is not None], any(s.landed for s in sendings))
        return [request.verdicts[index] for index in range(len(batch))]

    async def wait_for(self, grains: Iterable[Grain]) -> None:
        """Return when no commit of the grains that was begun before can land any more.

        It costs a look into a dict unless such a commit is under way.  After a lost answer it is a round trip
        that ends the server's process which may still be at work.  Raises Unavailable.
        """
        for sending in {self._under_way[grain] for grain in grains if grain in self._under_way}:
            await sending.ended.wait()
            if self._links[sending.lane].in_doubt:
                await self._links[sending.lane].clear_doubt()
                self._forget_doubts()

    def _begin(self, request: Request) -> list[Sending]:
        """Verdicts that need no store; the rest by lane, its place taken before anything is awaited."""
        by_lane: dict[int, list[int]] = {}
        reasons = rejections(request.batch)
        for index, (member, reason) in enumerate(zip(request.batch, reasons, strict=True)):
            if reason:
                request.verdicts[index] = Verdict(Outcome.REJECTED, reason=reason)
            elif not 0 <= member.partition < self._partitions:
                request.verdicts[index] = Verdict(Outcome.FENCED)
            else:
                by_lane.setdefault(member.partition % len(self._links), []).append(index)
        sendings: list[Sending] = []
        for lane, indices in (by_lane or {0: []}).items():  # without members: the sign of life
            grains = {(request.batch[i].grain_type, request.batch[i].grain_key) for i in indices}
            sending = Sending(lane, indices, grains, self._last.get(lane))
            self._last[lane] = sending
            self._under_way.update(dict.fromkeys(grains, sending))
            sendings.append(sending)
        return sendings

    async def _send(self, sending: Sending, request: Request) -> None:
        link = self._links[sending.lane]
        try:
            if sending.before is not None:
                await sending.before.ended.wait()
                sending.before = None
            runs = list(runs_of_distinct_grains(sending.indices, request.batch)) or [[]]
            for run in runs:
                await self._send_run(link, sending, run, request)
        except Unavailable as error:
            if sending.landed:
                raise OutcomeUnknown(f"a part of the batch was applied, another was not: {error}") from error
            raise
        finally:
            self._doubtful.append(sending)
            sending.ended.set()
            self._forget_doubts()

    def _forget_doubts(self) -> None:
        """Ended sendings are looked for by loads only as long as their lane is in doubt."""
        ended, self._doubtful = self._doubtful, []
        for sending in ended:
            if self._links[sending.lane].in_doubt:
                self._doubtful.append(sending)
                continue
            for grain in sending.grains:
                if self._under_way.get(grain) is sending:
                    del self._under_way[grain]
            if self._last.get(sending.lane) is sending:
                del self._last[sending.lane]

    async def _send_run(self, link: Link, sending: Sending, run: list[int], request: Request) -> None:
        """Members with distinct grains, whole if the store takes it, else in halves."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + ANSWER_S
        looked_at: set[int] = set()  # members whose bound holds
        parts = deque([run])
        tries = TRIES_MAX
        while parts:
            part = parts.popleft()
            try:
                await self._send_part(link, part, request, looked_at)
                sending.landed = True
            except TROUBLE as error:
                if is_data_error(error) and part:
                    if len(part) == 1:
                        reason = f"the store cannot hold a value: {said(error)}"
                        request.verdicts[part[0]] = Verdict(Outcome.REJECTED, reason=reason)
                    else:
                        parts.extendleft(reversed(_halves(part)))
                elif is_lock_timeout(error) and loop.time() < give_up_at:
                    parts.extend(_by_partition(part, request.batch))
                elif is_worth_another_try(error) and tries > 0:
                    tries -= 1
                    parts.appendleft(part)
                else:
                    raise not_taken(error, self._url) from error

    async def _send_part(self, link: Link, part: list[int], request: Request, looked_at: set[int]) -> None:
        """One transaction; again without the members whose reminders turn out to be too many."""
        while True:
            staged = Staged()
            for index in part:
                staged.add(request.batch[index], bounded=index not in looked_at)
            answer = await link.run(self._call(staged, request), staged.partitions())
            crowded = [part[number - 1] for number in answer["crowded"] or ()]
            settled = {staged.settles[number - 1][0] for number in answer["settled"] or ()}
            if not crowded:
                self._note(part, staged, answer, settled, request)
                return
            looked_at.update(crowded)
            for index in crowded:
                reason = await self._too_many(link, request.batch[index], part.index(index) + 1 in settled)
                if reason:
                    request.verdicts[index] = Verdict(Outcome.REJECTED, reason=reason)
            part = [index for index in part if index not in request.verdicts]

    def _call(self, staged: Staged, request: Request) -> Any:
        text = self._queries["commit_answering" if staged.requests else "commit"]
        answering = (staged.requests,) if staged.requests else ()

        async def call(connection: Connection) -> Any:
            return await connection.fetchrow(
                text,
                self._service_id,
                self._lock_class,
                request.owner,
                request.now,
                staged.partitions(),
                staged.members,
                staged.settles,
                staged.changes,
                staged.marks,
                staged.events,
                staged.messages,
                *answering,
            )

        return call

    async def _too_many(self, link: Link, member: Commit, settled: bool) -> str:
        values = (self._service_id, member.grain_type, member.grain_key)

        async def look(connection: Connection) -> list[Any]:
            return await connection.fetch(self._queries["reminder_operations"], *values)

        held = await link.run(look)
        return too_many(member, settled, {row["name"]: row["operation"] for row in held})

    def _note(
        self, part: list[int], staged: Staged, answer: Any, settled: set[int], request: Request
    ) -> None:
        kept: dict[int, list[str]] = {}
        for position in sorted(answer["kept"] or ()):
            change = staged.changes[position - 1]
            kept.setdefault(change[0], []).append(change[_NAME_AT])
        answers: dict[int, bytes] = {}
        if staged.requests:
            for values, given in zip(staged.requests, answer["answers"], strict=True):
                answers[values[0]] = given
        for number, (index, outcome) in enumerate(zip(part, answer["verdicts"], strict=True), 1):
            if outcome != _COMMITTED:
                given_before = answers[number] if outcome == _REPEATED else None
                request.verdicts[index] = Verdict(Outcome(outcome), answer=given_before)
                continue
            grain = request.batch[index].grain
            version = 0 if grain is None else grain.expected_version + 1
            left = tuple(kept[number]) if number in kept else ()
            request.verdicts[index] = Verdict(_COMMITTED, version, number in settled, left)


_NAME_AT = 6  # in change_1: member, step, kind, grain_type, grain_key, partition, name


def _halves(part: list[int]) -> list[list[int]]:
    middle = len(part) // 2
    return [part[:middle], part[middle:]]


def _by_partition(part: list[int], batch: Sequence[Commit]) -> list[list[int]]:
    """Halves that share no partition; a single partition stays whole and is tried again."""
    partitions = sorted({batch[index].partition for index in part})
    if len(partitions) < 2:
        return [part]
    lower = set(partitions[: len(partitions) // 2])
    return [
        [index for index in part if batch[index].partition in lower],
        [index for index in part if batch[index].partition not in lower],
    ]


def _raise_together(errors: Sequence[BaseException], landed: bool) -> None:
    """One error for the lanes of a batch: certain only when no lane has changed anything."""
    if not errors:
        return
    for error in errors:
        if not isinstance(error, StoreError):
            raise error
    for error in errors:
        if isinstance(error, OutcomeUnknown):
            raise error
    if landed and isinstance(errors[0], Unavailable):
        raise OutcomeUnknown(f"a part of the batch was applied, another was not: {errors[0]}") from errors[0]
    raise errors[0]
