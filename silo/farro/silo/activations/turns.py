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
from typing import TYPE_CHECKING, Any

from farro.client.errors import (
    AlreadyConsumed,
    CallCancelled,
    CommitOutcomeUnknown,
    Conflict,
    FarroError,
    Fenced,
    GrainCallFailed,
    InvalidPayload,
    SiloStopping,
)
from farro.providers.rows import Commit, GrainRow, GrainWrite, Outcome, Verdict
from farro.silo.activations.failures import describe, failed, printable
from farro.silo.activations.invocation import Consumption, Invocation
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

    async def run_and_end(self, activation: Activation, call: Invocation) -> None:
        """A turn that is all its task does."""
        await self._run_guarded(activation, call)
        self._core.tasks.turn_over()

    async def _run_guarded(self, activation: Activation, call: Invocation) -> None:
        """:meth:`run`, such that even a fault of farro's own, or of a logging handler, frees the grain."""
        try:
            await self.run(activation, call)
        except KeyboardInterrupt:
            raise
        except BaseException as defect:
            if not call.over:
                error = GrainCallFailed(
                    f"{call.target}: the silo failed: {describe(defect)}", remote_type=type(defect).__name__
                )
                self._end(activation, call, keep=False, destroyed=False, answer=None, error=error)
            # A logger of its own: what failed may have been a filter of the one above.
            defects.critical("a turn ended in a defect grain=%s", printable(call.target), exc_info=defect)

    async def run(self, activation: Activation, call: Invocation) -> None:
        """The whole turn of one call or delivery.  Answers the caller exactly once; raises nothing.

        One long coroutine on purpose: this is the hot path, and each coroutine within it costs half as much
        as the turn of a small method.
        """
        operation, delivery, readonly = call.operation, call.delivery, call.readonly
        assert operation is not None
        spec = operation.spec
        turn = self._open(activation, call.method, call.deadline, call.chain, readonly)
        answer: Any = None
        encoded: bytes | None = None
        error: FarroError | None = None
        in_code = False
        try:
            if delivery is not None:
                turn.tick, args, kwargs = delivery.begin(spec)
            else:
                args, kwargs = spec.decode_call(call.args, call.kwargs)
            if spec.cancellable:
                call.cancel_running = _cancel_current()
            in_code = True
            result = await operation.function(activation.grain, *args, **kwargs)
            answer = spec.encode_result(result)
            if not readonly:
                encoded = self._encoded_state(activation)
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
            error = await self._committed(activation, turn, encoded, call)
            keep = error is None
        destroyed = error is None and turn.has_effects and turn.effects.destroy
        self._end(activation, call, keep=keep, destroyed=destroyed, answer=answer, error=error)

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
            activation.turn_over(call)
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
            return SiloStopping(f"the silo stopped while {call.target} ran; nothing was committed")
        return failed(call.target, raised, self._core.random)

    # ---- hooks

    async def activate(self, activation: Activation, first: Invocation) -> None:
        """Wake the grain for its first message and run that message's turn."""
        if await self._awake(activation, first):
            call = activation.activated()
            if call is not None:
                await self._run_guarded(activation, call)
        self._core.tasks.turn_over()

    async def _awake(self, activation: Activation, first: Invocation) -> bool:
        """Read the grain, make its object, run ``on_activate`` as a turn; whoever waits hears a failure."""
        core = self._core
        try:
            row = await self._row(activation) if activation.known.state is not None else None
            self._make_grain(activation, row)
            if activation.known.has_on_activate:
                await self._hook(activation, "on_activate", first.chain)
        except FarroError as error:
            activation.failed(error)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            if _cut_off(raised):
                activation.failed(SiloStopping(f"the silo stopped while {activation.id} woke"))
            else:
                activation.failed(failed(f"{activation.id}.on_activate", raised, core.random))
        else:
            core.counters.activations_created += 1
            return True
        return False

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
        turn = self._open(activation, name, deadline, chain, readonly=False)
        try:
            await hook(activation.grain, *args)
            encoded = self._encoded_state(activation)
        finally:
            self._close(turn)
        await self._commit(activation, turn, encoded, NOTHING)

    # ---- pieces of a turn

    def _open(
        self, activation: Activation, method: str, deadline: float, chain: tuple[Link, ...], readonly: bool
    ) -> Turn:
        core = self._core
        turn = Turn(
            activation.grain,
            method,
            deadline,
            (*chain, (activation.id.type, activation.id.key, method, readonly)),
            readonly,
            core.loop.time(),
        )
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

    async def _committed(
        self, activation: Activation, turn: Turn, encoded: bytes | None, call: Invocation
    ) -> FarroError | None:
        try:
            consumed = NOTHING if call.delivery is None else call.delivery.consume()
            await self._commit(activation, turn, encoded, consumed)
        except FarroError as error:
            log.warning("commit failed grain=%s: %s", printable(call.target), printable(str(error)))
            return error
        except asyncio.CancelledError:
            # The silo ends without waiting: the commit was handed over, and its rows may be there.
            return CommitOutcomeUnknown(f"the silo stopped while the commit of {call.target} was under way")
        except Exception as defect:  # a fault of farro's own must not leave the grain busy for ever
            return failed(call.target, defect, self._core.random)
        return None

    async def _commit(
        self, activation: Activation, turn: Turn, encoded: bytes | None, consumed: Consumption
    ) -> None:
        """Write what the turn changed, as one fenced transaction; nothing if nothing changed.

        Raises :class:`Fenced`, :class:`Conflict`, :class:`AlreadyConsumed`, :class:`StorageUnavailable`,
        :class:`CommitOutcomeUnknown`, and :class:`InvalidPayload` when the store refuses the data.
        """
        changed = encoded is not None and encoded != activation.baseline
        if not changed and not turn.has_effects and consumed is NOTHING:
            return
        core, effects = self._core, turn.effects
        if activation.version is None:
            row = await self._row(activation)
            activation.version = 0 if row is None else row.version
        writes = encoded is not None and (changed or activation.layout_stale)
        state = activation.known.state
        commit = core.committer.commit(
            Commit(
                partition=activation.partition,
                epoch=core.ownership.epoch(activation.partition),
                grain_type=activation.id.type,
                grain_key=activation.id.key,
                grain=GrainWrite(
                    expected_version=activation.version,
                    writes_state=writes and not effects.destroy,
                    state=encoded if writes else None,
                    layout=1 if state is None else state.layout,
                    destroy=effects.destroy,
                ),
                settle=consumed.settle,
                reminders=tuple(effects.reminders),
                events=(*effects.events, *consumed.events),
                outbox=tuple(effects.outbox),
                watermarks=consumed.watermarks,
                reminders_max=core.reminders_max if effects.reminders else 0,
            )
        )
        verdict = await self._verdict(commit)
        match verdict.outcome:
            case Outcome.COMMITTED:
                activation.version = verdict.version
                if writes:
                    activation.baseline = encoded
                    activation.layout_stale = False
            case Outcome.FENCED:
                raise Fenced(f"another silo owns the partition of {activation.id}; nothing changed")
            case Outcome.CONFLICT:
                raise Conflict(f"another commit changed {activation.id} first; nothing changed")
            case Outcome.DUPLICATE:
                raise AlreadyConsumed(f"the message to {activation.id} had its effect before")
            case Outcome.REJECTED:
                raise InvalidPayload(f"the store refused the data of {activation.id}: {verdict.reason}")

    async def _verdict(self, commit: asyncio.Future[Verdict]) -> Verdict:
        """Wait for it whatever is asked of the task: once handed over, a commit is not cancelled."""
        while True:
            try:
                return await asyncio.shield(commit)
            except asyncio.CancelledError:
                if self._core.tasks.stopping:
                    commit.add_done_callback(_heard)
                    raise

    async def _row(self, activation: Activation) -> GrainRow | None:
        return await self._core.loader.load(activation.id.type, activation.id.key)


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
