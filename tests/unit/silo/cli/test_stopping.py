"""What a second signal does to a silo process, by how soon it comes."""

from __future__ import annotations

import signal
from unittest.mock import Mock

import pytest

from farro.client.clock import SystemClock
from farro.silo.cli import stopping
from farro.silo.cli.stopping import SAME_ACT_S, Stop


class OwnClock(SystemClock):
    us = 100_000_000

    def steady(self) -> int:
        return self.us


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes that the process was ended with."""
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(stopping, "_end_now", end)
    # its watchdog would end the process of the tests a minute later
    monkeypatch.setattr(stopping, "threading", Mock())
    return codes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("drained_before", [False, True], ids=["", "drained by an operator"])
async def test_signals_within_a_second_are_one_act_and_a_later_one_ends_it(
    number: signal.Signals, drained_before: bool, codes: list[int]
) -> None:
    clock = OwnClock()
    said: list[str] = []
    stop = Stop(said.append, 60.0, clock)
    with stop.on_signals():
        if drained_before:
            stop.ask("asked to drain by an operator")
            clock.us += 5_000_000
        signal.raise_signal(number)
        clock.us += int(SAME_ACT_S * 900_000)
        signal.raise_signal(number)
        await stop.wait()
        assert codes == [] and stop.exit_code == 0
        assert any(text.startswith(number.name) for text in said)
        clock.us += int(SAME_ACT_S * 200_000)
        with pytest.raises(Ended):
            signal.raise_signal(number)
    assert codes == [128 + number]


async def test_the_end_of_a_process_is_not_changed_by_a_late_sigterm(codes: list[int]) -> None:
    before, interrupted = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        with Stop(lambda _: None, 60.0).on_signals(for_good=True):
            pass
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is interrupted
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes == []
