"""A turn from its first line to its acknowledged commit.

The one path for every end (design/turns.md):

=====================================  =====================================================================
the code returns, commit acknowledged  durable; the caller gets the result
the code raises                        effects dropped; activation discarded if the state's bytes had changed
the commit is refused or not taken     nothing changed; activation discarded
the answer to the commit is lost       unknown; activation discarded; nothing is sent again
=====================================  =====================================================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from farro.client.errors import (
    CallCancelled,
    FarroError,
    GrainCallFailed,
    SiloStopping,
)
from farro.providers.rows import GrainRow, Outcome, Verdict
from farro.silo.activations import requests
from farro.silo.activations.failures import describe, failed, printable
from farro.silo.activations.invocation import Consumption, Invocation
from farro.silo.activations.turn_commit import absorb, changes, check_place
from farro.silo.grains.context import CURRENT, Link, Turn
from farro.silo.grains.grain import Grain

if TYPE_CHECKING:
    from farro.silo.activations.activation import Activation
    from farro.silo.activations.core import Core

log = logging.getLogger("farro.turns")
defects = logging.getLogger("farro.defects")

NOTHING = Consumption()


class Turns:
    """Runs turns and hooks of activations; one object per silo, no state of its own."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # ---- messages

    async def run(self, activation: Activation, call: Invocation) -> None:
        """The whole turn of one call or delivery, but for its commit, which answers by itself.

        Raises nothing and answers the caller exactly once.  Even a fault of farro's own, or of a logging
        handler, frees the grain.  One long coroutine on purpose: this is the hot path, and each coroutine
        within it costs half as much as the turn of a small method.
        """
        try:
            operation, delivery, readonly = call.operation, call.delivery, call.readonly
            request = call.request
            assert operation is not None
            spec = operation.spec
            turn = self._open(
                activation, call.method, call.deadline, call.chain, readonly, activation.last_active
            )
            answer: Any = None
            encoded: bytes | None = None
            error: FarroError | None = None
            in_code = False
            first: bytes | None = None  # what the request was answered with before
            try:
                if delivery is not None:
                    turn.tick, args, kwargs = delivery.begin(spec)
                else:
                    args, kwargs = spec.decode_call(call.args, call.kwargs)
                if spec.cancellable:
                    call.cancel_running = _cancel_current()
                if request is not None:
                    requests.begin(turn, call, request)
                    first = await requests.first_answer(self._core, call, request)
                if first is None:
                    in_code = True
                    result = await operation.function(activation.grain, *args, **kwargs)
                    answer = spec.encode_result(result)
                    if request is not None:
                        requests.keep(self._core, turn, call, request, answer)
                    if not readonly:
                        encoded = self._encoded_state(activation)
                else:
                    answer, encoded = requests.unpacked(self._core, first), activation.baseline
            except KeyboardInterrupt:
                raise
            except BaseException as raised:  # whatever it is, the caller hears of it and the grain goes on
                error = self._what_was_raised(activation, call, raised, in_code)
            call.cancel_running = None
            self._close(turn)
            if delivery is not None:
                delivery.code_ended()

            keep = True
            if readonly:
                if activation.last_reader and activation.known.state is not None:
                    keep = not self._state_changed(activation, "a @readonly method")
            elif error is not None:
                keep = not self._state_changed(activation)
            elif delivery is not None or turn.has_effects or encoded != activation.baseline:
                if activation.version is None:
                    error = await self._version_read(activation)
                if error is None:
                    error = self._hand_over(activation, call, turn, encoded, answer)
                    if error is None:
                        return
                keep = False
            self._end(activation, call, keep=keep, destroyed=False, answer=answer, error=error)
        except KeyboardInterrupt:
            raise
        except BaseException as defect:
            self._defect(activation, call, defect)

    def _defect(self, activation: Activation, call: Invocation, defect: BaseException) -> None:
        if not call.over:
            error = GrainCallFailed(
                f"{call.target}: the silo failed: {describe(defect)}", remote_type=type(defect).__name__
            )
            self._end(activation, call, keep=False, destroyed=False, answer=None, error=error)
        # A logger of its own: what failed may have been a filter of the one above.
        defects.critical("a turn ended in a defect grain=%s", printable(call.target), exc_info=defect)

    def _end(
        self,
        activation: Activation,
        call: Invocation,
        *,
        keep: bool,
        destroyed: bool,
        answer: Any,
        error: FarroError | None,
    ) -> None:
        """Let the activation go on or go, and answer the caller; once."""
        call.over = True
        if error is not None:
            self._core.counters.turns_failed += 1
        try:
            if not keep:
                activation.discard()
            elif destroyed:
                activation.destroyed()
            activation.turn_over(call.readonly)
        finally:
            call.respond(answer if error is None else None, error)

    def _what_was_raised(
        self, activation: Activation, call: Invocation, raised: BaseException, in_code: bool
    ) -> FarroError:
        """The error that the caller gets.  What the author's code lets through means that its turn failed,
        whatever became of the call that raised it; only before the code, and in a silo's own grains, is an
        error of farro's the answer itself."""
        if isinstance(raised, FarroError) and (not in_code or activation.known.system):
            return raised
        if _cut_off(raised):
            if call.cancelled and call.cancel_running is not None:
                return CallCancelled(f"{call.target} was cancelled by its caller")
            if self._core.tasks.stopping:  # else the author's code has cancelled its own task
                return SiloStopping(f"the silo stopped while {call.target} ran; nothing was committed")
        return failed(call.target, raised, self._core.random)

    # ---- hooks

    def wake(self, activation: Activation, first: Invocation) -> None:
        """Wake the grain for its first message, which waits in the mailbox, and run that message's turn."""
        core = self._core
        if activation.known.state is None:
            core.begin(self._wake(activation, first.chain, None, None), inline=first.inline)
        else:
            core.loader.read(
                activation.id.type,
                activation.id.key,
                lambda row, error: core.begin(self._wake(activation, first.chain, row, error), inline=True),
            )

    async def _wake(
        self,
        activation: Activation,
        chain: tuple[Link, ...],
        row: GrainRow | None,
        error: FarroError | None,
    ) -> None:
        """Make the grain's object, run ``on_activate`` as a turn; whoever waits hears a failure."""
        core = self._core
        try:
            if error is not None:
                raise error
            self._make_grain(activation, row)
            if activation.known.has_on_activate:
                await self._hook(activation, "on_activate", chain)
        except FarroError as failure:
            activation.failed(failure)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            if _cut_off(raised) and core.tasks.stopping:
                activation.failed(SiloStopping(f"the silo stopped while {activation.id} woke"))
            else:
                activation.failed(failed(f"{activation.id}.on_activate", raised, core.random))
        else:
            core.counters.activations_created += 1
            call = activation.activated()
            if call is None:
                return
            if activation.known.has_on_activate:  # what it has set in its context is not for the first call
                core.begin(self.run(activation, call), inline=True)
            else:
                await self.run(activation, call)

    async def deactivate(self, activation: Activation, reason: str) -> None:
        """Run ``on_deactivate`` as a last turn, bounded, and let the activation go."""
        try:
            async with asyncio.timeout(self._core.options.deactivate_timeout.total_seconds()):
                await self._hook(activation, "on_deactivate", (), reason)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            log.warning(
                "on_deactivate failed grain=%s reason=%s: %s",
                printable(str(activation.id)),
                reason,
                printable(f"{type(error).__name__}: {error}"),
            )
        finally:
            activation.asleep()

    def _make_grain(self, activation: Activation, row: GrainRow | None) -> None:
        known, codec = activation.known, self._core.codec
        check_place(activation, row)
        grain: Grain[Any] = known.cls.__new__(known.cls)
        grain._farro_id = activation.id
        grain._farro_runtime = activation
        if known.state is not None:
            activation.version = 0 if row is None else row.version
            if row is None or row.state is None:
                grain.state = known.state.new()
            else:
                grain.state = known.state.decode(row.state, row.layout, codec)
                activation.layout_stale = row.layout != known.state.layout
            # Re-encoded, so that defaults added since do not look like a change.
            activation.baseline = known.state.encode(grain.state, codec)
        activation.grain = grain
        grain.__init__()  # type: ignore[misc]

    async def _hook(self, activation: Activation, name: str, chain: tuple[Link, ...], *args: Any) -> None:
        hook = getattr(type(activation.grain), name)
        deadline = self._core.loop.time() + self._core.options.call_timeout.total_seconds()
        turn = self._open(activation, name, deadline, chain, False, self._core.loop.time())
        try:
            await hook(activation.grain, *args)
            encoded = self._encoded_state(activation)
        finally:
            self._close(turn)
        await self._commit(activation, turn, encoded)

    # ---- pieces of a turn

    def _open(
        self,
        activation: Activation,
        method: str,
        deadline: float,
        chain: tuple[Link, ...],
        readonly: bool,
        now: float,
    ) -> Turn:
        core = self._core
        turn = Turn(activation.grain, activation.id, method, deadline, chain, readonly, now)
        CURRENT.set(turn)
        core.running.add(turn)
        core.counters.turns += 1
        return turn

    def _close(self, turn: Turn) -> None:
        turn.open = False
        self._core.running.discard(turn)

    def _encoded_state(self, activation: Activation) -> bytes | None:
        state = activation.known.state
        if state is None:
            return None
        assert activation.grain is not None
        return state.encode(activation.grain.state, self._core.codec)

    def _state_changed(self, activation: Activation, culprit: str | None = None) -> bool:
        """Do memory and store differ although nothing was committed?"""
        try:
            changed = self._encoded_state(activation) != activation.baseline
        except Exception as error:
            log.debug("the state of %s does not encode any more: %s", activation.id, error)
            changed = True
        if changed and culprit is not None:
            log.error(
                "%s changed the state of grain=%s; the change is discarded",
                culprit,
                printable(str(activation.id)),
            )
        return changed

    # ---- commit

    def _hand_over(
        self, activation: Activation, call: Invocation, turn: Turn, encoded: bytes | None, answer: Any
    ) -> FarroError | None:
        """Have the turn's changes written; the answer ends the turn.  An error: they never will be."""
        try:
            consumed = NOTHING if call.delivery is None else call.delivery.consume()
            commit = changes(self._core, activation, turn, encoded, consumed)
        except FarroError as error:
            log.warning("commit failed grain=%s: %s", printable(call.target), printable(str(error)))
            return error
        except Exception as defect:  # a fault of farro's own must not leave the grain busy for ever
            return failed(call.target, defect, self._core.random)
        self._core.committer.hand_over(
            commit, partial(self._answered, activation, call, turn, encoded, answer)
        )
        return None

    def _answered(
        self,
        activation: Activation,
        call: Invocation,
        turn: Turn,
        encoded: bytes | None,
        answer: Any,
        verdict: Verdict | None,
        error: FarroError | None,
    ) -> None:
        """The store has answered the turn's commit, or will not."""
        try:
            keep = False
            if verdict is not None and verdict.outcome is Outcome.REPEATED:
                assert verdict.answer is not None
                answer = requests.unpacked(self._core, verdict.answer)
            elif verdict is not None:
                error = absorb(activation, encoded, verdict)
                keep = error is None
            if error is not None:
                log.warning("commit failed grain=%s: %s", printable(call.target), printable(str(error)))
            destroyed = keep and turn.destroys
            self._end(activation, call, keep=keep, destroyed=destroyed, answer=answer, error=error)
        except KeyboardInterrupt:
            raise
        except BaseException as defect:
            self._defect(activation, call, defect)

    async def _commit(self, activation: Activation, turn: Turn, encoded: bytes | None) -> None:
        """Write what a hook changed and wait for it; nothing if nothing changed.

        Raises :class:`Fenced`, :class:`Conflict`, :class:`StorageUnavailable`,
        :class:`CommitOutcomeUnknown`, and :class:`InvalidPayload` when the store refuses the data.
        """
        if (encoded is None or encoded == activation.baseline) and not turn.has_effects:
            return
        if activation.version is None and (error := await self._version_read(activation)):
            raise error
        commit = self._core.committer.commit(changes(self._core, activation, turn, encoded, NOTHING))
        if error := absorb(activation, encoded, await self._verdict(commit)):
            raise error

    async def _version_read(self, activation: Activation) -> FarroError | None:
        """A grain without state learns its version when it first has something to write."""
        try:
            row = await self._core.loader.load(activation.id.type, activation.id.key)
            check_place(activation, row)
        except FarroError as error:
            log.warning("commit failed grain=%s: %s", printable(str(activation.id)), printable(str(error)))
            return error
        except asyncio.CancelledError:
            return SiloStopping(f"the silo stopped before {activation.id} was read; nothing was committed")
        if activation.version is None:
            activation.version = 0 if row is None else row.version
        return None

    async def _verdict(self, commit: asyncio.Future[Verdict]) -> Verdict:
        """Wait for it whatever is asked of the task: once handed over, a commit is not cancelled."""
        while True:
            try:
                return await asyncio.shield(commit)
            except asyncio.CancelledError:
                if self._core.tasks.stopping:
                    commit.add_done_callback(_heard)
                    raise


def _cancel_current() -> Callable[[], object] | None:
    task = asyncio.current_task()
    return None if task is None else task.cancel


def _cut_off(raised: BaseException) -> bool:
    """Was the task itself cancelled, rather than something it waited for?"""
    if not isinstance(raised, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _heard(commit: asyncio.Future[Verdict]) -> None:
    """The verdict came too late for anybody; a failure nobody looks at would be reported as a defect."""
    if not commit.cancelled():
        commit.exception()
